package e2e_test

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

var drive = flag.Bool("browser", false, "drive the console in Chromium; BROWSER names its program")

// TestConsole drives every page of the console in a browser, on one demo. What any page writes to
// the browser's console, and each request that leaves the machine, fails it.
func TestConsole(t *testing.T) {
	t.Parallel()
	if !*drive {
		t.Skip("not run: it starts a demo and Chromium; -browser runs it")
	}
	w := newVisitor(t)
	t.Run("pages", w.pages)
	t.Run("keyboard", w.keyboard)
	t.Run("a charge, live", w.live)
}

// visitor is a user of a demo that stays up.
type visitor struct {
	browser  context.Context
	url      string // of the console
	merchant *harness.Client
	db       *pgx.Conn
	faults   harness.Sandbox
}

func newVisitor(t *testing.T) *visitor {
	t.Helper()
	w, s := &visitor{browser: newBrowser(t)}, newStage(t)
	demo := s.demo(t, "--keep")
	must(t, demo.Start())
	t.Cleanup(func() { must(t, demo.Process.Signal(syscall.SIGINT)); s.mustBeEmpty(t) })
	s.says(t, `(everything stays up)`)
	w.url, w.faults = s.says(t, `^console: (\S+)$`), harness.Sandbox(s.says(t, `^  sandbox +(\S+)$`))
	w.merchant = harness.NewClient(s.says(t, `^  API key +(\S+)$`), s.says(t, `^  api-1 +(\S+)$`))
	var err error
	w.db, err = pgx.Connect(t.Context(), s.says(t, `^  database +(\S+)$`))
	must(t, err)
	t.Cleanup(func() { _ = w.db.Close(context.WithoutCancel(t.Context())) })
	return w
}

// charge sends a charge and returns its id.
func (w *visitor) charge(t *testing.T) string {
	t.Helper()
	answer := w.merchant.PostAll(t.Context(), 1, "/v1/charges", unique(), newOrder(visa, item{"mug", 1}).body(t))[0]
	if answer.Status != http.StatusAccepted {
		t.Fatalf("the charge was answered %d %s", answer.Status, answer.Body)
	}
	return strings.TrimPrefix(answer.Location, "/v1/charges/")
}

// paths are the pages by the heading that each begins with.
func (w *visitor) paths(t *testing.T) map[string]string {
	t.Helper()
	var charge string
	must(t, w.db.QueryRow(t.Context(), `select stream_id from ledger_events where type = 'charge.succeeded.v1' limit 1`).Scan(&charge))
	return map[string]string{
		"/": "Flow", "/charges/" + charge: "Charge", "/charges": "Charges", "/dead-letters": "Dead letters", "/lab": "Crash lab", "/learn": "Learn",
	}
}

// pages inspects each page in light and dark, on a phone, a laptop and a wide screen.
func (w *visitor) pages(t *testing.T) {
	t.Helper()
	paths := w.paths(t)
	for _, l := range []look{{360, "light"}, {1280, "dark"}, {1280, "light"}, {3840, "dark"}} {
		b := w.tab(t, w.url, l)
		for path, heading := range paths {
			b.open(path)
			b.until(`document.querySelector("h1")?.innerText.startsWith("` + heading + `")`)
			b.until(`document.querySelector("[data-live]")?.textContent === "live"`)
			wide := strconv.FormatBool(l.width > 2000)
			for _, what := range eval[[]string](b, "("+inspectPage+")("+wide+")") {
				t.Errorf("%s, %d wide, %s: %s", path, l.width, l.scheme, what)
			}
		}
	}
}

// keyboard reaches everything in the order in which it is read, sees where the focus is, and sends the forms.
func (w *visitor) keyboard(t *testing.T) {
	t.Helper()
	b := w.tab(t, w.url, look{1280, "light"})
	for path := range w.paths(t) {
		b.open(path)
		b.until(`document.querySelector("[data-live]")?.textContent === "live"`)
		for i := range eval[int](b, "("+findStops+")()") {
			b.press("\t")
			at := eval[[]string](b, `((e) => [String(stops.indexOf(e)), e.outerHTML.slice(0, 120), getComputedStyle(e).outlineStyle, String(e.getBoundingClientRect().top < innerHeight && e.getBoundingClientRect().bottom > 0)])(document.activeElement)`)
			if at[0] != strconv.Itoa(i) || at[2] == "none" || at[3] != "true" {
				t.Errorf("%s: stop %d of the Tab key is %q", path, i, at)
				break
			}
		}
	}
	var order string
	must(t, w.db.QueryRow(t.Context(), `select order_id from ledger_events where version = 1 limit 1`).Scan(&order))
	b.open("/")
	b.press("\t\r")
	b.until(`document.activeElement.id === "main"`)
	b.open("/")
	b.tabTo(`e.id === "find"`)
	b.press(order + "\r")
	b.until(`location.pathname === "/charges" && document.querySelectorAll("tbody tr").length === 1 && document.body.innerText.includes(` + strconv.Quote(order) + `)`)
	b.open("/lab")
	b.tabTo(`e.ariaLabel === "Do it: Kill a worker"`)
	b.press("\r")
	b.until(`document.querySelector(".did li b")?.textContent === "Kill a worker"`)
}

// live sees a charge come and end without another page: what the page holds for the test stays.
func (w *visitor) live(t *testing.T) {
	t.Helper()
	must(t, w.faults.SetFaults(t.Context(), harness.Faults{Slow: harness.Slow{P: 1, Milliseconds: 3000}}))
	b := w.tab(t, w.url, look{1280, "light"})
	b.open("/")
	appended := eval[string](b, `window.same = true, document.querySelector("#b-events b").textContent`)
	charge := w.charge(t)
	b.until(`same && document.querySelector("#b-events b").textContent !== "` + appended + `"`)
	b.open("/charges/" + charge)
	eval[bool](b, `window.same = true`)
	b.until(`same && document.querySelector(".amount .status").textContent === "succeeded"`)
	b.until(`same && [...document.querySelectorAll("table.timeline td")].some((e) => e.textContent.includes("charge.succeeded"))`)
}

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
