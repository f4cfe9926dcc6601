package fulfillment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

// Provider is the payment provider, as far as steps need it. A stripe.Client is one.
type Provider interface {
	CreateIntent(ctx context.Context, key string, p stripe.CreateParams) (stripe.Intent, error)
	RetrieveIntent(ctx context.Context, id string) (stripe.Intent, error)
	ConfirmIntent(ctx context.Context, key, id, returnURL string) (stripe.Intent, error)
	CancelIntent(ctx context.Context, id string) (stripe.Intent, error)
	CreateRefund(ctx context.Context, key string, p stripe.RefundParams) (stripe.Refund, error)
	Refunds(ctx context.Context, intent string) iter.Seq2[stripe.Refund, error]
	Disputes(ctx context.Context, intent string) iter.Seq2[stripe.Dispute, error]
}

// collect reads a whole list of the provider's.
func collect[T any](list iter.Seq2[T, error]) (all []T, err error) {
	for object, err := range list {
		if err != nil {
			return nil, err
		}
		all = append(all, object)
	}
	return all, nil
}

// refusal is the failure that a declined or rejected call says; nil for every other error. message stands
// for a text that the provider left out.
func refusal(err error, message string) *domain.Failure {
	e, ok := errors.AsType[*stripe.Error](err)
	switch {
	case ok && e.Kind == stripe.Declined:
		return new(failure(e.Why))
	case ok && e.Kind == stripe.Rejected:
		return &domain.Failure{Code: domain.ProviderRefused, Message: cmp.Or(e.Why.Message, message)}
	}
	return nil
}

// callFailed decides what follows a failed call, by the Kind of its error:
//
//	Failed                 usedUp is the event that the key is used up, so the next call has another one; the message waits
//	Unavailable, Blocked   the message waits (Blocked: for an operator), and the next call has the same key
//	Declined, Rejected     the error is returned, and counts an attempt: calls with a key of ours ask refusal before
//
// usedUp is nil for calls that carry no key of ours, and returns nil where no next key may be opened: after the last one,
// or, of a refund, after other parameters.
func callFailed(ctx context.Context, err error, usedUp func(*stripe.Error) domain.Event) ([]domain.Event, error) {
	e, ok := errors.AsType[*stripe.Error](err)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case !ok || refusal(err, "") != nil:
		return nil, fmt.Errorf("call the provider: %w", err)
	}
	// Up to a quarter more than the provider asked for, so that the calls that it turned
	// away do not return at one moment.
	jitter := rand.N(e.RetryAfter/4 + 1) //nolint:gosec // jitter
	wait := &inbox.WaitError{AtLeast: e.RetryAfter + jitter, NeedsOperator: e.Kind == stripe.Blocked, Err: err}
	if e.Kind == stripe.Failed && usedUp != nil {
		if failed := usedUp(e); failed != nil {
			return []domain.Event{failed}, wait
		}
	}
	return nil, wait
}

// The bounds of the time between two reads of what the provider is processing. 10,000 such
// payments cost less than one call a second once each is read every maxReadInterval.
const (
	minReadInterval = time.Second
	maxReadInterval = 4 * time.Hour
)

// processingWait is the wait for what the provider is processing, or for the customer. It is as long as the
// wait has lasted so far, from 1 s to 4 h, plus up to 25 % jitter: reads come after 1, 2, 4 … s, and payments
// that began together are not read together. It ends early at a deadline of the charge, and with a newer message
// of the charge, such as the provider's event (inbox/store.go). A bank may take weeks, which is no outage, so
// the wait never makes a dead letter of the message. now is the time of the claim.
func processingWait(now time.Time, s ledger.Stream, began ledger.StoredEvent, err error) error {
	pause := minReadInterval
	if since := began.RecordedAt; !since.IsZero() { // zero: recorded after the claim
		pause = min(max(now.Sub(since), minReadInterval), maxReadInterval)
	}
	pause += rand.N(pause / 4) //nolint:gosec // jitter
	for _, at := range s.Charge.Deadlines() {
		if at.After(now) {
			pause = min(pause, at.Sub(now))
		}
	}
	return &inbox.WaitError{AtLeast: pause, NoDeadline: true, Err: err}
}
