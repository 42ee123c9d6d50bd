package browser

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

func TestMain(m *testing.M) {
	code := m.Run()
	chromium.stop()
	withCertificates.stop()
	os.Exit(code)
}

var limit = flag.Duration("limit", time.Minute, "how long a step of a reader may take")

// process is a Chromium that many tests use.
type process struct {
	once sync.Once
	ctx  context.Context
	end  []context.CancelFunc
	err  error
}

var chromium process // of all tests that need no certificates

// start starts the browser at the first call, with some options.
func (p *process) start(t testing.TB, more ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	path := need.Command(t, "chromium").Path
	p.once.Do(func() {
		options := append(slices.Concat(chromedp.DefaultExecAllocatorOptions[:], more),
			chromedp.ExecPath(path),
			chromedp.NoSandbox, // it needs rights that containers do not give; only own pages are shown
			chromedp.Flag("disable-gpu", true),
			chromedp.Flag("disable-features", "Translate,PreloadTopChromeWebUI"), // each window would start another process
			chromedp.Flag("host-resolver-rules", "MAP *.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		)
		ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
		browser, stop := chromedp.NewContext(ctx)
		p.ctx, p.end, p.err = browser, []context.CancelFunc{stop, cancel}, chromedp.Do(browser)
	})
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.ctx
}

func (p *process) stop() {
	for _, end := range p.end {
		end()
	}
}

// tab is a tab of the browser. A problem of the browser ends the test.
type tab struct {
	testing.TB
	ctx context.Context

	mu       sync.Mutex
	messages []string // from the console and dialogs
	requests []string // their addresses
}

// newTab opens a tab with 1280 × 800 pixels and its own storage.
func newTab(t testing.TB) *tab {
	t.Helper()
	return openTab(t, chromium.start(t), chromedp.WithNewBrowserContext())
}

// cover opens another tab before this one, in the same window, so that this one is hidden.
func (t *tab) cover() (uncover func()) {
	t.Helper()
	front := openTab(t.TB, t.ctx, chromedp.WithNewWindow(false))
	front.run(activate())
	return func() {
		t.Helper()
		t.run(activate())
	}
}

func activate() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, page.BringToFront, cdp.Empty{})
		return err
	})
}

func openTab(t testing.TB, parent context.Context, option chromedp.ContextOption) *tab {
	t.Helper()
	opened := &tab{TB: t}
	ctx, cancel := chromedp.NewContext(parent, option, chromedp.WithListener(opened.listen))
	opened.ctx = ctx
	t.Cleanup(func() {
		opened.TB = t
		opened.checkMessages()
		cancel()
	})
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 800)); err != nil {
		t.Fatal(err)
	}
	return opened
}

// listen is called for each event, and must not send commands itself.
func (t *tab) listen(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		var texts []string
		for _, a := range e.Args {
			texts = append(texts, string(a.Value)+a.Description)
		}
		t.messages = append(t.messages, "console: "+strings.Join(texts, " "))
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		t.messages = append(t.messages, "exception: "+text)
	case *log.EventEntryAdded:
		if strings.HasPrefix(e.Entry.Text, "The Cross-Origin-Opener-Policy header has been ignored") {
			return // it needs TLS or localhost, and does no harm elsewhere
		}
		t.messages = append(t.messages, fmt.Sprintf("log: %s: %s", e.Entry.Text, e.Entry.URL))
	case *page.EventJavascriptDialogOpening:
		t.messages = append(t.messages, "dialog: "+e.Message)
		go func() { // otherwise the page waits for ever
			_, _ = chromedp.Call(t.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	case *network.EventRequestWillBeSent:
		t.requests = append(t.requests, e.Request.URL)
	}
}

// checkMessages fails the test if the page wrote to the console or opened a dialog.
func (t *tab) checkMessages() {
	t.Helper()
	for _, m := range t.takeMessages() {
		t.Errorf("the page caused: %s", m)
	}
}

// takeMessages returns what the page wrote to the console, and the dialogs it opened.
func (t *tab) takeMessages() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.messages
	t.messages = nil
	return taken
}

// takeRequests returns the addresses of the requests since the last call.
func (t *tab) takeRequests() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.requests
	t.requests = nil
	return taken
}

func (t *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, *limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// load runs actions that lead to another page, and returns its status.
func (t *tab) load(actions ...chromedp.Action[chromedp.Void]) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, *limit)
	defer cancel()
	response, err := chromedp.RunResponse(ctx, actions...)
	if err != nil {
		t.Fatalf("load a page: %v", err)
	}
	if response.Status >= 400 { // Chromium writes each one to the console
		t.mu.Lock()
		t.messages = slices.DeleteFunc(t.messages, func(m string) bool {
			return strings.Contains(m, fmt.Sprintf("the server responded with a status of %d", response.Status)) && strings.HasSuffix(m, response.URL)
		})
		t.mu.Unlock()
	}
	return int(response.Status)
}

// open opens an address, as a reader who enters it, and returns the status.
func (t *tab) open(address string) int {
	t.Helper()
	return t.load(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, page.Navigate, page.NavigateParams{URL: address})
		return err
	}))
}

// eval returns the value of an expression in the page.
func eval[T any](t *tab, expression string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, *limit)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// awaitText waits until an element of the page contains a text.
func (t *tab) awaitText(selector, text string) {
	t.Helper()
	t.await(fmt.Sprintf("document.querySelector(%q)?.innerText.includes(%q)", selector, text))
}

// text returns the text of an element as the reader sees it.
func (t *tab) text(selector string) string {
	t.Helper()
	return eval[string](t, fmt.Sprintf("document.querySelector(%q)?.innerText ?? 'there is no such element'", selector))
}

// emulate sets the width of the window in pixels, and media features, such as "prefers-color-scheme: dark".
func (t *tab) emulate(width int, scale float64, features ...string) {
	t.Helper()
	media := emulation.SetEmulatedMediaParams{}
	for _, f := range features {
		name, value, _ := strings.Cut(f, ": ")
		media.Features = append(media.Features, &emulation.MediaFeature{Name: name, Value: value})
	}
	t.run(chromedp.EmulateViewport(int64(width), 800, chromedp.EmulateScale(scale)), chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, media)
		return err
	}))
}

// checkOwnRequests fails the test if the page sent a request to another host than that of address.
func (t *tab) checkOwnRequests(address string) {
	t.Helper()
	own, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range t.takeRequests() {
		if u, err := url.Parse(r); err != nil || u.Host != own.Host {
			t.Errorf("the page sent a request to another host: %s", r)
		}
	}
}

// evaluate runs a script in the page and ignores its value. The policy of the page does not apply to it.
func evaluate(script string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](script)
}

// tabTo presses the Tab key until the element with the focus satisfies an expression, in which it is e.
func (t *tab) tabTo(expression string) {
	t.Helper()
	for range 100 {
		t.run(chromedp.KeyEvent(kb.Tab))
		if eval[bool](t, "((e) => !!("+expression+"))(document.activeElement)") {
			return
		}
	}
	t.Fatalf("the Tab key does not reach an element with %s", expression)
}

// click clicks on the first element that a CSS selector finds.
func click(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Click(chromedp.CSS(selector))
}

// press enters a text into the first element that a CSS selector finds. "\r" is the Enter key.
func press(selector, text string) chromedp.Action[chromedp.Void] {
	return chromedp.SendKeys(chromedp.CSS(selector), text)
}

// disableScripts makes the browser run no script of the pages of a tab.
func disableScripts() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	})
}

// await waits until an expression is true in the page that is shown, or in the one that replaces it.
func (t *tab) await(expression string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, *limit)
	defer cancel()
	action := chromedp.Evaluate[bool](`new Promise((done) => {
		const holds = () => (`+expression+`) && (observer.disconnect(), done(true));
		const observer = new MutationObserver(holds);
		observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
		holds();
	})`, chromedp.EvalAwaitPromise)
	for {
		_, err := chromedp.Run(ctx, action)
		_, fault := errors.AsType[*chromedp.ExceptionError](err)
		switch {
		case err == nil:
			return
		case fault || ctx.Err() != nil:
			t.Fatalf("%s: %v; the page shows:\n%s", expression, err, eval[string](t, "document.body?.innerText ?? ''"))
		}
	}
}
