package console

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/payonce/payonce/internal/guess"
	"github.com/payonce/payonce/internal/merchants"
)

const (
	cookieName = "payonce_console"
	idLength   = 26 // of rand.Text
	idleTime   = time.Hour
	longest    = 12 * time.Hour
	askAfter   = 30 * time.Second // that the key was last found valid
	mostLogins = 1000
	demoActor  = "console:demo"
)

var (
	errNoKey    = errors.New("no operator has signed in")
	errWrongKey = problem{http.StatusForbidden, "The key is not valid, or not an operator's. payonce keys create --scopes operator makes one."}
	errGuessing = problem{http.StatusTooManyRequests, "Too many wrong keys came from this address. Wait a minute."}
)

// logins are the operators who have signed in, by the id of their browser.
type logins struct {
	guesses *guess.Limiter
	known   *lru.Cache[string, *login]
}

type login struct {
	key, actor string
	began      time.Time

	mu          sync.Mutex
	used, asked time.Time // asked: when the key was last found valid
}

func newLogins(guesses int) *logins {
	known, err := lru.New[string, *login](mostLogins)
	if err != nil {
		panic(err) // only a size below one is refused
	}
	return &logins{guess.New(guesses), known}
}

type browserKey struct{} // of the browser's id in a request's context

// identified returns the request with the id of its browser, which gets one if it has none.
func (c *Console) identified(w http.ResponseWriter, r *http.Request) *http.Request {
	given, err := r.Cookie(c.cookie())
	if err != nil || len(given.Value) != idLength {
		given = &http.Cookie{Value: c.newID(w)}
	}
	return r.WithContext(context.WithValue(r.Context(), browserKey{}, given.Value))
}

func browser(r *http.Request) string {
	id, _ := r.Context().Value(browserKey{}).(string)
	return id
}

// cookie is the name of the cookie. With TLS it is one that no other host and no page without TLS
// can set.
func (c *Console) cookie() string {
	if c.TLS {
		return "__Host-" + cookieName
	}
	return cookieName
}

// newID gives a browser another id.
func (c *Console) newID(w http.ResponseWriter) string {
	id := rand.Text()
	http.SetCookie(w, &http.Cookie{
		Name: c.cookie(), Value: id, Path: "/", HttpOnly: true, Secure: c.TLS, SameSite: http.SameSiteStrictMode,
	})
	return id
}

// token is what the forms of a browser carry.
func (c *Console) token(id string) string {
	mac := hmac.New(sha256.New, c.secret)
	mac.Write([]byte(id))
	return hex.EncodeToString(mac.Sum(nil))
}

// operator returns the name of the operator who sends a request, else errNoKey. The key is asked
// for anew every half minute, so one that was revoked is refused soon.
func (c *Console) operator(r *http.Request) (string, error) { return c.session(r, true) }

// session is operator for a request that may be no use of the session: then its idle time goes on.
func (c *Console) session(r *http.Request, use bool) (string, error) {
	if c.Open {
		return demoActor, nil
	}
	l, ok := c.logins.known.Get(browser(r))
	if !ok {
		return "", errNoKey
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := c.Now()
	err := error(errWrongKey)
	if now.Sub(l.used) < idleTime && now.Sub(l.began) < longest {
		if err = nil; now.Sub(l.asked) >= askAfter {
			err = c.ask(r.Context(), l.key, addressOf(r))
		}
	}
	switch {
	case errors.Is(err, errWrongKey):
		c.logins.known.Remove(browser(r))
		return "", errNoKey
	case err != nil:
		return "", err
	}
	if use {
		l.used = now
	}
	if now.Sub(l.asked) >= askAfter {
		l.asked = now
	}
	return l.actor, nil
}

// ask returns errWrongKey for a key that does not open the console.
func (c *Console) ask(ctx context.Context, key, from string) error {
	db := c.db.Load()
	if db == nil {
		return errNoDatabase
	}
	m, err := merchants.Authenticate(ctx, db, key)
	addr, _ := netip.ParseAddr(from)
	if errors.Is(err, merchants.ErrUnauthorized) || err == nil && (!m.May(merchants.Operator) || !m.Accepts(addr.Unmap().WithZone(""))) {
		return errWrongKey
	}
	return err
}

func addressOf(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return host
}

// login begins a session under a new id. A wrong key counts as a guess of the address.
func (c *Console) login(w http.ResponseWriter, r *http.Request, _ string) (string, error) {
	from, key := addressOf(r), strings.TrimSpace(r.PostForm.Get("key"))
	if c.logins.guesses.Refuses(from, c.Now()) {
		return "", errGuessing
	}
	if err := c.ask(r.Context(), key, from); err != nil {
		if errors.Is(err, errWrongKey) {
			c.logins.guesses.Count(from, c.Now())
			c.Log.WarnContext(r.Context(), "a key was refused", "client", from)
		}
		return "", err
	}
	if err := merchants.RecordUses(r.Context(), c.db.Load(), [][]byte{hashOf(key)}); err != nil {
		return "", err
	}
	now, actor := c.Now(), "console:"+merchants.Prefix(key)
	c.logins.known.Add(c.newID(w), &login{key: key, actor: actor, began: now, used: now, asked: now})
	c.Log.InfoContext(r.Context(), "an operator has signed in", "operator", actor, "client", from)
	return "/", nil
}

func (c *Console) logout(w http.ResponseWriter, r *http.Request, _ string) (string, error) {
	c.logins.known.Remove(browser(r))
	c.newID(w)
	return "/login", nil
}
