package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/ledger"
)

// Headers of keyed requests and answers.
const (
	headerKey        = "Idempotency-Key"
	headerExpires    = "Idempotency-Expires"
	headerReplayed   = "Idempotent-Replayed"
	headerRetryAfter = "Retry-After"
	headerPrefer     = "Prefer"
	headerLink       = "Link"
)

// keyed answers requests under their idempotency keys by what accept makes of them. Body and charge id
// are judged before the key: a request that is refused for them leaves it free. A request is
// fingerprinted by method, path, merchant and typed body, so that white space, the order of members
// and escapes do not count.
func keyed[T any](
	a *API, validate func(T) error,
	accept func(ctx context.Context, r intake.Request, id string, body T) (idempotency.Result, error),
) echo.HandlerFunc {
	return func(c echo.Context) error {
		body, err := decode(c, validate)
		if err != nil {
			return err
		}
		id, err := chargeID(c)
		if err != nil {
			return err
		}
		value, err := idempotency.ParseKey(c.Request().Header.Values(headerKey))
		if err != nil {
			return err
		}
		h, e := c.Response().Header(), exchangeOf(c)
		h.Set(headerKey, value)
		e.Result = KeyFirst                // unless the answer is another
		canonical, _ := json.Marshal(body) // it was decoded from JSON: it cannot fail
		r := a.request(c, operation(c), storedKey(value), canonical)
		r.Wait, r.Refuse = preferredWait(c.Request().Header.Values(headerPrefer)), refuseOf(c)
		outcome, err := accept(c.Request().Context(), r, id, body)
		if !outcome.ExpiresAt.IsZero() {
			h.Set(headerExpires, outcome.ExpiresAt.UTC().Format(http.TimeFormat))
		}
		maps.Copy(h, outcome.Header) // of an expired answer its Location
		if errors.Is(err, idempotency.ErrReused) {
			return reused(outcome.Differs)
		}
		if err != nil {
			return err
		}
		if outcome.Replayed {
			h.Set(headerReplayed, "true")
			e.Result = KeyReplayed
		}
		return c.Blob(outcome.StatusCode, outcome.Header.Get(echo.HeaderContentType), outcome.Body)
	}
}

// createCharge is POST /v1/charges.
func (a *API) createCharge(ctx context.Context, r intake.Request, _ string, body intake.Charge) (idempotency.Result, error) {
	return a.Intake.AcceptCharge(ctx, r, body)
}

// cancelCharge is POST /v1/charges/{id}/cancel. Its body is empty or {}.
func (a *API) cancelCharge(ctx context.Context, r intake.Request, id string, _ struct{}) (idempotency.Result, error) {
	return a.Intake.CancelCharge(ctx, r, id)
}

// chargeID is the id in the path, "" where there is none. What cannot be one is refused before
// anything is stored about it.
func chargeID(c echo.Context) (string, error) {
	id := param(c, "id")
	if !utf8.ValidString(id) || hasNUL(id) || holdsCard(id) {
		return "", ledger.ErrNotFound
	}
	return id, nil
}

// param is a part of the path, decoded: %63h_1 is ch_1.
func param(c echo.Context, name string) string {
	raw := c.Param(name)
	// Without a raw path the router has matched what is decoded.
	if decoded, err := url.PathUnescape(raw); err == nil && c.Request().URL.RawPath != "" {
		return decoded
	}
	return raw
}

// request identifies a request by its key and its canonical body.
func (a *API) request(c echo.Context, operation, key string, canonical []byte) intake.Request {
	m := merchantOf(c)
	return intake.Request{
		Key: idempotency.Key{Scope: m.ID, Operation: operation, Value: key},
		Request: idempotency.Request{
			Fingerprint: idempotency.Fingerprint([]byte("v1"), []byte(c.Request().Method),
				[]byte(c.Request().URL.Path), []byte(m.ID), canonical),
			Canonical: canonical,
		},
		Merchant: m,
		ID:       c.Response().Header().Get(echo.HeaderXRequestID),
		APIKey:   exchangeOf(c).keyID,
		Client:   exchangeOf(c).client.String(),
		Metadata: a.Carry(c.Request().Context()),
	}
}

// operation is what a request under a key is for.
func operation(c echo.Context) string { return c.Request().Method + " " + c.Path() }

// longestPreferredWait bounds Prefer: wait=N.
const longestPreferredWait = 10 * time.Second

// waitPreference is wait=N in a list of preferences, with N in seconds.
var waitPreference = regexp.MustCompile(`(?i)(?:^|,)\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:[;,]|$)`)

// preferredWait reads Prefer: wait=N (RFC 7240, section 4.3), cut to ten seconds; 0 without any. As
// the RFC asks, a preference that is not understood is ignored; of several, the first counts.
func preferredWait(values []string) time.Duration {
	preference := waitPreference.FindStringSubmatch(strings.Join(values, ","))
	if preference == nil {
		return 0
	}
	seconds, _ := strconv.Atoi(preference[1]) // digits: it cannot fail
	return min(time.Duration(seconds)*time.Second, longestPreferredWait)
}

func problemAnswer(status int, document []byte) idempotency.Answer {
	return idempotency.Answer{StatusCode: status, Header: http.Header{echo.HeaderContentType: {problemType}}, Body: document}
}

// refuseOf returns the answer to what a charge refuses, as it is stored.
func refuseOf(c echo.Context) func(error) (idempotency.Answer, bool) {
	return func(err error) (idempotency.Answer, bool) {
		p, found := problemOf(err, ofCharges)
		p.RetryWith = newKey // under this one the answer stays
		return problemAnswer(p.Status, p.document(c)), found
	}
}

type keyView struct {
	Operation  string    `json:"operation"`
	StatusCode int       `json:"status_code"`
	Location   *string   `json:"location"` // null where the answer had none
	FirstSeen  time.Time `json:"first_seen"`
	ExpiresAt  time.Time `json:"expires_at"`
}

// getKey is GET /v1/idempotency-keys/{key}: what the caller's key led to, in each
// operation under which it was used.
func (a *API) getKey(c echo.Context) (any, error) {
	key, err := keyOfPath(c)
	if err != nil {
		return nil, errUnknownKey
	}
	var views []keyView
	for _, path := range keyedPaths {
		used := idempotency.Key{Scope: merchantOf(c).ID, Operation: http.MethodPost + " " + path, Value: storedKey(key)}
		state, err := a.Intake.Options.ReadKey(c.Request().Context(), a.tenant(c), used)
		if err != nil {
			return nil, err
		}
		if state.Found {
			v := keyView{Operation: used.Operation, StatusCode: state.StatusCode, FirstSeen: state.CreatedAt.UTC(), ExpiresAt: state.ExpiresAt.UTC()}
			if location := state.Header.Get(echo.HeaderLocation); location != "" {
				v.Location = &location
			}
			views = append(views, v)
		}
	}
	if len(views) == 0 {
		return nil, errUnknownKey
	}
	slices.SortStableFunc(views, func(a, b keyView) int { return a.FirstSeen.Compare(b.FirstSeen) })
	return map[string]any{"data": views}, nil
}

// abandonment is what became of a key that its owner has given up.
type abandonment struct {
	Abandoned  bool         `json:"abandoned"`        // no request under the key took effect, and none will
	StatusCode int          `json:"status_code"`      // of the answer under the key
	Charge     *domain.View `json:"charge,omitempty"` // that was accepted before
}

// abandonKey is POST /v1/idempotency-keys/{key}/abandon. A key that no charge was requested
// under is taken. A charge that was is canceled if it still can be. The client may ask again
// at any time: it gets what is true then.
func (a *API) abandonKey(c echo.Context) (any, error) {
	if _, err := decode[struct{}](c, nil); err != nil {
		return nil, err
	}
	given, err := keyOfPath(c)
	if err != nil {
		return nil, err
	}
	ctx := c.Request().Context()
	p := errKeyAbandoned
	p.Instance = chargesPath
	r := a.request(c, http.MethodPost+" "+chargesPath, storedKey(given), nil)
	err = a.Intake.Abandon(ctx, r, problemAnswer(p.Status, p.encoded()))
	if err == nil {
		return abandonment{Abandoned: true, StatusCode: p.Status}, nil
	}
	if !errors.Is(err, idempotency.ErrReused) && !errors.Is(err, idempotency.ErrExpired) {
		return nil, err
	}
	state, err := a.Intake.Options.ReadKey(ctx, a.tenant(c), r.Key)
	if err != nil {
		return nil, err
	}
	id, isCharge := strings.CutPrefix(state.Header.Get(echo.HeaderLocation), chargesPath+"/")
	if !isCharge { // it was refused, or given up long ago
		return abandonment{Abandoned: state.StatusCode == p.Status, StatusCode: state.StatusCode}, nil
	}
	cancel := a.request(c, operation(c), storedKey(given), nil)
	cancel.Refuse, cancel.Fingerprint = refuseOf(c), nil // however the path spells the key
	if _, err := a.Intake.CancelCharge(ctx, cancel, id); err != nil && !errors.Is(err, idempotency.ErrExpired) {
		return nil, err
	}
	s, err := ledger.Load(ctx, a.tenant(c), id)
	if err != nil {
		return nil, err
	}
	return abandonment{StatusCode: state.StatusCode, Charge: new(s.View())}, nil
}

// keyOfPath is the key that a path names. It may be quoted, as in a header, and need not be: a
// path has no other way to end a key.
func keyOfPath(c echo.Context) (string, error) {
	given := param(c, "key")
	if key, err := idempotency.ParseKey([]string{given}); err == nil {
		return key, nil
	}
	return given, idempotency.Validate(given)
}

// storedKey is what is stored of a key: of one that may be a card number its hash.
func storedKey(key string) string {
	if !holdsCard(key) {
		return key
	}
	hash := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(hash[:])
}
