package fulfillment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

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
// refunds, in which it finds ours by its id, however old it is. Both the key and the id follow
// from the client's key, so a refund that the database has lost is found too.
type refunds struct {
	provider *stripe.Client
	now      time.Time       // when the delivery was claimed, in database time
	unread   bool            // the message asks for a read of the list, whether a refund is pending or not
	seen     []stripe.Refund // the provider's objects, as this delivery last saw them
}

// next returns what is due, in this order:
//  1. the oldest pending refund that is not stuck;
//  2. the read of the list that the message asks for;
//  3. a refund to be reversed: it failed at the provider after it had succeeded, as the
//     customer's bank sent the money back;
//  4. a refund that only the list has, once it has succeeded there: it was made in the
//     provider's dashboard, or lost with a restore.
//
// So nothing is committed between a read of the list and a send. A refund that failed here
// stays failed, whatever the list says; reconciliation reports the difference.
//
// Every list that was read counts, since the provider's event about a reversal may wait
// behind this message for as long as a pending refund takes.
//
// If we die here: no commit has ended the delivery; the next worker reads the list again
// and finds reversed what was.
// Test: TestReversal/a_read_that_was_interrupted_is_repeated.
func (r *refunds) next(c domain.Charge, stuck map[string]error) work {
	for _, refund := range c.PendingRefunds() {
		if stuck[refund.ID] == nil {
			return r.work(refund)
		}
	}
	if list := "of " + c.PaymentIntent; r.unread && c.StepStatus(domain.Payment) == domain.StepDone && stuck[list] == nil {
		return work{"refund", list, func(ctx context.Context, s ledger.Stream) (decision, error) { return decision{}, r.list(ctx, s) }}
	}
	for _, refund := range c.Refunds {
		object, _, _ := r.find(refund)
		if refund.Status == domain.RefundStatusSucceeded && isFailed(object) && stuck[refund.ID] == nil {
			return r.work(refund)
		}
	}
	for _, object := range r.seen {
		if object.PaymentIntent != c.PaymentIntent {
			continue
		}
		_, known := c.Refund(object.Reference)
		observed := domain.ObserveRefund{RefundID: object.Reference, ProviderRefund: object.ID, Amount: amountOf(object)}
		if events, err := domain.Decide(c, observed); !known && object.Status == stripe.RefundSucceeded &&
			(err != nil || len(events) > 0) && stuck[object.ID] == nil {
			return work{"refund", object.ID, func(context.Context, ledger.Stream) (decision, error) { return decision{command: observed}, nil }}
		}
	}
	return work{}
}

func (r *refunds) work(refund domain.Refund) work {
	return work{"refund", refund.ID, func(ctx context.Context, s ledger.Stream) (decision, error) { return r.run(ctx, s, refund) }}
}

// run looks for the refund at the provider, sends it if it is not there, and returns what
// is to be recorded.
func (r *refunds) run(ctx context.Context, s ledger.Stream, refund domain.Refund) (decision, error) {
	object, found, err := r.find(refund)
	if !found {
		object, found, err = r.lookUp(ctx, s, refund)
	}
	switch {
	case err != nil:
		return decision{}, err
	case found:
		return r.record(s, refund, object)
	}
	if rest := r.inFlight(s, refund); rest > 0 {
		return decision{}, &inbox.WaitError{AtLeast: rest, Err: errInFlight}
	}
	return r.send(ctx, s, refund)
}

// longestRequest is more than the provider takes for a request.
const longestRequest = 2 * time.Minute

var errInFlight = errors.New("the refund that was requested with other parameters may be in flight")

// inFlight returns how much longer the earlier request under the conflicting key may still be
// executing: the provider compares parameters before it waits for a request, and a refund that is
// in flight is not in its list. Both times are the database's.
func (r *refunds) inFlight(s ledger.Stream, refund domain.Refund) time.Duration {
	last := s.At(refund.AttemptVersion)
	failed, _ := last.Event.(domain.RefundAttemptFailed)
	switch {
	case failed.StatusCode != stripe.OtherParameters:
		return 0
	case last.RecordedAt.IsZero(): // by this delivery
		return longestRequest
	}
	return longestRequest - r.now.Sub(last.RecordedAt)
}

// lookUp reads the provider's list for the refund.
//
// It runs before the first send as well: an older message of the charge may have sent the
// refund, and may be a dead letter or discarded since.
//
// If we die here: nothing has changed; the next worker reads the list again.
// Test: TestFaults.
func (r *refunds) lookUp(ctx context.Context, s ledger.Stream, refund domain.Refund) (object stripe.Refund, found bool, err error) {
	if err := r.list(ctx, s); err != nil {
		return stripe.Refund{}, false, err
	}
	return r.find(refund)
}

// list reads all refunds of the charge's intent.
func (r *refunds) list(ctx context.Context, s ledger.Stream) error {
	all, err := collect(r.provider.Refunds(ctx, s.Charge.PaymentIntent))
	if err != nil {
		_, err = callFailed(ctx, err, nil)
		return err
	}
	r.seen, r.unread = all, false
	return nil
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

func amountOf(o stripe.Refund) domain.Money {
	return domain.Money{Amount: o.Amount, Currency: domain.Currency(o.Currency)}
}

// find returns what was seen of a refund: the object that ended it, or one with our id. One
// that moves money, or may yet, is preferred to one that failed; an operator decides about
// two of them.
func (r *refunds) find(refund domain.Refund) (found stripe.Refund, ok bool, err error) {
	for _, o := range r.seen {
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

// isFailed reports whether the refund moves no money any more.
func isFailed(r stripe.Refund) bool {
	return r.Status == stripe.RefundFailed || r.Status == stripe.RefundCanceled
}

// send asks the provider for a refund that is not in its list.
//
// If we die here: the provider has the refund or not, and nothing is recorded. The next
// worker reads the list, and sends under the same key only what is not there.
// Test: TestFaults, TestWalk in e2e.
func (r *refunds) send(ctx context.Context, s ledger.Stream, refund domain.Refund) (decision, error) {
	key := fmt.Sprintf("%s-%d", refund.ID, refund.Failures)
	sent, err := r.provider.CreateRefund(ctx, key, stripe.RefundParams{
		Reference: refund.ID, PaymentIntent: s.Charge.PaymentIntent,
		Amount: refund.Amount, Currency: string(s.Charge.Amount.Currency),
	})
	if err == nil {
		r.seen = append(r.seen, sent)
		return r.record(s, refund, sent)
	}
	why, refused := refusal(err, "the provider refused the refund")
	if !refused {
		if refund.IsLastKey() {
			return callFailed(ctx, err, nil)
		}
		return callFailed(ctx, err, func(e *stripe.FailedError) domain.Command {
			return domain.FailRefundAttempt{RefundID: refund.ID, StatusCode: e.StatusCode, RequestID: e.RequestID}
		})
	}
	// An earlier send is the reason, and the refund is in the list, or there will be none.
	object, found, err := r.lookUp(ctx, s, refund)
	switch {
	case err != nil:
		return decision{}, err
	case found:
		return r.record(s, refund, object)
	}
	return decision{command: domain.ResolveRefund{RefundID: refund.ID, Failed: true, Message: why.Message}}, nil
}

// record records the state of the provider's object.
//
// If we die here: the provider's list holds the refund. The next worker finds it there and
// sends nothing.
// Test: TestFaults, TestWalk in e2e.
func (r *refunds) record(s ledger.Stream, refund domain.Refund, found stripe.Refund) (decision, error) {
	c := s.Charge
	// A refund that was made outside goes by the provider's id.
	if cmp.Or(found.Reference, found.ID) != refund.ID || found.PaymentIntent != c.PaymentIntent ||
		found.Amount != refund.Amount || found.Currency != string(c.Amount.Currency) {
		return decision{}, &inbox.DeadLetterError{Err: fmt.Errorf("%s gives %d %s of %s back for %q: %w",
			found.ID, found.Amount, found.Currency, found.PaymentIntent, found.Reference, domain.ErrMismatch)}
	}
	resolved := domain.ResolveRefund{RefundID: refund.ID, ProviderRefund: found.ID, Amount: amountOf(found)}
	switch found.Status {
	case stripe.RefundSucceeded:
	case stripe.RefundFailed, stripe.RefundCanceled:
		resolved.Failed, resolved.Message = true, failureOf(found)
	case stripe.RefundPending, stripe.RefundRequiresAction:
		return decision{}, processingWait(r.now, s, fmt.Errorf("it is %s at the provider", found.Status))
	default:
		return decision{}, &inbox.DeadLetterError{Err: fmt.Errorf("%s is %q: payonce does not know what to do with it", found.ID, found.Status)}
	}
	return decision{command: resolved}, nil
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

// isStuck reports whether an error waits for an external service or needs an operator.
func isStuck(err error) bool {
	_, waits := errors.AsType[*inbox.WaitError](err)
	_, dead := errors.AsType[*inbox.DeadLetterError](err)
	return waits || dead
}

// waitsForBank reports whether a refund waits for as long as its bank takes.
func waitsForBank(stuck map[string]error) bool {
	for _, err := range stuck {
		if wait, waits := errors.AsType[*inbox.WaitError](err); waits && wait.NoDeadline {
			return true
		}
	}
	return false
}

// mostUrgent joins the errors of several refunds, waits and dead letters, into the one that
// decides what the inbox does next: a wait until the earliest time that any refund asks
// for, without a deadline only if all are. Only if none waits, the message becomes a dead letter:
// after that only another message of the charge, or an operator, continues its refunds.
func mostUrgent(stuck map[string]error) error {
	var texts []string
	var first *inbox.WaitError
	noDeadline, needsOperator := true, false
	for _, id := range slices.Sorted(maps.Keys(stuck)) {
		texts = append(texts, stuck[id].Error())
		wait, waits := errors.AsType[*inbox.WaitError](stuck[id])
		if waits && (first == nil || wait.AtLeast < first.AtLeast) {
			first = wait
		}
		noDeadline = noDeadline && waits && wait.NoDeadline
		needsOperator = needsOperator || waits && wait.NeedsOperator
	}
	all := errors.New(strings.Join(texts, "; "))
	switch {
	case len(stuck) == 0:
		return nil
	case first == nil:
		return &inbox.DeadLetterError{Err: all}
	}
	return &inbox.WaitError{AtLeast: first.AtLeast, NoDeadline: noDeadline, NeedsOperator: needsOperator, Err: all}
}
