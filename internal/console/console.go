// Package console is the web console: it shows the running service, the history of a charge and
// dead letters. It changes nothing; the crash lab acts where a demo runs.
//
// # Guarantees
//
//   - A page is read from the database once a second at most, however many browsers show it.
//   - No other machine reads a page, and no page of another site does (DNS rebinding): the console
//     listens on a loopback address, and answers under a loopback name alone.
//   - A page names no other host, runs no script but its own file, and shows what was stored by
//     others as text.
//
// # Limits
//
// Everyone who may open connections on the machine reads the pages. A page of a charge reads what
// payonce timeline reads.
//
// The command line and the demo both show it, so it is a part of neither; net/http and html/template are
// its libraries.
package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bojanz/currency"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/inbox/deadletter"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
)

// Options configure a console.
type Options struct {
	Actions []Action // of the lab; none where nothing may be broken
	// Do takes an action by its name, in less than a minute, and says in a sentence what it did.
	Do  func(name string) (said string, err error)
	Log *slog.Logger
	Now func() time.Time
}

// Console serves the pages.
type Console struct {
	Options

	db      atomic.Pointer[postgres.DB]
	pages   map[string]*template.Template
	recent  *lru.Cache[string, *kept[page]] // by their addresses
	newest  kept[*tick]
	seen    map[string]time.Time // when newest last had each program
	viewed  chan struct{}        // holds one value after a page was read
	audited atomic.Pointer[audited]

	acting sync.Mutex // of the lab: one action at a time
	labbed atomic.Pointer[laboratory]
}

//go:embed assets
var assets embed.FS

const maxForm = 16 << 10

// policy permits the console's own files.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

var functions = template.FuncMap{
	"plural": plural, "money": money, "dict": dict, "draw": draw, "short": short,
	"clock": func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
	"when":  func(t time.Time) string { return t.UTC().Format(time.DateTime) },
}

// short shows a duration to the millisecond, and one below a millisecond to 10 µs.
func short(d time.Duration) string {
	if d.Abs() < time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// money shows an amount, which is in minor units, in units of its currency.
func money(amount int64, code string) string {
	exact, err := currency.NewAmountFromInt64(amount, code)
	if err != nil {
		return fmt.Sprintf("%d %s", amount, code)
	}
	return exact.String()
}

// plural counts in words.
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// dict makes a map of names and values, for a template that needs several.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

// New makes a console. Its pages say that the database is not there until Run has one.
func New(o Options) *Console {
	recent, _ := lru.New[string, *kept[page]](mostPages) // it refuses a size below one alone
	c := &Console{
		Options: o, pages: map[string]*template.Template{}, recent: recent, seen: map[string]time.Time{},
		viewed: make(chan struct{}, 1),
	}
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(assets, "assets/layout.html", "assets/parts.html"))
	for _, name := range []string{"Flow", "Charges", "Charge", "Dead letters", "Crash lab", "Learn", "Error"} {
		c.pages[name] = template.Must(template.Must(layout.Clone()).ParseFS(assets, "assets/"+strings.ReplaceAll(strings.ToLower(name), " ", "-")+".html"))
	}
	c.audited.Store(&audited{})
	c.labbed.Store(&laboratory{Actions: o.Actions})
	return c
}

// Run opens a database as the role payonce_console, from which pages are read until ctx ends. The
// application's name, the role and the limits of o are ignored.
func (c *Console) Run(ctx context.Context, address string, o postgres.Options) error {
	o.Application, o.Role, o.MaxConns, o.StatementTimeout = "payonce-console", postgres.RoleConsole, 6, 30*time.Second
	db, err := program.Open(ctx, c.Log, address, o)
	if err != nil {
		return err
	}
	defer db.Close()
	c.db.Store(db)
	defer c.db.Store(nil)
	c.auditAlways(ctx, db)
	return nil
}

// Serve serves the pages on a listener until ctx ends.
func (c *Console) Serve(ctx context.Context, listener net.Listener) error {
	return program.ServeListener(ctx, c.Log, listener, &http.Server{
		Handler: c.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10,
	})
}

// Handler serves the pages.
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, name := range []string{"console.css", "console.js", "icon.svg"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, assets, "assets/"+name) })
	}
	for pattern, p := range map[string]struct {
		name string
		read func(*http.Request) (any, error)
	}{
		"GET /{$}":     {"Flow", func(*http.Request) (any, error) { return nil, nil }}, // of the tick, which every page has
		"GET /lab":     {"Crash lab", func(*http.Request) (any, error) { return c.labbed.Load(), nil }},
		"GET /charges": {"Charges", c.charges}, "GET /charges/{id}": {"Charge", c.charge},
		"GET /dead-letters": {"Dead letters", c.letters}, "GET /dead-letters/{n}": {"Dead letters", c.letter},
		"GET /learn": {"Learn", c.learn},
	} {
		mux.HandleFunc(pattern,
			func(w http.ResponseWriter, r *http.Request) { c.serve(w, r, p.name, p.read) }) //nolint:contextcheck // other requests wait for the page too
	}
	mux.HandleFunc("POST /lab", func(w http.ResponseWriter, r *http.Request) {
		if err := c.act(r); err != nil {
			c.refuse(w, r, err)
			return
		}
		http.Redirect(w, r, "/lab", http.StatusSeeOther)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { c.refuse(w, r, errNoPage) })
	return guard(mux)
}

// guard refuses hosts that are not this machine's (DNS rebinding) and forms of other sites, and
// sets the headers of every answer.
func guard(next http.Handler) http.Handler {
	next = http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": policy, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			w.Header().Set(name, value)
		}
		if !program.Local(strings.ToLower(r.Host)) { // the name that the browser asked for
			http.Error(w, "The console answers under localhost and loopback addresses alone: forward its port.", http.StatusMisdirectedRequest)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		next.ServeHTTP(w, r)
	})
}

// problem is an error that a page shows.
type problem struct {
	Status int
	Text   string
}

func (p problem) Error() string { return p.Text }

var (
	errNoPage     = problem{http.StatusNotFound, "There is no such page."}
	errNoDatabase = problem{http.StatusServiceUnavailable, "The database is not there yet. The page loads again in a moment."}
)

// problemOf is what a page shows of an error. What the database says may hold what others have
// stored, so it goes to the log alone.
func (c *Console) problemOf(err error) problem {
	var p problem
	pg := &pgconn.PgError{}
	errors.As(err, &pg)
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, audit.ErrNotFound):
		return problem{http.StatusNotFound, "No charge, refund or idempotency key has this name."}
	case errors.Is(err, deadletter.ErrNoMessage):
		return problem{http.StatusNotFound, "There is no such message."}
	case pg.Code == "22021": // character_not_in_repertoire
		return problem{http.StatusBadRequest, "The request holds bytes that are no text."}
	case pg.Code == "57014": // query_canceled
		return problem{http.StatusGatewayTimeout, "The database took too long to answer. Search by an exact name."}
	}
	c.Log.Warn("a page of the console failed", "error", err)
	return problem{http.StatusServiceUnavailable, "The database does not answer, or refuses what the page reads. The console's log says why."}
}

// view is what every page gets.
type view struct {
	Page, Section string // Page is the title; Section is the path of a link to the page, or to the page above
	Tick          *tick
	Data          any
}

// render is a page that shows data, or in its place what an error says.
func (c *Console) render(r *http.Request, name string, data any, err error) page {
	status := http.StatusOK
	if err != nil {
		p := c.problemOf(err)
		name, data, status = "Error", p, p.Status
	}
	var b bytes.Buffer
	v := view{Page: name, Section: "/" + strings.SplitN(r.URL.Path+"/", "/", 3)[1], Tick: c.tick(r.Context()), Data: data}
	if err := c.pages[name].ExecuteTemplate(&b, "layout.html", v); err != nil {
		c.Log.Error("a page is not rendered", "page", name, "error", err)
		return page{status: http.StatusInternalServerError}
	}
	return page{status, b.Bytes()}
}

const (
	keptFor   = time.Second
	mostPages = 100 // that are kept
	pageTime  = 30 * time.Second
)

// kept is a value that is read again when it is a second old.
type kept[T any] struct {
	mu    sync.Mutex // while it is read
	at    time.Time
	value T
}

func (k *kept[T]) get(now func() time.Time, read func(last T) T) T {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now().Sub(k.at) >= keptFor {
		k.value = read(k.value)
		k.at = now()
	}
	return k.value
}

// page is what is sent to browsers.
type page struct {
	status int
	text   []byte
}

// serve sends a page. All requests for one address get one answer for a second, so what the first
// of them reads does not end with its browser.
func (c *Console) serve(w http.ResponseWriter, r *http.Request, name string, read func(*http.Request) (any, error)) {
	k := &kept[page]{}
	if known, ok, _ := c.recent.PeekOrAdd(r.URL.RequestURI(), k); ok {
		k = known
	}
	k.get(c.Now, func(page) page {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), pageTime)
		defer cancel()
		r = r.WithContext(ctx)
		data, err := any(nil), error(errNoDatabase)
		if c.db.Load() != nil {
			data, err = read(r)
		}
		return c.render(r, name, data, err)
	}).send(w)
}

func (p page) send(w http.ResponseWriter) {
	if p.status == http.StatusServiceUnavailable {
		w.Header().Set("Refresh", "2")
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(p.status)
	_, _ = w.Write(p.text) // to a browser that may have gone
}

// refuse answers with a page that shows an error.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, err error) {
	c.render(r, "", nil, err).send(w)
}

// Settings are read from the environment.
type Settings struct {
	// Loopback address on which the console listens. payonce demo takes another port where this one
	// is in use.
	Addr string `env:"CONSOLE_ADDR" envDefault:"127.0.0.1:8088"`
}

// Check refuses an address that other machines reach.
func (s Settings) Check() error {
	if program.Local(s.Addr) {
		return nil
	}
	return fmt.Errorf("CONSOLE_ADDR is %s, but the console asks for no key, so it listens on a loopback address alone: "+
		"leave it at 127.0.0.1:8088, and forward that port with ssh -L 8088:127.0.0.1:8088 HOST or kubectl port-forward POD 8088", s.Addr)
}
