package httpapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

// problem is a refusal as RFC 9457 writes it. Retryable: the same request may be sent
// again as it is. RetryWith: the key under which to send a request that can succeed.
type problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail"`
	Instance  string       `json:"instance"`
	Retryable bool         `json:"retryable"`
	RetryWith string       `json:"retry_with"`
	Errors    []fieldError `json:"errors,omitempty"`
	Charge    *domain.View `json:"charge,omitempty"` // that has the order

	after  int    // seconds until it may be sent again, if it may
	result Result // what it says of the request's API key or idempotency key
}

// fieldError names one wrong member by its JSON Pointer (RFC 6901).
type fieldError struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

const (
	sameKey = "same-key"
	newKey  = "new-key"
)

// The types of problems. A handler gives details by because.
var (
	errMalformed  = newProblem("malformed", http.StatusBadRequest, sameKey, "The request cannot be read", "")
	errValidation = newProblem("validation", http.StatusUnprocessableEntity, sameKey, "The request is not valid",
		"some members have values that they cannot have")
	errUnauthorized = newProblem("unauthorized", http.StatusUnauthorized, sameKey, "The API key is missing or not valid",
		"send Authorization: Bearer and a valid API key").of(DeniedInvalid)
	errForbidden        = newProblem("forbidden", http.StatusForbidden, sameKey, "The API key is not for this", "")
	errNotFound         = newProblem("not-found", http.StatusNotFound, sameKey, "There is no such resource", "")
	errUnknownKey       = errNotFound.because("no request of yours was answered under this key")
	errUnknownRefund    = errNotFound.because("the charge has no refund with this id")
	errMethodNotAllowed = newProblem("method-not-allowed", http.StatusMethodNotAllowed, sameKey, "The resource does not know the method",
		"the Allow header lists the methods that it knows")
	errTooLarge = newProblem("too-large", http.StatusRequestEntityTooLarge, sameKey, "The request is too large",
		"a body may have 65536 bytes, and an event of the provider 1048576")
	errUnsupportedMediaType = newProblem("unsupported-media-type", http.StatusUnsupportedMediaType, sameKey, "The body is not JSON",
		"send JSON in UTF-8, not packed, and Content-Type: application/json")
	errConflict   = newProblem("conflict", http.StatusConflict, newKey, "The charge is not in a state for this", "")
	errOrderTaken = newProblem("order-taken", http.StatusConflict, newKey, "The order has a charge",
		"its charge is pending or has succeeded; if it fails, send the request with a new key")
	errRefundExceeds = newProblem("refund-exceeds-captured", http.StatusUnprocessableEntity, newKey, "The refund is more than is left",
		"what was captured, less the refunds that succeeded or are on their way, does not cover it")
	errKeyMissing = newProblem("idempotency-key-missing", http.StatusBadRequest, newKey, "The Idempotency-Key header is missing",
		"send a key of your own that is unique to this operation, and the same one with each retry")
	errKeyInvalid = newProblem("idempotency-key-invalid", http.StatusBadRequest, newKey, "The Idempotency-Key header is not a key",
		"a key is 1 to 255 printable ASCII characters, once; a bare one has no space, comma, semicolon, quote or backslash, and a quoted one may")
	errKeyReused = newProblem("idempotency-key-reused", http.StatusUnprocessableEntity, newKey, "The key was used for another request",
		"the first request under this key differs from this one; nothing was done").of(KeyReused)
	errKeyExpired = newProblem("idempotency-key-expired", http.StatusGone, newKey, "The key's answer is no longer kept",
		"the request was answered under this key, once; it is not looked at again").of(KeyExpired)
	errKeyAbandoned = newProblem("idempotency-key-abandoned", http.StatusGone, newKey, "The key was given up",
		"you have abandoned this key before a request under it took effect, and none ever will")
	errKeyInUse = newProblem("idempotency-key-in-use", http.StatusConflict, sameKey, "A request under this key is in flight",
		"its answer is not there yet").again(1).of(KeyInUse)
	errRate = newProblem("rate-limited", http.StatusTooManyRequests, sameKey, "Too many requests",
		"the merchant has sent too many requests, and nothing was done with this one: send it with the same key again").again(1)
	errGuessing = errRate.of(DeniedGuessing).again(int(guessInterval.Seconds())).
			because("this address has sent too many API keys that are not valid, and this one was not looked at: send it again later")
	errNotSigned = newProblem("webhook-signature", http.StatusBadRequest, sameKey, "The event is not signed",
		"Stripe-Signature holds no signature of this body by a secret of this endpoint, made in the last 5 minutes")
	errUnavailable = newProblem("unavailable", http.StatusServiceUnavailable, sameKey, "payonce cannot answer now",
		"nothing is lost and nothing is done twice: send the same request with the same key again").again(1).of(KeyUnavailable)
	errBusy = errUnavailable.because("too many requests are in flight, and nothing was done with this one: send it with the same key again")
)

func newProblem(kind string, status int, retryWith, title, detail string) problem {
	return problem{Type: "/problems/" + kind, Title: title, Status: status, Detail: detail, RetryWith: retryWith}
}

// again is the problem of a request that may be sent again as it is, after so many seconds.
func (p problem) again(after int) problem {
	p.Retryable, p.after = true, after
	return p
}

func (p problem) of(result Result) problem {
	p.result = result
	return p
}

// because is the problem with another detail.
func (p problem) because(detail string) problem {
	p.Detail = detail
	return p
}

// refusal is the problem of an error of another package.
type refusal struct {
	sentinel error
	problem  problem
}

// ofCharges are the refusals that depend on a charge. They are stored.
var ofCharges = []refusal{
	{ledger.ErrNotFound, errNotFound.because("no charge of yours has this id")},
	{domain.ErrFinished, errConflict.because("the charge has come to its outcome")},
	{domain.ErrNotCaptured, errConflict.because("only a charge that succeeded can be refunded")},
	{domain.ErrTooManyRefunds, errConflict.because("a charge may have 100 refunds, whatever became of them")},
	{domain.ErrExceedsCaptured, errRefundExceeds},
}

// refusals are all. Any other error is unavailable.
var refusals = slices.Concat(ofCharges, []refusal{
	{merchants.ErrUnauthorized, errUnauthorized},
	{intake.ErrIncrement, invalid(fieldError{Pointer: "/amount", Detail: badIncrement})},
	{intake.ErrExpiresInPast, invalid(fieldError{Pointer: "/expires_at", Detail: "is not in the future"})},
	{books.ErrUnknownStartingAfter, invalid(fieldError{Pointer: "/starting_after", Detail: "is no charge of yours"})},
	{books.ErrUnknownCursor, invalid(fieldError{Pointer: "/after", Detail: "is no place in your events now: begin without it"})},
	{echo.ErrNotFound, errNotFound.because("nothing is served at this path")},
	{echo.ErrMethodNotAllowed, errMethodNotAllowed},
	{echo.ErrStatusRequestEntityTooLarge, errTooLarge},
	{idempotency.ErrMissing, errKeyMissing},
	{idempotency.ErrInvalid, errKeyInvalid},
	{idempotency.ErrReused, errKeyReused},
	{idempotency.ErrExpired, errKeyExpired},
	{idempotency.ErrInFlight, errKeyInUse},
})

// invalid is a validation problem of these members.
func invalid(fields ...fieldError) problem {
	p := errValidation
	p.Errors = fields
	return p
}

// reused names the members that differ, never their values: the first request may be of
// another caller. A name that holds a card number is left out.
func reused(pointers []string) problem {
	p := errKeyReused
	for _, pointer := range slices.DeleteFunc(pointers, holdsCard) {
		p.Errors = append(p.Errors, fieldError{Pointer: pointer, Detail: "differs from the first request"})
	}
	return p
}

func (p problem) Error() string { return p.Detail }

const problemType = "application/problem+json"

// document is the body of the answer to c. A path that holds a card number is
// not repeated.
func (p problem) document(c echo.Context) []byte {
	if path := c.Request().URL; !holdsCard(path.Path) && !holdsCard(path.EscapedPath()) {
		p.Instance = "/" + strings.TrimPrefix(path.EscapedPath(), "/")
	}
	return p.encoded()
}

func (p problem) encoded() []byte {
	body, _ := json.Marshal(p) // strings, numbers and booleans: it cannot fail
	return append(body, '\n')
}

// problem answers every error.
func (a *API) problem(err error, c echo.Context) {
	if c.Response().Committed {
		return // the client has had its answer, or part of one
	}
	p, e, h := a.classify(err), exchangeOf(c), c.Response().Header()
	if p.result == DeniedInvalid || p.result == DeniedGuessing || e.Result == KeyFirst {
		e.Result = cmp.Or(p.result, e.Result) // what says nothing of the key was found on a free one
	}
	if p.Status >= http.StatusInternalServerError {
		e.cause = err
	}
	if p.Retryable {
		h.Set(headerRetryAfter, strconv.Itoa(p.after))
	}
	switch {
	case p.Status == http.StatusAccepted: // a key in flight, by Config.InFlight
		_ = c.JSONBlob(p.Status, []byte("{}")) // the client may be gone
		return
	case p.Status == http.StatusUnauthorized:
		h.Set(echo.HeaderWWWAuthenticate, "Bearer")
	case p.Type == errKeyMissing.Type:
		h.Set(headerLink, `<`+contractPath+`>; rel="describedby"`)
	}
	_ = c.Blob(p.Status, problemType, p.document(c))
}

// classify returns the problem of an error.
func (a *API) classify(err error) problem {
	if errors.Is(err, idempotency.ErrUnknown) && !errors.Is(err, idempotency.ErrInFlight) {
		return errUnavailable // the refusal of a try may follow from what the try before has done
	}
	if p, ok := errors.AsType[problem](err); ok {
		return p
	}
	p, found := problemOf(err, refusals)
	switch {
	case !found:
		return errUnavailable
	case p.result == KeyInUse:
		p.Status = a.InFlight
	}
	return p
}

// problemOf returns the problem of an error that one of the refusals names.
func problemOf(err error, of []refusal) (p problem, found bool) {
	if taken, ok := errors.AsType[*intake.OrderTakenError](err); ok {
		p = errOrderTaken
		p.Charge = &taken.Charge
		return p, true
	}
	i := slices.IndexFunc(of, func(r refusal) bool { return errors.Is(err, r.sentinel) })
	if i < 0 {
		return problem{}, false
	}
	return of[i].problem, true
}
