package browser

import (
	"bytes"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// shownView is a view of the page.
type shownView struct {
	name, address string
	status        int
}

// allViews returns all views of two daemons: one that needs no token, and one that does.
func allViews(d, withToken *daemon) []shownView {
	var all []shownView
	for name, path := range map[string]string{
		"images": "/", "image-ready": "/images/debian", "image-in-progress": "/images/alpine", "image-failed": "/images/fedora",
		"image-suspended": "/images/ubuntu", "image-upload": "/images/windows", "disks": "/disks", "plan": "/plan", "configuration": "/configuration",
		"lines": "/lines",
	} {
		all = append(all, shownView{name, d.url + path, 200})
	}
	return append(all,
		shownView{"no-match", d.url + "/?q=none", 200},
		shownView{"no-image", d.url + "/images/none", 404},
		shownView{"sign-in", withToken.url + "/", 401},
		shownView{"not-allowed", strings.Replace(d.url, "127.0.0.1", "rebound.test", 1) + "/", 403},
	)
}

// axe returns the script of axe-core, which finds what makes a page hard to use for some people.
func axe(t testing.TB) string {
	t.Helper()
	need.Programs(t, "npm", "axe-core")
	p, _ := need.Lookup("axe-core")
	const root = "../../.."
	if err := p.Fetch(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join(root, p.NPM, "node_modules/axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	return string(script)
}

// findViolations is evaluated in a page with axe-core.
const findViolations = `axe.run().then((r) => r.violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + n.html.slice(0, 200) + " " + n.failureSummary)))`

// Each view, in light and dark, wide and narrow, satisfies all rules of axe-core, needs no horizontal scrolling, loads nothing
// from elsewhere, and writes nothing to the console.
func TestEveryViewIsAccessible(t *testing.T) {
	script := axe(t)
	d, withToken := newShown(t), newDaemon(t, oneDisk, withTokens(t)...)
	d.awaitShown()
	d.commit("broken.yaml", "images: {broken: {source: {upload: {}}, minNumberOfCopies: none}}\n")
	d.await("/configuration", "broken.yaml:1")
	tab := newTab(t)
	for _, v := range allViews(d, withToken) {
		t.Run(v.name, func(t *testing.T) {
			tab.TB = t
			defer tab.checkMessages()
			tab.emulate(1280, 1)
			if got := tab.open(v.address); got != v.status {
				t.Fatalf("status %d", got)
			}
			tab.run(evaluate(script))
			for _, width := range []int{1280, 320} {
				for _, scheme := range []string{"light", "dark"} {
					tab.emulate(width, 1, "prefers-color-scheme: "+scheme)
					for _, violation := range eval[[]string](tab, findViolations) {
						t.Errorf("%s, %d pixels: %s", scheme, width, violation)
					}
				}
			}
			for width, scale := range map[int]float64{320: 1, 640: 2} { // 640 pixels are 1280 at 200 %
				tab.emulate(width, scale)
				if wide := eval[[]string](tab, findOverflow); len(wide) > 0 {
					t.Errorf("the page is wider than %d pixels: %q", width, wide)
				}
				if wide := eval[[]string](tab, findWideRows); len(wide) > 0 {
					t.Errorf("rows are wider than their table at %d pixels: %q", width, wide)
				}
			}
			tab.emulate(1280, 1, "prefers-reduced-motion: reduce")
			if moving := eval[[]string](tab, findMotion); len(moving) > 0 {
				t.Errorf("moves although the reader wants no motion: %q", moving)
			}
			tab.checkOwnRequests(v.address)
		})
	}
}

// findOverflow returns what is wider than the page.
const findOverflow = `document.documentElement.scrollWidth <= innerWidth ? [] :
	[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth && !e.parentElement.closest(".scroll")).map((e) => e.outerHTML.slice(0, 100))`

// findWideRows returns the tables with texts whose rows do not fit.
const findWideRows = `[...document.querySelectorAll(".scroll:has(> .rows)")].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.getAttribute("aria-label"))`

// findMotion returns what is animated.
const findMotion = `[...document.querySelectorAll("*")].filter((e) => {
	const s = getComputedStyle(e);
	return s.animationName !== "none" || s.transitionDuration.split(", ").some((d) => d !== "0s") || s.scrollBehavior === "smooth";
}).map((e) => e.outerHTML.slice(0, 100))`

// Without JavaScript every view can be read, and lists can be filtered, sorted and paged.
func TestReadingNeedsNoScript(t *testing.T) {
	images := oneDisk + "images:\n"
	for i := range 60 {
		images += fmt.Sprintf("  image%02d: {uuid: \"000000%02d\", source: {upload: {}}}\n", i, i)
	}
	images += fmt.Sprintf("  zebra: {source: {download: {url: \"%s/zebra.raw\"}}}\n", newUpstream(t))
	d := newDaemon(t, images)
	d.await("/images/zebra", "1 of 1 ready")
	tab := newTab(t)
	tab.run(disableScripts())

	tab.open(d.url + "/")
	if got := eval[int](tab, `document.querySelectorAll("#matrix tbody tr").length`); got != 50 {
		t.Errorf("the first page has %d rows", got)
	}
	tab.load(click(`a[rel=next]`))
	if got := tab.text("#matrix tbody"); strings.Count(got, "\n") < 10 || !strings.Contains(got, "zebra") {
		t.Errorf("the second page shows %q", got)
	}
	tab.load(click(`a[rel=prev]`))
	tab.load(press("#q", "zebra\r"))
	if got := tab.text("#matrix tbody th"); got != "zebra" {
		t.Errorf("the filter finds %q", got)
	}
	tab.load(click(`#matrix a[href*="/images/zebra"]`))
	if got := tab.text("main"); !strings.Contains(got, "1 of 1 ready") || !strings.Contains(got, "node1/disk1") {
		t.Errorf("the view of the image shows %q", got)
	}
	if got := eval[string](tab, `document.querySelector("a[download]").href`); got != d.url+"/v1/images/zebra/download" {
		t.Errorf("the download is at %s", got)
	}
	tab.load(click(`.mark`))
	tab.load(click(`a[href="?sort=state"]`))
	if got := tab.text("#matrix tbody tr:first-child th"); got != "image00" {
		t.Errorf("the first image by state is %q", got)
	}
	tab.load(click(`.states a.ready`))
	if got := tab.text("#matrix tbody"); !strings.Contains(got, "zebra") || strings.Contains(got, "image00") {
		t.Errorf("the ready images are %q", got)
	}
	for path, want := range map[string]string{"/disks": "disk1", "/plan": "wait", "/configuration": "61 images, 1 node"} {
		tab.open(d.url + path)
		if got := tab.text("main"); !strings.Contains(got, want) {
			t.Errorf("%s shows %q, and not %q", path, got, want)
		}
	}
}

var update = flag.Bool("update", false, "write the screenshots of docs/images")

// TestScreenshots writes the pictures of the documents. They show the time and other things that differ in each run, so that it
// does not compare them.
func TestScreenshots(t *testing.T) {
	if !*update {
		t.Skip("writes the screenshots only with -update")
	}
	d, withToken := newShown(t), newDaemon(t, oneDisk, withTokens(t)...)
	d.awaitShown()
	const folder = "../../../docs/images"
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	shown := []string{"images", "image-failed", "image-upload", "disks", "plan", "configuration", "lines", "sign-in"}
	tab := newTab(t)
	for _, v := range allViews(d, withToken) {
		if !slices.Contains(shown, v.name) {
			continue
		}
		for _, look := range []struct {
			name   string
			width  int
			scheme string
		}{{"", 1280, "light"}, {"-dark", 1280, "dark"}, {"-narrow", 320, "light"}, {"-narrow-dark", 320, "dark"}} {
			tab.emulate(look.width, 1, "prefers-color-scheme: "+look.scheme)
			tab.open(v.address)
			eval[bool](tab, replaceTexts(d))
			picture, err := chromedp.Run(tab.ctx, chromedp.FullScreenshot(100))
			if err == nil {
				picture, err = withFewColours(picture)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(folder, "web-"+v.name+look.name+".png"), picture, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// replaceTexts is evaluated in a page, and shows the paths and addresses of the test as those of a machine.
func replaceTexts(d *daemon) string {
	return fmt.Sprintf(`(() => {
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data
		.replaceAll("%[1]s/config", "/etc/backing-image-manager/config").replaceAll("%[1]s", "/mnt")
		.replaceAll("http://127.0.0.1:9:", "http://10.0.0.2:8000:").replaceAll(/http:\/\/127\.0\.0\.1:\d{4,}/g, "https://images.example.com");
	return true;
})()`, d.dir)
}

// withFewColours returns a PNG with at most 64 colours, which is less than half of the size. They are the most frequent ones, and
// then those that differ from all others.
func withFewColours(content []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	count := map[color.RGBA]int{}
	for y := range full.Bounds().Dy() {
		for x := range full.Bounds().Dx() {
			count[color.RGBAModel.Convert(full.At(x, y)).(color.RGBA)]++
		}
	}
	var few color.Palette
	for _, c := range slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return count[b] - count[a] }) {
		if len(few) < 24 || len(few) < 64 && !slices.ContainsFunc(few, func(f color.Color) bool { return distance(f.(color.RGBA), c) < 600 }) {
			few = append(few, c)
		}
	}
	reduced := image.NewPaletted(full.Bounds(), few)
	draw.Draw(reduced, reduced.Bounds(), full, image.Point{}, draw.Src)
	var b bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	err = encoder.Encode(&b, reduced)
	return b.Bytes(), err
}

// distance returns the square of the distance of two colours.
func distance(a, b color.RGBA) int {
	square := func(x, y uint8) int { return (int(x) - int(y)) * (int(x) - int(y)) }
	return square(a.R, b.R) + square(a.G, b.G) + square(a.B, b.B)
}
