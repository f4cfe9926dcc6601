package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
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
	accept func(ctx context.Context, account intake.Account, r intake.Request, id string, body T) (idempotency.Result, error),
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
		outcome, err := accept(c.Request().Context(), a.account(c), r, id, body)
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

// account is the merchant's, as a request needs it.
func (a *API) account(c echo.Context) intake.Account {
	m := merchantOf(c)
	return intake.Account{
		MerchantID: m.ID, FeeBasisPoints: m.FeeBasisPoints, FeeFixed: m.FeeFixed, Notify: m.HasWebhook,
		OneChargePerOrder: a.OneChargePerOrder || m.OneChargePerOrder,
	}
}

// request identifies a request by its key and its canonical body.
func (a *API) request(c echo.Context, operation, key string, canonical []byte) intake.Request {
	m := merchantOf(c).ID
	return intake.Request{
		Key: idempotency.Key{Scope: m, Operation: operation, Value: key},
		Request: idempotency.Request{
			Fingerprint: idempotency.Fingerprint([]byte("v1"), []byte(c.Request().Method),
				[]byte(c.Request().URL.Path), []byte(m), canonical),
			Canonical: canonical,
		},
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
