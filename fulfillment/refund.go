package fulfillment

import (
	"context"
	"errors"
	"fmt"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

// A refund has no object at the provider before it is sent, so nothing can be
// recorded first that would make a second send harmless. Two things do it
// together. All sends of one attempt carry one key, which covers rivals and
// repetitions for as long as the provider remembers keys. And before every send
// the provider's own list of refunds is asked, in which ours is known by its id,
// however old it is.
//
// What is left: a holder that stands still between its look and its send for
// longer than the provider remembers keys, and wakes up to send.

// refundStep does what is missing of one part of a refund, and nothing if
// nothing is.
type refundStep struct {
	name string
	run  func(*refunding, context.Context) error
}

// refundSteps is the way of a refund.
func refundSteps() []refundStep {
	return []refundStep{
		{"look for", (*refunding).look},
		{"send", (*refunding).send},
		{"record", (*refunding).record},
	}
}

// refunding is one try to bring a refund to its outcome.
type refunding struct {
	*walk
	id    string
	found *stripe.Refund // the provider's object; nil if it has none, as far as we know
}

// refund is how far the ledger has it.
func (r *refunding) refund() domain.Refund {
	refund, _ := r.s.Charge.Refund(r.id)
	return refund
}

// carryRefunds walks every pending refund, also when one before it could not be
// brought to its outcome and those that are requested meanwhile, and then looks
// for refunds that went back on theirs.
func (w *walk) carryRefunds(ctx context.Context) error {
	var open []error
	for tried := map[string]bool{}; ; {
		id, found := w.nextRefund(tried)
		if !found {
			break
		}
		tried[id] = true
		err := w.carryRefund(ctx, id)
		if isOver(ctx, err) {
			return err
		}
		open = append(open, err)
	}
	err := w.reverseRefunds(ctx)
	if isOver(ctx, err) {
		return err
	}
	return verdict(append(open, err))
}

// nextRefund is the oldest pending refund that has not been tried.
func (w *walk) nextRefund(tried map[string]bool) (id string, found bool) {
	for _, pending := range w.s.Charge.PendingRefunds() {
		if !tried[pending.ID] {
			return pending.ID, true
		}
	}
	return "", false
}

// isOver tells whether an error ends the walk and not one refund's part of it:
// the stream has moved on, the delivery is somebody else's, or time is up.
func isOver(ctx context.Context, err error) bool {
	return ledger.IsConflict(err) || inbox.IsLost(err) || ctx.Err() != nil
}

func (w *walk) carryRefund(ctx context.Context, id string) error {
	r := &refunding{walk: w, id: id}
	for _, step := range refundSteps() {
		if r.refund().Status != domain.RefundStatusPending {
			break
		}
		if err := step.run(r, ctx); err != nil {
			return fmt.Errorf("%s refund %s: %w", step.name, id, err)
		}
	}
	return nil
}

// look asks the provider's list for the refund. One that moves money, or may
// yet, is preferred to one that failed; two of them are for a human.
//
// What looks like the first send is no exception: an older message of the charge
// may have sent the refund, and been parked or discarded since.
//
// The same list tells of refunds that went back on their outcome, see reversal.go.
//
// If we die here: nothing has changed, and the next holder looks again.
// Test: TestRefund_killed.
func (r *refunding) look(ctx context.Context) error {
	var failed, moving, all []stripe.Refund
	for listed, err := range r.Provider.RefundsOf(ctx, r.s.Charge.PaymentIntent) {
		if err != nil {
			return r.outside(ctx, err, nil)
		}
		all = append(all, listed)
		switch {
		case listed.Reference != r.id:
		case isFailed(listed):
			failed = append(failed, listed)
		default:
			moving = append(moving, listed)
		}
	}
	r.gone = r.goneOf(all)
	switch {
	case len(moving) > 1:
		return &inbox.ParkError{Err: fmt.Errorf("the provider has %d refunds for it, %s and %s among them", len(moving), moving[0].ID, moving[1].ID)}
	case len(moving) == 1:
		r.found = &moving[0]
	case len(failed) > 0:
		r.found = &failed[0]
	}
	return nil
}

// isFailed tells whether no money moves by the refund any more.
func isFailed(r stripe.Refund) bool {
	return r.Status == stripe.RefundFailed || r.Status == stripe.RefundCanceled
}

// send asks the provider for the refund, which was not found there.
//
// If we die here: the provider has it or not, and nobody here knows. The next
// holder looks, and sends under the same key only what is not there.
// Test: TestRefund_killed, e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func (r *refunding) send(ctx context.Context) error {
	if r.found != nil {
		return nil
	}
	refund := r.refund()
	key := r.s.At(refund.AttemptVersion).ID.String()
	sent, err := r.Provider.CreateRefund(ctx, key, stripe.RefundParams{
		Reference: refund.ID, PaymentIntent: r.s.Charge.PaymentIntent,
		Amount: refund.Amount, Currency: string(r.s.Charge.Amount.Currency),
	})
	var rejected *stripe.RejectedError
	var declined *stripe.DeclinedError
	switch {
	case err == nil:
		r.found = &sent
		return nil
	case errors.As(err, &rejected):
		return r.refused(ctx, rejected.Message)
	case errors.As(err, &declined):
		return r.refused(ctx, declined.Decline.Message)
	default:
		return r.outside(ctx, err, func(e *stripe.FailedError) domain.Command {
			return domain.FailRefundAttempt{RefundID: r.id, StatusCode: e.StatusCode, RequestID: e.RequestID}
		})
	}
}

// refused is for a send that the provider did not carry out. Either an earlier
// send is the reason, and the refund is in the list, or there will be none.
func (r *refunding) refused(ctx context.Context, why string) error {
	if err := r.look(ctx); err != nil || r.found != nil {
		return err
	}
	if why == "" {
		why = "the provider refused the refund"
	}
	return r.commit(ctx, domain.FailRefund{RefundID: r.id, Code: domain.ProviderRefused, Message: why})
}

// record commits what the provider says of the refund: the refund's outcome,
// postings, message and, if nothing else is pending, the end of the delivery.
//
// If we die here: the provider's list knows how the refund ended. The next
// holder finds it there and sends nothing.
// Test: TestRefund_killed, e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func (r *refunding) record(ctx context.Context) error {
	found := *r.found
	if err := r.check(found); err != nil {
		return &inbox.ParkError{Err: err}
	}
	switch found.Status {
	case stripe.RefundSucceeded:
		return r.commit(ctx, domain.SucceedRefund{
			RefundID:       r.id,
			Provider:       domain.Provider,
			ProviderRefund: found.ID,
			Amount:         domain.Money{Amount: found.Amount, Currency: domain.Currency(found.Currency)},
		})
	case stripe.RefundFailed, stripe.RefundCanceled:
		return r.commit(ctx, domain.FailRefund{
			RefundID: r.id, ProviderRefund: found.ID, Code: domain.ProviderRefused, Message: failureOf(found),
		})
	case stripe.RefundPending, stripe.RefundRequiresAction:
		return underWay(fmt.Errorf("it is %s at the provider", found.Status))
	default:
		return &inbox.ParkError{Err: fmt.Errorf("%s is %q: payonce does not know what to do with it", found.ID, found.Status)}
	}
}

// check refuses an object that is not this refund's.
func (r *refunding) check(found stripe.Refund) error {
	c, refund := r.s.Charge, r.refund()
	if found.Reference != r.id || found.PaymentIntent != c.PaymentIntent ||
		found.Amount != refund.Amount || found.Currency != string(c.Amount.Currency) {
		return fmt.Errorf("%s gives %d %s of %s back for %q: %w",
			found.ID, found.Amount, found.Currency, found.PaymentIntent, found.Reference, domain.ErrMismatch)
	}
	return nil
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
