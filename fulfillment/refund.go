package fulfillment

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

// refunder brings one refund of a charge to its outcome.
//
// A refund has no object at the provider before it is sent. Two guards together make a second send
// harmless: all sends of one attempt carry one key, for as long as the provider keeps keys; and before every
// send the worker reads the provider's list, in which it finds ours by its id, however old it is. Both follow
// from the client's key, so a refund that the database has lost is found too.
type refunder struct {
	provider Provider
	now      time.Time // when the delivery was claimed, in database time
	refundID string
}

// due is the refund while it is pending.
func (r refunder) due(c domain.Charge) task {
	refund, _ := c.Refund(r.refundID)
	if refund.Status != domain.RefundStatusPending {
		return task{}
	}
	return task{name: "refund", run: func(ctx context.Context, s ledger.Stream) ([]domain.Event, error) { return r.run(ctx, s, refund) }}
}

// listed reads the provider's list, and decides by what it has of the refund.
func (r refunder) listed(ctx context.Context, s ledger.Stream, refund domain.Refund) (events []domain.Event, found bool, err error) {
	seen, err := collect(r.provider.Refunds(ctx, s.Charge.PaymentIntent))
	if err != nil {
		events, err = callFailed(ctx, err, nil)
		return events, false, err
	}
	object, found, err := find(seen, refund)
	if found && err == nil {
		events, err = r.decideByObject(s, refund, object)
	}
	return events, found, err
}

// find returns what was seen of a refund: the object that ended it, or one with our id. One
// that moves money, or may yet, is preferred to one that failed; an operator decides about
// two of them.
func find(seen []stripe.Refund, refund domain.Refund) (found stripe.Refund, ok bool, err error) {
	for _, o := range seen {
		ours := o.Reference == refund.ID
		if refund.ProviderRefund != "" {
			ours = o.ID == refund.ProviderRefund
		}
		switch {
		case !ours:
		case !ok, isFailed(found) && !isFailed(o):
			found, ok = o, true
		case !isFailed(o):
			return found, true, &inbox.DeadLetterError{Err: fmt.Errorf("the provider has more than one refund for it, %s and %s among them", found.ID, o.ID)}
		}
	}
	return found, ok, nil
}

// isFailed reports whether the refund has ended without moving money.
func isFailed(r stripe.Refund) bool {
	return r.Status == stripe.RefundFailed || r.Status == stripe.RefundCanceled
}

// run records the refund as the provider's list has it, or sends it if it is not there. It reads the list before
// the first send as well, since an older delivery of the message may have sent it.
//
// If we die here: the provider has the refund or not, and nothing is recorded. The next
// worker reads the list, and sends under the same key only what is not there.
// Test: TestStore, TestWalk in e2e.
func (r refunder) run(ctx context.Context, s ledger.Stream, refund domain.Refund) ([]domain.Event, error) {
	if events, found, err := r.listed(ctx, s, refund); found || err != nil {
		return events, err
	}
	sent, err := r.provider.CreateRefund(ctx, refund.ProviderKey(), stripe.RefundParams{
		Reference: refund.ID, PaymentIntent: s.Charge.PaymentIntent,
		Amount: refund.Amount, Currency: string(s.Charge.Currency),
	})
	if err == nil {
		return r.decideByObject(s, refund, sent)
	}
	why := refusal(err, "the provider refused the refund")
	if why == nil {
		return callFailed(ctx, err, func(e *stripe.Error) domain.Event {
			if refund.IsLastKey() || e.StatusCode == stripe.OtherParameters {
				return nil // the other request may be in flight, and is then in no list: a next key could refund twice
			}
			return domain.RefundAttemptFailed{RefundID: refund.ID, StatusCode: e.StatusCode, RequestID: e.RequestID}
		})
	}
	// An earlier send is the reason, and the refund is in the list, or there will be none.
	if events, found, err := r.listed(ctx, s, refund); found || err != nil {
		return events, err
	}
	return refund.Resolve("", true, why.Message), nil
}

// decideByObject decides by the state of the provider's object.
//
// If we die here: the provider's list holds the refund. The next worker finds it there and
// sends nothing.
// Test: TestStore, TestWalk in e2e.
func (r refunder) decideByObject(s ledger.Stream, refund domain.Refund, found stripe.Refund) ([]domain.Event, error) {
	if err := mismatch(s.Charge, refund, found); err != nil {
		return nil, &inbox.DeadLetterError{Err: err}
	}
	switch found.Status {
	case stripe.RefundSucceeded, stripe.RefundFailed, stripe.RefundCanceled:
		return refund.Resolve(found.ID, isFailed(found), failureOf(found)), nil
	case stripe.RefundPending, stripe.RefundRequiresAction:
		return nil, processingWait(r.now, s, s.At(refund.AttemptVersion), fmt.Errorf("it is %s at the provider", found.Status))
	default:
		return nil, &inbox.DeadLetterError{Err: fmt.Errorf("%s is %q: payonce does not know what to do with it", found.ID, found.Status)}
	}
}

// mismatch returns why an object of the provider cannot be that of a refund; nil if it can. A refund
// that was made outside goes by the provider's id.
func mismatch(c domain.Charge, refund domain.Refund, found stripe.Refund) error {
	if cmp.Or(found.Reference, found.ID) == refund.ID && found.PaymentIntent == c.PaymentIntent &&
		found.Amount == refund.Amount && found.Currency == string(c.Currency) {
		return nil
	}
	return fmt.Errorf("%s gives %d %s of %s back for %q: %w",
		found.ID, found.Amount, found.Currency, found.PaymentIntent, found.Reference, domain.ErrMismatch)
}

func failureOf(r stripe.Refund) string {
	why := "the refund " + r.Status + " at the provider"
	if r.Status == stripe.RefundCanceled {
		why = "the refund was canceled at the provider"
	}
	if r.FailureReason != "" {
		why += ": " + r.FailureReason
	}
	return why
}

// observeRefunds adds the changes of the refunds that were seen: the outcome of a pending one; the failure of
// one that had succeeded, as the customer's bank sent the money back; and one that only the list has, once it has
// succeeded there: it was made in the provider's dashboard, or lost with a restore. A refund that
// failed here stays failed, whatever the list says; reconciliation reports the difference.
func observeRefunds(f *findings, seen []stripe.Refund) {
	c := f.charge
	for _, refund := range c.Refunds {
		object, _, twice := find(seen, refund)
		events := refund.Resolve(object.ID, isFailed(object), failureOf(object))
		if len(events) == 0 || !isFailed(object) && object.Status != stripe.RefundSucceeded {
			continue
		}
		if wrong := cmp.Or(twice, mismatch(c, refund, object)); wrong != nil {
			events, twice = nil, wrong
		}
		f.add(refund.ID, events, twice)
	}
	for _, object := range seen {
		_, known := c.Refund(object.Reference)
		if known || object.Status != stripe.RefundSucceeded || object.PaymentIntent != c.PaymentIntent {
			continue
		}
		observed := domain.Money{Amount: object.Amount, Currency: domain.Currency(object.Currency)}
		events, err := c.ObserveRefund(object.Reference, object.ID, observed)
		f.add(object.ID, events, err)
	}
}
