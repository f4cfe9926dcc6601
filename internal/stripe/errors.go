package stripe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	stripego "github.com/stripe/stripe-go/v85"
)

// CodeUnexpectedState is the Code of a [RejectedError] for a call that the
// payment intent's state does not allow: a confirmation of one that has
// succeeded or was canceled, for example. Nothing was executed by that call.
const CodeUnexpectedState = "payment_intent_unexpected_state"

// DeclinedError says that the card was declined, an asked-for authentication
// included. The outcome is certain, for this attempt: at Stripe a declined
// intent can still be confirmed again, so cancel it before believing that no
// money will move.
type DeclinedError struct {
	Decline Decline
	// Intent is the intent after the decline. Zero if the provider left it
	// out.
	Intent Intent
}

func (e *DeclinedError) Error() string { return "declined: " + e.Decline.String() }

// RejectedError says that the provider refused the request and executed none
// of it. The same request will be refused again.
type RejectedError struct {
	// StatusCode is the HTTP status, a 4xx; 0 if the request was not sent
	// because a call without a usable key or id has no meaning.
	StatusCode int
	// Code is the provider's short word for the reason, "resource_missing"
	// for example. It may be empty.
	Code string
	// Message is the provider's, for people.
	Message string
	// Intent is the intent as the provider holds it now. Zero if the answer
	// does not carry it.
	Intent Intent
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("rejected with %d %s: %s", e.StatusCode, e.Code, e.Message)
}

// FailedError says that the provider executed the request and failed: the
// outcome is unknown. The provider keeps such an answer under the idempotency
// key and will repeat it, so a further attempt needs a new key, and before it a
// look at what the failed one left behind.
//
// It is a 500 in the provider's own form, or any 5xx that the provider says it
// has saved. A first 502, 503 or 504 is an [UnavailableError]: what spoke may
// stand in front of a request that is still in flight, and then only the same
// key is safe.
//
// It also is a 400 for a key that belongs to a request with other parameters
// (OtherParameters), such as the one that a program of another version has sent: the
// key never answers this request, and that one may have had its effect.
type FailedError struct {
	StatusCode int
	// RequestID is the provider's, for its support.
	RequestID string
	// Replayed is true if this answer was saved by an earlier request under
	// the same key.
	Replayed bool
}

// OtherParameters is the StatusCode of a FailedError for a key of other parameters.
const OtherParameters = http.StatusBadRequest

func (e *FailedError) Error() string {
	if e.StatusCode == OtherParameters {
		return fmt.Sprintf("the idempotency key belongs to a request with other parameters (request %s)", e.RequestID)
	}
	replayed := ""
	if e.Replayed {
		replayed = ", a saved answer"
	}
	return fmt.Sprintf("provider failed with %d (request %s%s)", e.StatusCode, e.RequestID, replayed)
}

// UnavailableError says that there is no answer to go by: none came, it was cut
// or not understood, an earlier request with this key is still in flight, there were
// too many requests, or an operator must mend the
// secret key. The outcome is unknown, and the same idempotency key is the right
// one for the next attempt.
type UnavailableError struct {
	// RetryAfter is how long the provider itself asks to wait, at most ten
	// minutes. 0 if it does not say, or if it is not the one that answered: a page
	// of what stands in front of it says nothing about the provider.
	RetryAfter time.Duration
	// NeedsOperator says that the secret key, its account or its mode is wrong: no
	// request succeeds before an operator has mended that.
	NeedsOperator bool
	// Err is the cause. It never is an error of a context.
	Err error
}

func (e *UnavailableError) Error() string {
	if e.NeedsOperator {
		return "the provider account needs an operator: " + e.Err.Error()
	}
	return "provider unavailable: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// unsent is the error of a call that cannot be sent.
func unsent(why string) error { return &RejectedError{Code: "unsendable", Message: why} }

// classify turns an error of stripe-go into one of ours.
func (c *Client) classify(ctx context.Context, a Answered, err error) error {
	var received *stripego.Error
	if errors.As(err, &received) && received.Type != "" {
		return refusal(received, a)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout(),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		// Not wrapped: net/http's time-out is a context.DeadlineExceeded, but
		// the caller's context has not ended.
		return unavailable(fmt.Errorf("no answer within %s", c.timeout))
	case a.Status == 0:
		return unavailable(err)
	default:
		// Not wrapped: stripe-go's message quotes the body.
		return unavailable(fmt.Errorf("answer %d was cut or is not in the form of the provider's API", a.Status))
	}
}

// refusal classifies an error answer in the provider's form. The order matters:
// what is wrong with the key is no decline, and a decline is a decline whatever its status.
func refusal(e *stripego.Error, a Answered) error {
	why := fmt.Errorf("answered %d %s %s: %s (request %s)", a.Status, e.Type, e.Code, e.Msg, e.RequestID)
	switch {
	case a.Status == http.StatusInternalServerError, a.Status >= 500 && a.Replayed:
		return &FailedError{StatusCode: a.Status, RequestID: text(e.RequestID), Replayed: a.Replayed}
	case a.Status >= 500:
	case a.Status == http.StatusUnauthorized, a.Status == http.StatusForbidden:
		// The provider's message may quote the key.
		return needsOperator(fmt.Errorf("answered %d: the provider does not accept STRIPE_SECRET_KEY for this call (request %s)", a.Status, e.RequestID))
	case isOfAccount(e):
		return needsOperator(fmt.Errorf("%w: STRIPE_SECRET_KEY is of the wrong account or mode", why))
	case e.Type == stripego.ErrorTypeCard:
		return &DeclinedError{Decline: declineOf(e), Intent: carriedIntent(e)}
	case e.Type == stripego.ErrorTypeIdempotency && a.Status == OtherParameters:
		return &FailedError{StatusCode: OtherParameters, RequestID: text(e.RequestID)}
	case e.Type == stripego.ErrorTypeIdempotency: // 409: a request with this key is in flight
	case a.Status == http.StatusRequestTimeout, a.Status == http.StatusConflict,
		a.Status == http.StatusTooEarly, a.Status == http.StatusTooManyRequests:
	default:
		return &RejectedError{StatusCode: a.Status, Code: text(string(e.Code)), Message: text(e.Msg), Intent: carriedIntent(e)}
	}
	return &UnavailableError{RetryAfter: retryAfter(e.LastResponse.Header), Err: why}
}

// isOfAccount reports whether the provider refuses because of the key's account or mode. A
// test key that meets live objects or cards is the wrong key. A live key that meets test
// ones is not: they are the merchant's mistake, which the charge pays for.
func isOfAccount(e *stripego.Error) bool {
	ofAccount := []stripego.ErrorCode{
		stripego.ErrorCodeAPIKeyExpired, stripego.ErrorCodePlatformAPIKeyExpired, stripego.ErrorCodeSecretKeyRequired,
		stripego.ErrorCodeAccountInvalid, stripego.ErrorCodeLivemodeMismatch, stripego.ErrorCodeTestmodeChargesOnly,
	}
	return slices.Contains(ofAccount, e.Code) || declineOf(e).OfTestKey() || strings.Contains(e.Msg, "a similar object exists in live mode")
}

func needsOperator(why error) error { return &UnavailableError{NeedsOperator: true, Err: why} }

// maxText bounds what is kept of the provider's texts, in bytes.
const maxText = 500

// text returns a text of the provider that an event can store: a jsonb value
// holds no NUL, which JSON allows.
func text(s string) string {
	s = strings.ReplaceAll(s, "\x00", "")
	return strings.ToValidUTF8(s[:min(len(s), maxText)], "")
}

// carriedIntent returns the intent inside an error answer, zero if there is none
// that can be read: the refusal is certain without it.
func carriedIntent(e *stripego.Error) Intent {
	if e.PaymentIntent == nil {
		return Intent{}
	}
	in, _ := intentOf(e.PaymentIntent) // zero beside an error
	return in
}

// unavailable is for an answer that is not in the provider's form, of which no
// header counts.
func unavailable(err error) error { return &UnavailableError{Err: err} }
