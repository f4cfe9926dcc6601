package e2e_test

import (
	"context"
	_ "embed"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/payonce/payonce/internal/testrun"
)

var (
	//go:embed testdata/page.js
	inspectPage string
	//go:embed testdata/focus.js
	findStops string
)

// newBrowser starts a browser that knows no host but this machine.
func newBrowser(t *testing.T) context.Context {
	t.Helper()
	program := os.Getenv("BROWSER")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && program == "" {
			program = found
		}
	}
	if program == "" {
		t.Fatal("no Chromium is found; BROWSER names one")
	}
	home := t.TempDir()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(filepath.Join(home, "profile")),
		chromedp.Env("HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.Flag("disable-component-update", true))
	allocator, end := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(end)
	browser, _ := chromedp.NewContext(allocator)
	must(t, chromedp.Do(browser))
	t.Cleanup(func() { must(t, chromedp.Cancel(browser)) })
	return browser
}

// tab is a page of the browser. What goes wrong in it fails the test at its end.
type tab struct {
	*testing.T

	ctx    context.Context
	origin string

	mu    sync.Mutex
	wrong []string
}

// look is how a tab is looked at.
type look struct {
	width  int64
	scheme string
}

func (w *visitor) tab(t *testing.T, origin string, l look) *tab {
	t.Helper()
	b := &tab{T: t, origin: origin}
	b.ctx, _ = chromedp.NewContext(w.browser, chromedp.WithListener(b.hear))
	must(t, chromedp.Do(b.ctx)) // the tab lives as long as this context
	b.do(chromedp.EmulateViewport(l.width, 900))
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
	must(t, err)
	t.Cleanup(func() {
		must(t, chromedp.Cancel(b.ctx))
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, what := range b.wrong {
			t.Error(what)
		}
	})
	return b
}

// hear notes requests to other hosts and what the browser's console says.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if at, err := url.Parse(e.Request.URL); err != nil || at.Scheme != "data" && at.Scheme+"://"+at.Host != b.origin {
			b.wrong = append(b.wrong, "a request leaves the machine: "+e.Request.URL)
		}
	case *network.EventWebSocketCreated:
		b.wrong = append(b.wrong, "a socket is opened: "+e.URL)
	case *runtime.EventExceptionThrown:
		b.wrong = append(b.wrong, fmt.Sprintf("an exception: %+v", e.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		b.wrong = append(b.wrong, fmt.Sprintf("the page writes to the console: %s %v", e.Type, e.Args))
	case *log.EventEntryAdded:
		b.wrong = append(b.wrong, fmt.Sprintf("the browser's console has: %s %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	}
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, testrun.Stall)
	defer cancel()
	must(b.T, chromedp.Do(ctx, steps...))
}

func (b *tab) open(path string) {
	b.Helper()
	b.do(chromedp.Navigate(b.origin + path))
}

// eval returns the value of an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, testrun.Stall)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.Fatalf("%.200s: %v", expression, err)
	}
	return value
}

// until waits until a page is loaded in which an expression is true. While a form is sent there is
// no page.
func (b *tab) until(expression string) {
	b.Helper()
	testrun.Progress(b, expression, func() (string, bool) {
		ctx, cancel := context.WithTimeout(b.ctx, testrun.Stall)
		defer cancel()
		holds, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`document.readyState === "complete" && (`+expression+`)`))
		return fmt.Sprint(err), err == nil && holds
	})
}

func (b *tab) press(keys string) {
	b.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// tabTo presses Tab until the element that has the focus is the one wanted.
func (b *tab) tabTo(wanted string) {
	b.Helper()
	for range 200 {
		b.press("\t")
		if eval[bool](b, "((e) => "+wanted+")(document.activeElement)") {
			return
		}
	}
	b.Fatalf("the Tab key does not reach %s", wanted)
}
