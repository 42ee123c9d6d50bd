package browser

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// With the keyboard alone, a reader finds out why an image is not ready.
func TestTaskFindOutWhyAnImageIsNotReady(t *testing.T) {
	d := newShown(t)
	d.awaitShown()
	tab := newTab(t)
	tab.open(d.url + "/")
	tab.tabTo(`e.matches(".states a") && e.textContent.includes("not ready")`)
	tab.load(chromedp.KeyEvent(kb.Enter))
	if got := tab.text("#matrix tbody"); strings.Contains(got, "debian") || !strings.Contains(got, "fedora") {
		t.Fatalf("the images that are not ready: %s", got)
	}
	tab.tabTo(`e.textContent === "fedora"`) // alpine makes progress meanwhile
	tab.load(chromedp.KeyEvent(kb.Enter))
	if got := tab.text("#facts"); !strings.Contains(got, "missing.raw: the server responds with 404") || !strings.Contains(got, "1 failed attempt") {
		t.Errorf("the view of the image says: %s", got)
	}
}

// At a width of 320 pixels, an admin uploads a file and sees the image become ready, and a reader downloads it.
func TestTaskUploadAndDownload(t *testing.T) {
	d := newDaemon(t, oneDisk+"images: {windows: {source: {upload: {}}}}\n")
	d.await("/images/windows", "0 of 1 ready")
	file := filepath.Join(t.TempDir(), "windows.raw")
	image := append(bytes.Clone(content), make([]byte, 12<<20)...) // with zeros, which are not sent
	if err := os.WriteFile(file, image, 0o644); err != nil {
		t.Fatal(err)
	}
	tab := newTab(t)
	tab.emulate(320, 1)
	tab.open(d.url + "/")
	tab.load(click(`#matrix a[href$="/images/windows"]`))
	tab.run(evaluate("loaded = true"), chromedp.SetUploadFiles(chromedp.CSS("#file"), []string{file}))
	tab.awaitText("#facts .state", "ready")
	tab.awaitText("#facts", "1 of 1 ready")
	if !eval[bool](tab, "loaded") {
		t.Error("the page was loaded again")
	}

	if got := download(tab); !bytes.Equal(got, image) {
		t.Errorf("the download has %d bytes that differ from those of the upload", len(got))
	}
}

// download downloads the image whose page is shown, and returns its content.
func download(t *tab) []byte {
	t.Helper()
	dir, events := t.TempDir(), true
	if _, err := chromedp.Call(t.ctx, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
		Behavior: browser.SetDownloadBehaviorBehaviorAllowAndName, DownloadPath: dir, EventsEnabled: &events, BrowserContextID: chromedp.FromContext(t.ctx).BrowserContextID,
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.ctx, *limit)
	defer cancel()
	downloads := chromedp.Events(ctx, browser.DownloadProgress)
	t.await(`document.querySelector("a[download]")`)
	t.run(click("a[download]"))
	for e, err := range downloads {
		if err != nil || e.State == browser.DownloadProgressStateCanceled {
			t.Fatalf("the download ended: %v, %v", e, err)
		}
		if e.State == browser.DownloadProgressStateCompleted {
			content, err := os.ReadFile(filepath.Join(dir, e.GUID))
			if err != nil {
				t.Fatal(err)
			}
			return content
		}
	}
	t.Fatal("the download has no end")
	return nil
}

// An admin cleans up two of three copies, and the page refuses nothing and deletes nothing else.
func TestTaskCleanUpOnTwoOfThreeDisks(t *testing.T) {
	const nodes = "settings: {allowLoopbackSources: true}\nnodes: {node1: {disks: {disk1: {path: DIR/disk1}, disk2: {path: DIR/disk2}, disk3: {path: DIR/disk3}}}}\n"
	image := fmt.Sprintf("images: {debian: {uuid: \"00000002\", minNumberOfCopies: COPIES, source: {download: {url: \"%s/debian.raw\"}}}}\n", newUpstream(t))
	d := newDaemon(t, nodes+strings.Replace(image, "COPIES", "3", 1))
	d.await("/images/debian", "3 of 3 ready")
	tab := newTab(t)
	tab.open(d.url + "/images/debian")
	d.commit("config.yaml", nodes+strings.Replace(image, "COPIES", "1", 1))
	tab.await(`document.querySelector("#facts").innerText.split("surplus since").length === 3`)
	for _, id := range eval[[]string](tab, `[...document.querySelectorAll("#facts tbody tr")].filter((r) => r.innerText.includes("surplus since")).map((r) => r.querySelector("input").id)`) {
		tab.run(click("#" + id))
	}
	tab.run(click("button[data-cleanup]"))
	tab.await(`document.querySelectorAll("#facts tbody tr").length === 1`)
	if got := tab.text("#facts"); !strings.Contains(got, "1 of 1 ready") {
		t.Errorf("after the clean-up: %s", got)
	}
	if m := tab.takeMessages(); len(m) != 1 || !strings.HasPrefix(m[0], "dialog: Delete the copies on node1/disk") {
		t.Errorf("the page asked %q", m)
	}
}

// A reader gets the lines for a new image, commits them, and sees the image become ready.
func TestTaskCreateAnImage(t *testing.T) {
	d := newDaemon(t, oneDisk)
	d.await("/", "No image is declared")
	reader, images := newTab(t), newTab(t)
	images.open(d.url + "/")
	reader.open(d.url + "/")
	reader.load(click(`nav a[href$="/lines"]`))
	reader.run(press("#name", "debian"), press("#url", newUpstream(t)+"/debian.raw"))
	reader.load(press("#copies", "1\r"))
	d.commit("debian.yaml", reader.text("#lines"))
	images.awaitText("#matrix tbody tr.ready", "1 of 1")

	reader.load(click(`.kinds a[href="?kind=drain"]`))
	reader.run(press("#place", "node1/disk1"))
	reader.load(click("form.stack button"))
	if got := strings.TrimSpace(reader.text("#lines")); got != "nodes:\n  node1:\n    disks:\n      disk1:\n        evictionRequested: true" {
		t.Errorf("the lines that drain a disk:\n%s", got)
	}
	if got := reader.text("#result"); !strings.Contains(got, "config.yaml, line 2") {
		t.Errorf("the page does not say where the lines belong: %s", got)
	}
}

// A reader with the role peer sees no action, and a direct request with the reader's session is refused.
func TestTaskAsPeer(t *testing.T) {
	d := newDaemon(t, oneDisk+fmt.Sprintf("images: {debian: {source: {download: {url: \"%s/debian.raw\"}}}, windows: {source: {upload: {}}}}\n", newUpstream(t)), withTokens(t)...)
	d.token = peerToken
	d.await("/images/debian", "1 of 1 ready")
	tab := newTab(t)
	signIn(tab, d, peerToken)
	for _, name := range []string{"debian", "windows"} {
		tab.open(d.url + "/images/" + name)
		if got := eval[[]string](tab, `[...document.querySelectorAll("main button, main input, main [data-upload]")].map((e) => e.outerHTML)`); len(got) > 0 {
			t.Errorf("%s: a peer sees the actions %q", name, got)
		}
	}
	for _, request := range []string{"POST /v1/images/debian/verify", "POST /v1/images/debian/retry", "POST /v1/images/debian/cleanup?disk=node1/disk1", "POST /v1/uploads"} {
		method, path, _ := strings.Cut(request, " ")
		got := eval[int](tab, fmt.Sprintf(`fetch(%q, {method: %q, headers: {"X-Request-Token": document.body.dataset.session, "Tus-Resumable": "1.0.0", "Upload-Length": "512", "Upload-Metadata": "name " + btoa("windows")}}).then((r) => r.status)`, path, method))
		if got != 403 {
			t.Errorf("%s of a peer: status %d", request, got)
		}
	}
	tab.takeMessages() // the refused requests
}
