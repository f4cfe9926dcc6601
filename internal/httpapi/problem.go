package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/ledger"
)

// problem is a refusal as RFC 9457 writes it. Retryable says that the same
// request may be sent again as it is; RetryWith, under which key a request that
// should succeed is sent.
type problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail"`
	Instance  string       `json:"instance"`
	Retryable bool         `json:"retryable"`
	RetryWith string       `json:"retry_with"`
	Errors    []fieldError `json:"errors,omitempty"`
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
	errMalformed = problem{
		Type: "/problems/malformed", Title: "The request cannot be read", Status: http.StatusBadRequest, RetryWith: sameKey,
	}
	errValidation = problem{
		Type: "/problems/validation", Title: "The request is not valid", Status: http.StatusUnprocessableEntity,
		Detail: "some members have values that they cannot have", RetryWith: sameKey,
	}
	errCardAsKey = problem{
		Type: "/problems/validation", Title: "The request is not valid", Status: http.StatusUnprocessableEntity,
		Detail: "the Idempotency-Key looks like a card number", RetryWith: newKey,
	}
	errUnauthorized = problem{
		Type: "/problems/unauthorized", Title: "The API key is missing or not valid", Status: http.StatusUnauthorized,
		Detail: "send Authorization: Bearer and a valid API key", RetryWith: sameKey,
	}
	errForbidden = problem{
		Type: "/problems/forbidden", Title: "The API key is not for this", Status: http.StatusForbidden, RetryWith: sameKey,
	}
	errNotFound = problem{
		Type: "/problems/not-found", Title: "There is no such resource", Status: http.StatusNotFound, RetryWith: sameKey,
	}
	errMethodNotAllowed = problem{
		Type: "/problems/method-not-allowed", Title: "The resource does not know the method", Status: http.StatusMethodNotAllowed,
		Detail: "the Allow header lists the methods that it knows", RetryWith: sameKey,
	}
	errTooLarge = problem{
		Type: "/problems/too-large", Title: "The request is too large", Status: http.StatusRequestEntityTooLarge,
		Detail: "a body may have 65536 bytes", RetryWith: sameKey,
	}
	errUnsupportedMediaType = problem{
		Type: "/problems/unsupported-media-type", Title: "The body is not JSON", Status: http.StatusUnsupportedMediaType,
		Detail: "send JSON in UTF-8, not packed, and Content-Type: application/json", RetryWith: sameKey,
	}
	errConflict = problem{
		Type: "/problems/conflict", Title: "The charge is not in a state for this", Status: http.StatusConflict, RetryWith: newKey,
	}
	errRefundExceeds = problem{
		Type: "/problems/refund-exceeds-captured", Title: "The refund is more than is left", Status: http.StatusUnprocessableEntity,
		Detail: "what was captured, less the refunds that succeeded or are on their way, does not cover it", RetryWith: newKey,
	}
	errKeyMissing = problem{
		Type: "/problems/idempotency-key-missing", Title: "The Idempotency-Key header is missing", Status: http.StatusBadRequest,
		Detail: "send a key of your own that is unique to this operation, and the same one with each retry", RetryWith: newKey,
	}
	errKeyInvalid = problem{
		Type: "/problems/idempotency-key-invalid", Title: "The Idempotency-Key header is not a key", Status: http.StatusBadRequest,
		Detail: "a key is 1 to 255 visible ASCII characters, once, bare or quoted", RetryWith: newKey,
	}
	errKeyReused = problem{
		Type: "/problems/idempotency-key-reused", Title: "The key was used for another request", Status: http.StatusUnprocessableEntity,
		Detail: "the first request under this key differs from this one; nothing was done", RetryWith: newKey,
	}
	errKeyExpired = problem{
		Type: "/problems/idempotency-key-expired", Title: "The key's answer is no longer kept", Status: http.StatusGone,
		Detail: "the request was answered under this key, once; it is not looked at again", RetryWith: newKey,
	}
	errKeyInUse = problem{
		Type: "/problems/idempotency-key-in-use", Title: "A request under this key is in flight",
		Detail: "its answer is not there yet", Retryable: true, RetryWith: sameKey,
	}
	errRateLimited = problem{
		Type: "/problems/rate-limited", Title: "Too many requests", Status: http.StatusTooManyRequests,
		Detail:    "the merchant has sent too many requests, and nothing was done with this one: send it with the same key again",
		Retryable: true, RetryWith: sameKey,
	}
	errNotSigned = problem{
		Type: "/problems/webhook-signature", Title: "The event is not signed", Status: http.StatusBadRequest,
		Detail:    "Stripe-Signature holds no signature of this body by a secret of this endpoint, made in the last 5 minutes",
		RetryWith: sameKey,
	}
	errUnavailable = problem{
		Type: "/problems/unavailable", Title: "payonce cannot answer now", Status: http.StatusServiceUnavailable,
		Detail:    "nothing is lost and nothing is done twice: send the same request with the same key again",
		Retryable: true, RetryWith: sameKey,
	}
)

// refusals are the problems of the errors of other packages. Any other error is
// unavailable.
var refusals = []struct {
	sentinel error
	problem  problem
}{
	{merchants.ErrUnauthorized, errUnauthorized},
	{ledger.ErrNotFound, errNotFound.because("no charge of yours has this id")},
	{domain.ErrNoRefund, errNotFound.because("the charge has no refund with this id")},
	{errUnknownKey, errNotFound.because("no request of yours was answered under this key")},
	{domain.ErrFinished, errConflict.because("the charge has come to its outcome")},
	{domain.ErrNotCaptured, errConflict.because("only a charge that succeeded can be refunded")},
	{domain.ErrTooManyRefunds, errConflict.because("a charge may have 100 refunds, whatever became of them")},
	{domain.ErrExceedsCaptured, errRefundExceeds},
	{echo.ErrNotFound, errNotFound.because("nothing is served at this path")},
	{echo.ErrMethodNotAllowed, errMethodNotAllowed},
	{idempotency.ErrMissing, errKeyMissing},
	{idempotency.ErrInvalid, errKeyInvalid},
	{idempotency.ErrExpired, errKeyExpired},
	{errRate, errRateLimited},
	{errBusy, errUnavailable.because("too many requests are in flight, and nothing was done with this one: send it with the same key again")},
}

// because is the problem with another detail.
func (p problem) because(detail string) problem {
	p.Detail = detail
	return p
}

// invalid is a validation problem of these members.
func invalid(fields ...fieldError) problem {
	p := errValidation
	p.Errors = fields
	return p
}

// reused names the members that differ, never their values: the first request may be of
// another caller. A name that a client chose may hold anything.
func reused(pointers []string) problem {
	p := errKeyReused
	for _, pointer := range pointers {
		if !holdsCard(pointer) {
			p.Errors = append(p.Errors, fieldError{Pointer: pointer, Detail: "differs from the first request"})
		}
	}
	return p
}

func (p problem) Error() string { return p.Title }

// errUnknownKey refuses to show a key that was never answered.
var errUnknownKey = errors.New("the key is not known")

const problemType = "application/problem+json"

// document is the body of the answer to c. A path that holds a card number is
// not repeated.
func (p problem) document(c echo.Context) ([]byte, error) {
	if path := c.Request().URL; !holdsCard(path.Path) && !holdsCard(path.EscapedPath()) {
		p.Instance = "/" + strings.TrimPrefix(path.EscapedPath(), "/")
	}
	body, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode a problem: %w", err)
	}
	return append(body, '\n'), nil
}

const causeKey = "cause" // in echo's context: the error behind a 5xx, for the log

// problem answers every error.
func (a *API) problem(err error, c echo.Context) {
	if c.Response().Committed {
		return // the client has had its answer, or part of one
	}
	if errors.Is(err, idempotency.ErrCrowded) {
		c.Response().Header().Del(headerApplied) // it could not be
	}
	if errors.Is(err, idempotency.ErrInFlight) && a.InFlight == http.StatusAccepted {
		c.Response().Header().Set(headerRetryAfter, "1")
		_ = c.JSONBlob(http.StatusAccepted, []byte("{}")) // the client may be gone
		return
	}
	p := a.classify(err)
	c.Set(problemKey, p.Type)
	if p.Status >= http.StatusInternalServerError {
		c.Set(causeKey, err)
	}
	h := c.Response().Header()
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set(echo.HeaderWWWAuthenticate, "Bearer")
	case http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if p.Retryable {
			h.Set(headerRetryAfter, "1")
		}
	}
	if errors.Is(err, idempotency.ErrMissing) {
		h.Set(headerLink, `</docs>; rel="describedby"`)
	}
	body, _ := p.document(c)                // strings, numbers and booleans: it cannot fail
	_ = c.Blob(p.Status, problemType, body) // the client may be gone
}

func (a *API) classify(err error) problem {
	if p := (problem{}); errors.As(err, &p) {
		return p
	}
	if errors.Is(err, idempotency.ErrInFlight) {
		p := errKeyInUse
		p.Status = a.InFlight
		return p
	}
	if differs := (*idempotency.ReusedError)(nil); errors.As(err, &differs) {
		return reused(differs.Pointers)
	}
	for _, r := range refusals {
		if errors.Is(err, r.sentinel) {
			return r.problem
		}
	}
	return errUnavailable
}
