package fulfillment

import (
	"context"
	"errors"
	"fmt"
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
	reversed  []stripe.Refund          // failed after they had succeeded, by the newest list
}

// processRefunds processes every pending refund, also after one that could not be brought
// to its outcome and those that are requested meanwhile, and then records reversals.
func (r *run) processRefunds(ctx context.Context) error {
	var errs []error
	tried := map[string]bool{}
	for id := r.nextRefund(tried); id != ""; id = r.nextRefund(tried) {
		tried[id] = true
		err := r.processRefund(ctx, id)
		if endsRun(ctx, err) {
			return err
		}
		errs = append(errs, err)
	}
	err := r.recordReversals(ctx)
	if endsRun(ctx, err) {
		return err
	}
	return mostUrgent(append(errs, err))
}

// nextRefund is the oldest pending refund that was not tried; empty if all were.
func (r *run) nextRefund(tried map[string]bool) string {
	for _, pending := range r.stream.Charge.PendingRefunds() {
		if !tried[pending.ID] {
			return pending.ID
		}
	}
	return ""
}

// endsRun reports whether an error ends the run and not only one refund's part of it: the
// lease is lost, or time is up.
func endsRun(ctx context.Context, err error) bool { return inbox.IsLost(err) || ctx.Err() != nil }

func (r *run) processRefund(ctx context.Context, id string) error {
	for isPending(r.stream, id) {
		_, err := r.do(ctx, func(ctx context.Context, s ledger.Stream) (decision, error) { return r.refunds.run(ctx, s, id) })
		if err != nil {
			return fmt.Errorf("refund %s: %w", id, err)
		}
	}
	return nil
}

func isPending(s ledger.Stream, id string) bool {
	refund, _ := s.Charge.Refund(id)
	return refund.Status == domain.RefundStatusPending
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
// Test: TestRefund_killed.
func (r *refunds) find(ctx context.Context, s ledger.Stream, id string) error {
	all, err := r.list(ctx, s)
	if err != nil {
		return err
	}
	var failed, moving []stripe.Refund
	for _, listed := range all {
		switch {
		case listed.Reference != id:
		case isFailed(listed):
			failed = append(failed, listed)
		default:
			moving = append(moving, listed)
		}
	}
	switch {
	case len(moving) > 1:
		return &inbox.ParkError{Err: fmt.Errorf("the provider has %d refunds for it, %s and %s among them", len(moving), moving[0].ID, moving[1].ID)}
	case len(moving) == 1:
		r.found[id] = moving[0]
	case len(failed) > 0:
		r.found[id] = failed[0]
	}
	return nil
}

// list reads all refunds of the charge's intent, and notes those that were reversed.
func (r *refunds) list(ctx context.Context, s ledger.Stream) ([]stripe.Refund, error) {
	var all, reversed []stripe.Refund
	for listed, err := range r.provider.RefundsOf(ctx, s.Charge.PaymentIntent) {
		if err != nil {
			_, err = callFailed(ctx, err, nil)
			return nil, err
		}
		all = append(all, listed)
		if isFailed(listed) && succeededBy(s, listed.ID) != "" {
			reversed = append(reversed, listed)
		}
	}
	r.reversed = reversed
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
// Test: TestRefund_killed, e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func (r *refunds) send(ctx context.Context, s ledger.Stream, id string) (decision, error) {
	refund, _ := s.Charge.Refund(id)
	key := s.At(refund.AttemptVersion).ID.String()
	sent, err := r.provider.CreateRefund(ctx, key, stripe.RefundParams{
		Reference: id, PaymentIntent: s.Charge.PaymentIntent,
		Amount: refund.Amount, Currency: string(s.Charge.Amount.Currency),
	})
	var rejected *stripe.RejectedError
	var declined *stripe.DeclinedError
	switch {
	case err == nil:
		r.found[id] = sent
		return recordRefund(s, id, sent)
	case errors.As(err, &rejected):
		return r.refused(ctx, s, id, rejected.Message)
	case errors.As(err, &declined):
		return r.refused(ctx, s, id, declined.Decline.Message)
	default:
		return callFailed(ctx, err, func(e *stripe.FailedError) domain.Command {
			return domain.FailRefundAttempt{RefundID: id, StatusCode: e.StatusCode, RequestID: e.RequestID}
		})
	}
}

// refused handles a send that the provider did not carry out: an earlier send is the
// reason, and the refund is in the list, or there will be none.
func (r *refunds) refused(ctx context.Context, s ledger.Stream, id, why string) (decision, error) {
	if err := r.find(ctx, s, id); err != nil {
		return decision{}, err
	}
	if found, ok := r.found[id]; ok {
		return recordRefund(s, id, found)
	}
	if why == "" {
		why = "the provider refused the refund"
	}
	return decision{command: domain.FailRefund{RefundID: id, Code: domain.ProviderRefused, Message: why}}, nil
}

// recordRefund records the state of the provider's object.
//
// If we die here: the provider's list holds the refund. The next worker finds it there and
// sends nothing.
// Test: TestRefund_killed, e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
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
	for _, reversed := range r.refunds.reversed {
		for id := succeededBy(r.stream, reversed.ID); id != ""; id = succeededBy(r.stream, reversed.ID) {
			reverse := domain.ReverseRefund{RefundID: id, ProviderRefund: reversed.ID, Message: failureOf(reversed)}
			_, err := r.do(ctx, func(context.Context, ledger.Stream) (decision, error) { return decision{command: reverse}, nil })
			if err != nil {
				return fmt.Errorf("reverse refund %s: %w", id, err)
			}
		}
	}
	return listErr
}

// succeededBy is the id of the refund that succeeded by an object of the provider; empty
// if there is none.
func succeededBy(s ledger.Stream, object string) string {
	for _, r := range s.Charge.Refunds {
		if r.Status == domain.RefundStatusSucceeded && r.ProviderRefund == object {
			return r.ID
		}
	}
	return ""
}

// mostUrgent joins the errors of several refunds into the one that decides what the inbox
// does next. errs may hold nil; the text has all of them.
//
//   - An error comes first: it counts as an attempt, and a wait beside it would hide it.
//   - A wait lasts until the earliest time that any refund asks for. It is patient only if
//     all refunds are.
//   - A park comes last: it stops every refund of the charge, so it waits until none is
//     left that could still move.
func mostUrgent(errs []error) error {
	var texts []string
	var failed, parked bool
	var wait *inbox.WaitError
	patient := true
	for _, err := range errs {
		if err == nil {
			continue
		}
		texts = append(texts, err.Error())
		var parking *inbox.ParkError
		var waiting *inbox.WaitError
		switch {
		case errors.As(err, &parking):
			parked = true
		case !errors.As(err, &waiting):
			failed = true
		default:
			patient = patient && waiting.Patient
			if wait == nil || waiting.AtLeast < wait.AtLeast {
				wait = waiting
			}
		}
	}
	all := errors.New(strings.Join(texts, "; "))
	switch {
	case failed:
		return all
	case wait != nil:
		return &inbox.WaitError{AtLeast: wait.AtLeast, Patient: patient && !parked, Err: all}
	case parked:
		return &inbox.ParkError{Err: all}
	}
	return nil
}
