package fulfillment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

// refunds processes the refunds of one charge. It remembers what the provider answered in
// one delivery.
//
// A refund has no object at the provider before it is sent, so nothing can be recorded
// first that would make a second send harmless. Two guards together do. All sends of one
// attempt carry one key, which covers concurrent and repeated sends for as long as the
// provider keeps keys. And before every send the worker reads the provider's list of
// refunds, in which it finds ours by its id, however old it is.
type refunds struct {
	provider  *stripe.Client
	requested bool                     // the message asks for a read of the list though no refund is pending
	found     map[string]stripe.Refund // the provider's objects of pending refunds, by our ids
	failed    map[string]string        // why objects in the provider's list move no money any more, by their ids
}

// processRefunds processes every pending refund, those that are requested meanwhile
// included, and then records reversals. A refund that waits, or that needs an operator,
// does not keep the others from their outcome. Every other error ends the run.
func (r *run) processRefunds(ctx context.Context) error {
	var errs []error
	stuck := map[string]bool{}
	for id := r.refunds.next(r.stream.Charge, stuck); id != ""; id = r.refunds.next(r.stream.Charge, stuck) {
		err := r.do(ctx, func(ctx context.Context, s ledger.Stream) (decision, error) { return r.refunds.run(ctx, s, id) })
		if err == nil {
			continue // recorded, or another writer was first
		}
		err = fmt.Errorf("refund %s: %w", id, err)
		if !isStuck(err) {
			return err
		}
		stuck[id] = true
		errs = append(errs, err)
	}
	if err := r.recordReversals(ctx); err != nil {
		if !isStuck(err) {
			return err
		}
		errs = append(errs, err)
	}
	return mostUrgent(errs)
}

// next is the oldest pending refund that is not stuck; empty if there is none.
func (*refunds) next(c domain.Charge, stuck map[string]bool) string {
	for _, pending := range c.PendingRefunds() {
		if !stuck[pending.ID] {
			return pending.ID
		}
	}
	return ""
}

// isStuck reports whether an error waits for an external service or needs an operator.
func isStuck(err error) bool {
	_, waits := errors.AsType[*inbox.WaitError](err)
	_, parks := errors.AsType[*inbox.ParkError](err)
	return waits || parks
}

// run looks for the refund at the provider, sends it if it is not there, and returns what
// is to be recorded.
func (r *refunds) run(ctx context.Context, s ledger.Stream, id string) (decision, error) {
	if _, found := r.found[id]; !found {
		if err := r.find(ctx, s, id); err != nil {
			return decision{}, err
		}
	}
	if found, ok := r.found[id]; ok {
		return recordRefund(s, id, found)
	}
	return r.send(ctx, s, id)
}

// find reads the provider's list for the refund. One that moves money, or may yet, is
// preferred to one that failed; an operator decides about two of them.
//
// It runs before the first send as well: an older message of the charge may have sent the
// refund, and been parked or discarded since.
//
// If we die here: nothing has changed; the next worker reads the list again.
// Test: TestFaults.
func (r *refunds) find(ctx context.Context, s ledger.Stream, id string) error {
	all, err := r.list(ctx, s)
	if err != nil {
		return err
	}
	moving := slices.DeleteFunc(slices.Clone(all), func(o stripe.Refund) bool { return o.Reference != id || isFailed(o) })
	failed := slices.IndexFunc(all, func(o stripe.Refund) bool { return o.Reference == id && isFailed(o) })
	switch {
	case len(moving) > 1:
		return &inbox.ParkError{Err: fmt.Errorf("the provider has %d refunds for it, %s and %s among them", len(moving), moving[0].ID, moving[1].ID)}
	case len(moving) == 1:
		r.found[id] = moving[0]
	case failed >= 0:
		r.found[id] = all[failed]
	}
	return nil
}

// list reads all refunds of the charge's intent, and notes those that failed.
func (r *refunds) list(ctx context.Context, s ledger.Stream) (all []stripe.Refund, err error) {
	for object, err := range r.provider.RefundsOf(ctx, s.Charge.PaymentIntent) {
		if err != nil {
			_, err = callFailed(ctx, err, nil)
			return nil, err
		}
		all = append(all, object)
	}
	for _, object := range all {
		if isFailed(object) {
			r.failed[object.ID] = failureOf(object)
		}
	}
	return all, nil
}

// isFailed reports whether the refund moves no money any more.
func isFailed(r stripe.Refund) bool {
	return r.Status == stripe.RefundFailed || r.Status == stripe.RefundCanceled
}

// send asks the provider for a refund that is not in its list.
//
// If we die here: the provider has the refund or not, and nothing is recorded. The next
// worker reads the list, and sends under the same key only what is not there.
// Test: TestFaults, e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func (r *refunds) send(ctx context.Context, s ledger.Stream, id string) (decision, error) {
	refund, _ := s.Charge.Refund(id)
	key := s.At(refund.AttemptVersion).ID.String()
	sent, err := r.provider.CreateRefund(ctx, key, stripe.RefundParams{
		Reference: id, PaymentIntent: s.Charge.PaymentIntent,
		Amount: refund.Amount, Currency: string(s.Charge.Amount.Currency),
	})
	if err == nil {
		r.found[id] = sent
		return recordRefund(s, id, sent)
	}
	why, refused := refusal(err, "the provider refused the refund")
	if !refused {
		return callFailed(ctx, err, func(e *stripe.FailedError) domain.Command {
			return domain.FailRefundAttempt{RefundID: id, StatusCode: e.StatusCode, RequestID: e.RequestID}
		})
	}
	// An earlier send is the reason, and the refund is in the list, or there will be none.
	if err := r.find(ctx, s, id); err != nil {
		return decision{}, err
	}
	if found, ok := r.found[id]; ok {
		return recordRefund(s, id, found)
	}
	return decision{command: domain.FailRefund{RefundID: id, Code: domain.ProviderRefused, Message: why.Message}}, nil
}

// recordRefund records the state of the provider's object.
//
// If we die here: the provider's list holds the refund. The next worker finds it there and
// sends nothing.
// Test: TestFaults, e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func recordRefund(s ledger.Stream, id string, found stripe.Refund) (decision, error) {
	c := s.Charge
	if refund, _ := c.Refund(id); found.Reference != id || found.PaymentIntent != c.PaymentIntent ||
		found.Amount != refund.Amount || found.Currency != string(c.Amount.Currency) {
		return decision{}, &inbox.ParkError{Err: fmt.Errorf("%s gives %d %s of %s back for %q: %w",
			found.ID, found.Amount, found.Currency, found.PaymentIntent, found.Reference, domain.ErrMismatch)}
	}
	switch found.Status {
	case stripe.RefundSucceeded:
		return decision{command: domain.SucceedRefund{
			RefundID: id, Provider: domain.Provider, ProviderRefund: found.ID,
			Amount: domain.Money{Amount: found.Amount, Currency: domain.Currency(found.Currency)},
		}}, nil
	case stripe.RefundFailed, stripe.RefundCanceled:
		return decision{command: domain.FailRefund{
			RefundID: id, ProviderRefund: found.ID, Code: domain.ProviderRefused, Message: failureOf(found),
		}}, nil
	case stripe.RefundPending, stripe.RefundRequiresAction:
		return decision{}, processing(fmt.Errorf("it is %s at the provider", found.Status))
	default:
		return decision{}, &inbox.ParkError{Err: fmt.Errorf("%s is %q: payonce does not know what to do with it", found.ID, found.Status)}
	}
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

// recordReversals records the refunds that failed at the provider after they had succeeded
// there: the customer's bank sent the money back. A refund that failed here stays failed,
// whatever the provider's list says; reconciliation reports the difference.
//
// It uses every list that was read for a pending refund, since the provider's event about
// a reversal may wait behind this message for as long as the pending refund takes. For a
// message about refunds it reads the list. It runs after the pending refunds, so that
// nothing is committed between a read of the list and a send.
//
// If we die here: no commit has ended the delivery; the next worker reads the list again
// and finds reversed what was.
// Test: TestReversal/a_look_that_was_interrupted_is_repeated.
func (r *run) recordReversals(ctx context.Context) error {
	var listErr error
	if r.refunds.requested && r.stream.Charge.Refunded() > 0 {
		_, listErr = r.refunds.list(ctx, r.stream)
	}
	for r.refunds.reversal(r.stream.Charge) != nil {
		err := r.do(ctx, func(_ context.Context, s ledger.Stream) (decision, error) {
			return decision{command: r.refunds.reversal(s.Charge)}, nil
		})
		if err != nil {
			return fmt.Errorf("reverse a refund: %w", err)
		}
	}
	return listErr
}

// reversal reverses one refund that succeeded here and failed at the provider; nil if
// there is none.
func (r *refunds) reversal(c domain.Charge) domain.Command {
	for _, refund := range c.Refunds {
		if why, failed := r.failed[refund.ProviderRefund]; failed && refund.Status == domain.RefundStatusSucceeded {
			return domain.ReverseRefund{RefundID: refund.ID, ProviderRefund: refund.ProviderRefund, Message: why}
		}
	}
	return nil
}

// mostUrgent joins the errors of several refunds, waits and parks, into the one that
// decides what the inbox does next: a wait until the earliest time that any refund asks
// for, patient only if all are. Only if none waits, the message is parked: that stops every
// refund of the charge.
func mostUrgent(errs []error) error {
	var texts []string
	var waits []*inbox.WaitError
	patient := true
	for _, err := range errs {
		texts = append(texts, err.Error())
		wait, waiting := errors.AsType[*inbox.WaitError](err)
		if waiting {
			waits = append(waits, wait)
		}
		patient = patient && waiting && wait.Patient
	}
	all := errors.New(strings.Join(texts, "; "))
	switch {
	case len(waits) > 0:
		first := slices.MinFunc(waits, func(a, b *inbox.WaitError) int { return cmp.Compare(a.AtLeast, b.AtLeast) })
		return &inbox.WaitError{AtLeast: first.AtLeast, Patient: patient, Err: all}
	case len(errs) > 0:
		return &inbox.ParkError{Err: all}
	}
	return nil
}
