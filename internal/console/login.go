package console

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/payonce/payonce/internal/merchants"
)

const (
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

// session is an operator who has signed in.
type session struct {
	key, actor string
	began      time.Time

	mu          sync.Mutex
	used, asked time.Time // asked: when the key was last found valid
}

// cookie is the name of the cookie. With TLS it is one that no other host and no page without TLS
// can set.
func (c *Console) cookie() string {
	return map[bool]string{true: "__Host-"}[c.tls()] + "payonce_console"
}

// newID gives a browser another id.
func (c *Console) newID(w http.ResponseWriter) *http.Cookie {
	id := &http.Cookie{
		Name: c.cookie(), Value: rand.Text(), Path: "/", HttpOnly: true, Secure: c.tls(), SameSite: http.SameSiteStrictMode,
	}
	http.SetCookie(w, id)
	return id
}

// browser is the id of the browser that sends a request.
func (c *Console) browser(r *http.Request) string {
	id, _ := r.Cookie(c.cookie()) // guard gives each request one
	return id.Value
}

// token is what the forms of a browser carry.
func (c *Console) token(r *http.Request) string {
	mac := hmac.New(sha256.New, c.secret)
	mac.Write([]byte(c.browser(r)))
	return hex.EncodeToString(mac.Sum(nil))
}

// operator returns the name of the operator who sends a request, else errNoKey. The key is asked
// for anew every half minute, so one that was revoked is refused soon.
func (c *Console) operator(r *http.Request) (string, error) {
	if c.Access == "open" {
		return demoActor, nil
	}
	s, ok := c.sessions.Get(c.browser(r))
	if !ok {
		return "", errNoKey
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := c.Now(), error(nil)
	if now.Sub(s.used) >= idleTime || now.Sub(s.began) >= longest {
		err = errWrongKey
	} else if now.Sub(s.asked) >= askAfter {
		if err = c.ask(r.Context(), s.key); err == nil {
			s.asked = now
		}
	}
	if errors.Is(err, errWrongKey) {
		c.sessions.Remove(c.browser(r))
		err = errNoKey
	}
	s.used = now
	return s.actor, err
}

// ask returns errWrongKey for a key that does not open the console.
func (c *Console) ask(ctx context.Context, key string) error {
	db := c.db.Load()
	if db == nil {
		return errNoDatabase
	}
	m, err := merchants.Authenticate(ctx, db, key)
	if errors.Is(err, merchants.ErrUnauthorized) || err == nil && !m.May(merchants.Operator) {
		return errWrongKey
	}
	return err
}

// login begins a session under a new id. A wrong key counts as a guess of the client.
func (c *Console) login(r request) (any, error) {
	from, key := c.client(r.Request), strings.TrimSpace(r.PostForm.Get("key"))
	if c.guesses.Refuses(from, c.Now()) {
		return nil, errGuessing
	}
	if err := c.ask(r.Context(), key); err != nil {
		if errors.Is(err, errWrongKey) {
			c.guesses.Count(from, c.Now())
			c.Log.WarnContext(r.Context(), "a key was refused", "client", from)
		}
		return nil, err
	}
	now, actor := c.Now(), "console:"+merchants.Prefix(key)
	c.sessions.Add(c.newID(r.w).Value, &session{key: key, actor: actor, began: now, used: now, asked: now})
	c.Log.InfoContext(r.Context(), "an operator has signed in", "operator", actor, "client", from)
	return "/", nil
}

func (c *Console) logout(r request) (any, error) {
	c.sessions.Remove(c.browser(r.Request))
	c.newID(r.w)
	return "/login", nil
}
