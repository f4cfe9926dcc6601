package httpapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

// Database is what the API uses of the database. It has no commit: a write is a
// tenant's. A read outside a tenant concerns no merchant, calls a function that is made
// for it, or runs as the merchant of an API key (readSessions).
type Database interface {
	postgres.Querier
	Tenant(merchant string) *postgres.DB
	Read(ctx context.Context, b *pgx.Batch) error
}

// credentials are the API key of a request, where it comes from, and its idempotency key.
type credentials struct {
	apiKey string
	from   netip.Addr
	key    idempotency.Key // without its scope, which is not known yet; zero if there is none
}

// recentKey is what is remembered of an API key that was valid lately.
type recentKey struct {
	merchant string
	noted    time.Time // the last use that uses holds, or that was recorded
}

// session is what was read for credentials. The merchant has no ID if the API key is not
// valid.
type session struct {
	merchant merchants.Merchant
	keyID    string // of the API key: its prefix, which is not secret
	key      idempotency.KeyState
	readAt   time.Time
}

const (
	sessionKey = "session" // in echo's context

	// recentKeys bounds the memory for API keys to about two megabytes.
	recentKeys = 10_000

	// maxKeyAge bounds for how long the state of an idempotency key counts: a body may
	// arrive late, and the answer may have expired by then.
	maxKeyAge = time.Second
)

// authenticate adds the session of the API key to requests under /v1, whether the route
// exists or not. A missing, malformed, unknown, expired or revoked key has the same answer,
// and so has one that is not accepted from the client's address. Scopes are the route's concern (needs).
func (a *API) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !strings.HasPrefix(c.Request().URL.Path, "/v1/") || isEvent(c) {
			return next(c)
		}
		given := c.Request().Header.Values(echo.HeaderAuthorization)
		if len(given) != 1 { // a proxy may have checked the other one
			return merchants.ErrUnauthorized
		}
		scheme, key, _ := strings.Cut(given[0], " ")
		if !strings.EqualFold(scheme, "Bearer") || key == "" {
			return merchants.ErrUnauthorized
		}
		s, err := a.authenticateKey(c.Request().Context(), c.Response().Header(), credentials{apiKey: strings.TrimSpace(key), from: clientOf(c), key: a.headerKeyOf(c)})
		if err != nil {
			return err
		}
		c.Set(sessionKey, s)
		return next(c)
	}
}

// authenticateKey reads the session of credentials and counts it against the merchant's rate. An API
// key that was valid lately is refused beyond that rate before it is read, so a flood of
// requests with one key costs no reads. Every other read is of the database: a key that
// is revoked or has expired is refused from the next request on.
//
// An address that has sent too many wrong keys is refused with errGuessing. That holds for no
// key that was valid lately: a guessing neighbour behind the same proxy locks no other caller out.
func (a *API) authenticateKey(ctx context.Context, answer http.Header, k credentials) (session, error) {
	id := sha256.Sum256([]byte(k.apiKey))
	known, recent := a.recent.Get(id)
	switch {
	case recent && !a.limits.rates.allow(answer, known.merchant, a.Now()):
		return session{}, errRate
	case !recent && a.guesses.Refuses(k.from.String(), a.Now()):
		return session{}, errGuessing
	}
	s, err := a.read(ctx, k, known.merchant, recent)
	if errors.Is(err, merchants.ErrUnauthorized) {
		a.recent.Remove(id)
		a.guesses.Count(k.from.String(), a.Now())
	}
	if err != nil {
		return session{}, err
	}
	a.recent.Add(id, recentKey{s.merchant.ID, a.noteUse(id, known.noted)})
	if !recent && !a.limits.rates.allow(answer, s.merchant.ID, a.Now()) {
		return session{}, errRate
	}
	return s, nil
}

// read reads the session of an API key, in a batch with others. Keys that were not valid
// lately have a queue of their own, which asks for no idempotency key.
func (a *API) read(ctx context.Context, k credentials, merchant string, recent bool) (session, error) {
	queue, sessions := a.limits.recent, a.sessions
	switch {
	case !recent:
		queue, sessions, k.key = a.limits.notRecent, a.notRecentSessions, idempotency.Key{}
	case k.key.Value != "":
		sessions = a.keyedSessions
		if reading := a.Intake.Receiver.Reading; reading != nil {
			defer reading()()
		}
	}
	leave, err := queue.enter(merchant)
	if err != nil {
		return session{}, err
	}
	defer leave()
	s, err := sessions.Lookup(ctx, k)
	switch {
	case err != nil:
		return session{}, fmt.Errorf("authenticate: %w", err)
	case s.merchant.ID == "" || !s.merchant.Accepts(k.from):
		return session{}, merchants.ErrUnauthorized
	}
	s.keyID, s.readAt = merchants.Prefix(k.apiKey), a.Now()
	return s, nil
}

// newSessions batches reads of sessions, most batches at a time. Nothing is cached. If a
// lock on idempotency keys holds a batch up, it is read without them: their requests then
// read them individually, and wait there.
func newSessions(db Database, most int) *postgres.Reads[credentials, session] {
	return postgres.NewReads(most, func(ctx context.Context, batch []credentials) ([]session, error) {
		all, err := readSessions(ctx, db, batch)
		if groupcommit.OutcomeOf(err) != groupcommit.Locked || batch[0].key == (idempotency.Key{}) {
			return all, err
		}
		for i := range batch {
			batch[i].key = idempotency.Key{}
		}
		return readSessions(ctx, db, batch)
	})
}

// readSessions reads in one round trip, for each API key, its merchant and, as that
// merchant, the idempotency keys that come with it.
func readSessions(ctx context.Context, db Database, batch []credentials) ([]session, error) {
	all := make([]session, len(batch))
	byKey := map[string][]*session{}
	for i, k := range batch {
		all[i].key.Key = k.key
		byKey[k.apiKey] = append(byKey[k.apiKey], &all[i])
	}
	b := &pgx.Batch{}
	for apiKey, same := range byKey {
		merchants.QueueMerchant(b, apiKey, &same[0].merchant)
		var keys []*idempotency.KeyState
		for _, s := range same {
			if s.key.Key != (idempotency.Key{}) {
				keys = append(keys, &s.key)
			}
		}
		if len(keys) > 0 {
			idempotency.QueueKeys(b, keys, postgres.TenantSetting)
		}
	}
	err := db.Read(ctx, b)
	for _, same := range byKey {
		for _, s := range same[1:] {
			s.merchant = same[0].merchant
		}
	}
	return all, err
}

// headerKeyOf is the idempotency key of a request whose handler will find the same one,
// else zero. It decides only when the key is read.
func (a *API) headerKeyOf(c echo.Context) idempotency.Key {
	if c.Request().Method != http.MethodPost || !slices.Contains(keyedPaths, c.Path()) || a.NaturalKeys || a.Intake.Receiver.Cache != nil {
		return idempotency.Key{}
	}
	key, err := idempotency.ParseKey(c.Request().Header.Values(headerKey))
	if err != nil {
		return idempotency.Key{}
	}
	return idempotency.Key{Operation: operation(c), Value: storedKey(key)}
}

func sessionOf(c echo.Context) session {
	s, _ := c.Get(sessionKey).(session) // authenticate sets it for every route that asks
	return s
}

func merchantOf(c echo.Context) merchants.Merchant { return sessionOf(c).merchant }

// knownKeyOf is the state of a request's idempotency key if it was read a moment ago.
func (a *API) knownKeyOf(c echo.Context) idempotency.KeyState {
	if s := sessionOf(c); a.Now().Sub(s.readAt) <= maxKeyAge {
		return s.key
	}
	return idempotency.KeyState{}
}

// tenant is the database as the caller's merchant sees it.
func (a *API) tenant(c echo.Context) *postgres.DB { return a.DB.Tenant(merchantOf(c).ID) }

// needs refuses a request whose API key lacks the scope of the route, if that has one,
// before the body is read and before any stored answer counts: the refusal is not stored
// and leaves the key free.
func needs(scope merchants.Scope) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if scope == "" || merchantOf(c).May(scope) {
				return next(c)
			}
			c.Response().Header().Set(echo.HeaderWWWAuthenticate, fmt.Sprintf("Bearer error=%q, scope=%q", "insufficient_scope", scope))
			return errForbidden.because("the API key lacks the scope " + string(scope) + ": send the request with one that has it")
		}
	}
}
