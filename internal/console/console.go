// Package console is the web console: it shows the running service, the history of a charge and
// dead letters, and stores what an operator decides about these.
//
// # Guarantees
//
//   - Live pages cost the database at most three statements a second, however many are open, and
//     none but the doorbell's while none is.
//   - Without an operator's key, which is asked for again at most half a minute after it was
//     revoked, no page but the login is shown (unless Settings.Access is open).
//   - What an operator does is stored with the operator's name in the transaction that does it.
//   - A page names no other host, runs no script but its own file, and shows what was stored by
//     others as text.
//
// # Limits
//
// Sessions are in memory: they end with the process. A page of a charge reads what payonce
// timeline reads.
package console

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/time/rate"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/clientaddr"
	"github.com/payonce/payonce/internal/console/lanes"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/human"
	"github.com/payonce/payonce/internal/keylimit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/outbox"
)

// Options configure a console.
type Options struct {
	Settings

	Actions []Action // of the lab; none where nothing may be broken
	// Do takes an action by its name. It says in a sentence what it did, and before how far it has
	// come. Of the guard lab it also returns what payonce demo --break prints as JSON.
	Do  func(ctx context.Context, name string, progress func(string)) (said string, finding []byte, err error)
	Log *slog.Logger
	Now func() time.Time
}

// Console serves the pages.
type Console struct {
	Options

	secret   []byte // of CSRF tokens
	db       atomic.Pointer[postgres.DB]
	bell     *outbox.Doorbell
	client   func(*http.Request) string // its address
	guesses  *keylimit.Limiter
	sessions *lru.Cache[string, *session] // by the ids of their browsers
	pages    map[string]*template.Template
	closing  chan struct{} // closed when the server stops, which live pages would hold up

	budget  *rate.Limiter // of live pages and the audit
	readers atomic.Int64  // live pages that are open
	newest  atomic.Pointer[tick]
	audited atomic.Pointer[audited]

	acting  sync.Mutex // while an action of the lab is in flight
	labbing sync.Mutex // while labbed is changed
	labbed  atomic.Pointer[laboratory]
}

//go:embed assets
var assets embed.FS

const maxForm = 16 << 10

// policy permits the console's own files, and of styles in a page those of a drawing.
var policy = fmt.Sprintf("default-src 'none'; script-src 'self'; style-src 'self' 'sha256-%s'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
	base64.StdEncoding.EncodeToString(hashOf(lanes.Style)))

func hashOf(text string) []byte {
	hash := sha256.Sum256([]byte(text))
	return hash[:]
}

var functions = template.FuncMap{
	"short": human.Span, "plural": human.Plural, "money": human.Money, "dict": dict, "lanes": lanes.Draw,
	"clock": func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
	"when":  func(t time.Time) string { return t.UTC().Format(time.DateTime) },
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
	sessions, _ := lru.New[string, *session](mostLogins) // it refuses a size below one alone
	c := &Console{
		Options: o, secret: []byte(rand.Text()), bell: doorbell.New(o.Log, doorbell.Listens), client: clientaddr.Client(o.TrustedProxies),
		guesses: keylimit.New(o.AuthenticationFailures), sessions: sessions, pages: map[string]*template.Template{}, closing: make(chan struct{}),
		budget: rate.NewLimiter(perSecond, 1),
	}
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(assets, "assets/layout.html", "assets/parts.html"))
	for _, page := range []string{"Flow", "Charges", "Charge", "Dead letters", "Crash lab", "Learn", "Sign in", "Error"} {
		c.pages[page] = template.Must(template.Must(layout.Clone()).ParseFS(assets, "assets/"+strings.ReplaceAll(strings.ToLower(page), " ", "-")+".html"))
	}
	c.audited.Store(&audited{})
	c.newest.Store(&tick{audited: &audited{}, over: make(chan struct{}), Err: "The database has not been read yet."})
	c.labbed.Store(&laboratory{Actions: o.Actions})
	return c
}

// render is a part of a page, nil where it cannot be rendered.
func (c *Console) render(page, part string, data any) []byte {
	var b bytes.Buffer
	if err := c.pages[page].ExecuteTemplate(&b, part, data); err != nil {
		c.Log.Error("a page is not rendered", "page", page, "part", part, "error", err)
		return nil
	}
	return b.Bytes()
}

// Run opens a database as the role payonce_console and reads it for live pages until ctx ends.
// The application's name, the role and the limits of o are ignored.
func (c *Console) Run(ctx context.Context, url string, o postgres.Options) error {
	o.Application, o.Role, o.MaxConns, o.StatementTimeout = "payonce-console", postgres.RoleConsole, 6, 30*time.Second
	db, err := program.Open(ctx, c.Log, url, o)
	if err != nil {
		return err
	}
	defer db.Close()
	o.MaxConns, o.WholeTables = 1, true
	whole, err := program.Open(ctx, c.Log, url, o) // for the audit
	if err != nil {
		return err
	}
	defer whole.Close()
	c.db.Store(db)
	defer c.db.Store(nil)
	c.read(ctx, db, whole)
	return nil
}

// Serve serves the pages on a listener until ctx ends.
func (c *Console) Serve(ctx context.Context, listener net.Listener) error {
	s := &http.Server{
		Handler:           c.Handler(), //nolint:contextcheck // a request has a context of its own
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10,
	}
	s.RegisterOnShutdown(func() { close(c.closing) })
	return program.ServeListener(ctx, c.Log, listener, s)
}

// Handler serves the pages.
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, name := range []string{"console.css", "console.js", "icon.svg"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, assets, "assets/"+name) })
	}
	mux.HandleFunc("GET /live", c.stream)
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, r *http.Request) { c.show(w, r, "Sign in", nil, nil) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { c.show(w, r, "", nil, errNoPage) })
	for pattern, h := range map[string]struct {
		page   string // "" of an action, which returns the path of the page that shows it
		answer func(request) (any, error)
	}{
		"GET /{$}": {"Flow", c.flow}, "GET /charges": {"Charges", c.charges}, "GET /charges/{id}": {"Charge", c.charge},
		"GET /dead-letters": {"Dead letters", c.letters}, "GET /dead-letters/{n}": {"Dead letters", c.letter},
		"GET /lab": {"Crash lab", c.lab}, "GET /learn": {"Learn", c.learn},
		"POST /login": {"", c.login}, "POST /logout": {"", c.logout}, "POST /lab": {"", c.act},
		"POST /dead-letters/{n}/retry":   {"", c.decide(inbox.Retry, false)},
		"POST /dead-letters/{n}/discard": {"", c.decide(inbox.Discard, true)},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			data, err := c.answer(w, r, h.answer)
			if err != nil || h.page != "" {
				c.show(w, r, h.page, data, err)
				return
			}
			http.Redirect(w, r, fmt.Sprint(data), http.StatusSeeOther)
		})
	}
	return c.guard(mux)
}

// request is one of an operator, "" for a login.
type request struct {
	*http.Request

	w     http.ResponseWriter
	actor string
}

// answer answers a request that needs the database. Only a form that this console gave to this
// browser is accepted.
func (c *Console) answer(w http.ResponseWriter, r *http.Request, answer func(request) (any, error)) (any, error) {
	if r.Method == http.MethodPost && !hmac.Equal([]byte(c.token(r)), []byte(r.PostForm.Get("token"))) {
		return nil, errForeign
	}
	if c.db.Load() == nil {
		return nil, errNoDatabase
	}
	actor, err := c.operator(r)
	if err != nil && (r.URL.Path != "/login" || !errors.Is(err, errNoKey)) {
		return nil, err
	}
	return answer(request{r, w, actor})
}

// guard refuses hosts that are not the console's (DNS rebinding) and requests of other sites,
// and sets the headers of every answer.
func (c *Console) guard(next http.Handler) http.Handler {
	sites := http.NewCrossOriginProtection()
	sites.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.show(w, r, "", nil, errForeign) }))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": policy, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			w.Header().Set(name, value)
		}
		if c.tls() {
			w.Header().Set("Strict-Transport-Security", "max-age=31536000")
		}
		if !slices.ContainsFunc(c.Hosts, func(known string) bool { return strings.EqualFold(strings.TrimSpace(known), clientaddr.Host(r)) }) {
			http.Error(w, "The console is not served under this host: see CONSOLE_HOSTS.", http.StatusMisdirectedRequest)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if _, err := r.Cookie(c.cookie()); err != nil {
			r.AddCookie(c.newID(w))
		}
		err := r.ParseForm()
		if text := r.URL.Path + fmt.Sprint(r.Form); err != nil || !utf8.ValidString(text) || strings.ContainsRune(text, 0) { // which the database cannot hold
			c.show(w, r, "", nil, problem{http.StatusBadRequest, "The request holds bytes that are no text."})
			return
		}
		sites.Handler(next).ServeHTTP(w, r)
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
	errForeign    = problem{http.StatusForbidden, "The form was not sent from this console, or has expired: go back, load the page again, and send it once more."}
	errNoDatabase = problem{http.StatusServiceUnavailable, "The database is not there yet. The page loads again in a moment."}
)

// problemOf is what a page shows of an error. What the database says may hold what others have
// stored, so it goes to the log alone.
func (c *Console) problemOf(err error) problem {
	var p problem
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, audit.ErrNotFound):
		return problem{http.StatusNotFound, "No charge, refund or idempotency key has this name."}
	case errors.Is(err, inbox.ErrNoMessage):
		return problem{http.StatusNotFound, "There is no such message."}
	case errors.Is(err, inbox.ErrNotDeadLetter):
		return problem{http.StatusConflict, "The message is not a dead letter any more: another operator may have decided about it."}
	case errors.As(err, &pg) && pg.Code == "57014":
		return problem{http.StatusGatewayTimeout, "The database took too long to answer. Search by an exact name."}
	}
	c.Log.Warn("a page of the console failed", "error", err)
	return problem{http.StatusServiceUnavailable, "The database does not answer, or refuses what the page reads. The console's log says why."}
}

// view is what every page gets.
type view struct {
	Page, Section string // Page is the title; Section is the path of a link to the page, or to the page above
	Actor, Token  string
	Open          bool
	Tick          *tick // nil for others than operators
	Data          any
}

// show writes a page, or in its place what an error says. Nothing of it is stored.
func (c *Console) show(w http.ResponseWriter, r *http.Request, page string, data any, err error) {
	if errors.Is(err, errNoKey) {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	status := http.StatusOK
	if err != nil {
		p := c.problemOf(err)
		if page, data, status = "Error", p, p.Status; status == http.StatusServiceUnavailable {
			w.Header().Set("Refresh", "2")
		}
	}
	v := view{Page: page, Section: "/" + strings.SplitN(r.URL.Path+"/", "/", 3)[1], Token: c.token(r), Open: c.Access == "open", Data: data}
	if actor, err := c.operator(r); err == nil {
		v.Actor, v.Tick = actor, c.newest.Load()
	}
	text := c.render(page, "layout.html", v)
	if text == nil {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text) // to a browser that may have gone
}
