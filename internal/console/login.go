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
	askAfter   = 30 * time.Second // that the key was last asked for
	mostLogins = 1000
	demoActor  = "console:demo"
)

// visitor is a browser. Actor is the operator's name in the audit log; "" for none.
type visitor struct{ id, Actor string }

type visitorKey struct{} // in a request's context

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

	mu    sync.Mutex
	used  time.Time
	asked time.Time // when the key was last found valid
}

func newLogins(guesses *guess.Limiter) *logins {
	known, err := lru.New[string, *login](mostLogins)
	if err != nil {
		panic(err) // only a size below one is refused
	}
	return &logins{guesses, known}
}

// visit returns the visitor of a request. A browser without an id gets one.
func (c *Console) visit(w http.ResponseWriter, r *http.Request) visitor {
	if v, ok := r.Context().Value(visitorKey{}).(visitor); ok {
		return v
	}
	var v visitor
	if given, err := r.Cookie(c.cookie()); err == nil && len(given.Value) == idLength {
		v.id = given.Value
	} else {
		v.id = c.newID(w)
	}
	v.Actor, _ = c.operator(r) // "" where the operator is not known any more
	return v
}

// cookie is the name of the cookie. With TLS it is one that no other host and no page without TLS
// can set.
func (c *Console) cookie() string {
	if c.TLS {
		return "__Host-" + cookieName
	}
	return cookieName
}

func (c *Console) newID(w http.ResponseWriter) string {
	id := rand.Text()
	http.SetCookie(w, &http.Cookie{
		Name: c.cookie(), Value: id, Path: "/", HttpOnly: true, Secure: c.TLS, SameSite: http.SameSiteStrictMode,
	})
	return id
}

// token is what the forms of a visitor carry.
func (c *Console) token(id string) string {
	mac := hmac.New(sha256.New, c.secret)
	mac.Write([]byte(id))
	return hex.EncodeToString(mac.Sum(nil))
}

func (c *Console) genuine(v visitor, token string) bool {
	return hmac.Equal([]byte(c.token(v.id)), []byte(token))
}

// operator returns the name of the operator who sends a request, else errNoKey. The key is asked
// for anew every half minute, so a key that was revoked is refused soon.
func (c *Console) operator(r *http.Request) (string, error) {
	if c.Options.Open {
		return demoActor, nil
	}
	given, err := r.Cookie(c.cookie())
	if err != nil {
		return "", errNoKey
	}
	l, ok := c.logins.known.Get(given.Value)
	if !ok {
		return "", errNoKey
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := c.Now()
	if now.Sub(l.used) > idleTime || now.Sub(l.began) > longest {
		c.logins.known.Remove(given.Value)
		return "", errNoKey
	}
	l.used = now
	if now.Sub(l.asked) < askAfter {
		return l.actor, nil
	}
	if err := c.ask(r.Context(), l.key, addressOf(r)); errors.Is(err, errWrongKey) {
		c.logins.known.Remove(given.Value)
		return "", errNoKey
	} else if err != nil {
		return "", err
	}
	l.asked = now
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
	switch {
	case errors.Is(err, merchants.ErrUnauthorized):
		return errWrongKey
	case err != nil:
		return err
	case !m.May(merchants.Operator) || !m.Accepts(addr.Unmap().WithZone("")):
		return errWrongKey
	}
	return nil
}

func addressOf(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return host
}

func (c *Console) loginPage(*http.Request) (any, error) { return nil, nil }

// login begins a session under a new id. A wrong key counts as a guess of the address.
func (c *Console) login(w http.ResponseWriter, r *http.Request, _ visitor) (string, error) {
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
	hash := sha256.Sum256([]byte(key))
	if err := merchants.RecordUses(r.Context(), c.db.Load(), [][]byte{hash[:]}); err != nil {
		return "", err
	}
	now, actor := c.Now(), "console:"+merchants.Prefix(key)
	c.logins.known.Add(c.newID(w), &login{key: key, actor: actor, began: now, used: now, asked: now})
	c.Log.InfoContext(r.Context(), "an operator has signed in", "operator", actor, "client", from)
	return "/", nil
}

func (c *Console) logout(w http.ResponseWriter, _ *http.Request, v visitor) (string, error) {
	c.logins.known.Remove(v.id)
	c.newID(w)
	return "/login", nil
}
