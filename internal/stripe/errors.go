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

// Kind is what an [Error] says about its request.
type Kind string

const (
	// Unavailable says that there is no answer to go by: none came, it was cut or not understood, an earlier
	// request with this key is still in flight, or there were too many. The outcome is unknown, and the
	// same idempotency key is the right one for the next attempt. So is it after a first 502, 503 or 504:
	// what spoke may stand in front of a request that is still in flight.
	Unavailable Kind = "unavailable"
	// Blocked is as Unavailable: the secret key, its account or its mode is wrong, and no request
	// succeeds before an operator has mended that.
	Blocked Kind = "needs an operator"
	// Failed says that the provider executed the request and failed, so the outcome is unknown. The provider keeps
	// such an answer under the idempotency key and will repeat it, so a further attempt needs a new
	// key, and before it a look at what the failed one left behind. It is a 500 in the provider's own
	// form, or any 5xx that the provider says it has saved. It also is a 400 (OtherParameters) for a
	// key that belongs to a request with other parameters, such as the one that a program of another
	// version has sent: the key never answers this request, and that one may have had its effect.
	Failed Kind = "failed"
	// Rejected says that the provider refused the request and executed none of it, or the request cannot be sent.
	// The same request will be refused again.
	Rejected Kind = "rejected"
	// Declined says that the card was declined, an asked-for authentication included. The outcome is certain,
	// for this attempt: at Stripe a declined intent can still be confirmed again, so cancel it before
	// believing that no money will move.
	Declined Kind = "declined"
)

// OtherParameters is the StatusCode of a Failed error for a key of other parameters.
const OtherParameters = http.StatusBadRequest

// Error is every error of a call but that of the caller's context, which it never wraps.
type Error struct {
	Kind Kind
	// StatusCode is the HTTP status; 0 if no answer came, or if the request was not sent
	// because a call without a usable key or id has no meaning.
	StatusCode int
	// RequestID is the provider's, for its support.
	RequestID string
	// Why is the provider's reason, or what is wrong with the answer.
	Why Decline
	// Intent is the intent that the answer contains. Zero if there is none that can be read.
	Intent Intent
	// RetryAfter is how long the provider itself asks to wait, at most ten minutes. 0 if it does not
	// say, or if it is not the one that answered: a page of what stands in front of it says
	// nothing about the provider.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	if e.StatusCode == 0 {
		return fmt.Sprintf("%s: %s", e.Kind, e.Why)
	}
	return fmt.Sprintf("%s, answered %d: %s (request %s)", e.Kind, e.StatusCode, e.Why, e.RequestID)
}

// unavailable is for an answer that is not in the provider's form, of which no header counts.
func unavailable(why error) error {
	return &Error{Kind: Unavailable, Why: Decline{Message: why.Error()}}
}

// classify turns an error of stripe-go into one of ours.
func classify(ctx context.Context, a Answered, err error) error {
	var received *stripego.Error
	if errors.As(err, &received) && received.Type != "" {
		return answered(received, a)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.Canceled):
		return unavailable(errors.New("no answer came in time"))
	case a.Status == 0:
		return unavailable(err)
	default: // stripe-go's message quotes the body
		return unavailable(fmt.Errorf("answer %d was cut or is not in the form of the provider's API", a.Status))
	}
}

// answered is an error answer in the provider's form.
func answered(e *stripego.Error, a Answered) error {
	is := &Error{Kind: kindOf(e, a), StatusCode: a.Status, RequestID: text(e.RequestID), Why: declineOf(e), RetryAfter: retryAfter(e.LastResponse.Header)}
	switch {
	case a.Status == http.StatusUnauthorized, a.Status == http.StatusForbidden: // the provider's message may quote the key
		is.Why = Decline{Message: "the provider does not accept STRIPE_SECRET_KEY for this call"}
	case is.Kind == Blocked:
		is.Why.Message += ": STRIPE_SECRET_KEY is of the wrong account or mode"
	}
	if e.PaymentIntent != nil {
		is.Intent, _ = intentOf(e.PaymentIntent) // the kind is certain without it
	}
	return is
}

// kindOf is the table of error answers. The order matters: what is wrong with the secret key is no
// decline, and a decline is a decline whatever its status.
func kindOf(e *stripego.Error, a Answered) Kind {
	switch {
	case a.Status == http.StatusInternalServerError, a.Status >= 500 && a.Replayed:
		return Failed
	case a.Status >= 500:
		return Unavailable
	case a.Status == http.StatusUnauthorized, a.Status == http.StatusForbidden, isOfAccount(e):
		return Blocked
	case e.Type == stripego.ErrorTypeCard:
		return Declined
	case e.Type == stripego.ErrorTypeIdempotency && a.Status == OtherParameters:
		return Failed
	case e.Type == stripego.ErrorTypeIdempotency, // a request with this key is in flight
		a.Status == http.StatusRequestTimeout, a.Status == http.StatusConflict,
		a.Status == http.StatusTooEarly, a.Status == http.StatusTooManyRequests:
		return Unavailable
	default:
		return Rejected
	}
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

// maxText bounds what is kept of the provider's texts, in bytes.
const maxText = 500

// text returns a text of the provider that an event can store: a jsonb value
// holds no NUL, which JSON allows.
func text(s string) string {
	s = strings.ReplaceAll(s, "\x00", "")
	return strings.ToValidUTF8(s[:min(len(s), maxText)], "")
}
