package fulfillment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// commit decides cmd on the stream and commits its events together with what
// also queues and the messages about outcomes. The commit after which nothing is
// left to be carried ends the delivery too. Nothing is written when cmd has
// happened.
//
// A version that somebody else took for something that does not concern cmd is
// no reason to ask the provider again: its answer is as true on the new stream,
// so cmd is decided there. Otherwise the conflict is returned, and the walk
// begins anew.
//
// If we die here: between a conflict and the next commit nothing is recorded.
// Whoever takes over asks the provider, which remembers.
// Test: TestLostRace_always.
func (w *walk) commit(ctx context.Context, cmd domain.Command, also ...func(*pgx.Batch, domain.Charge)) error {
	for round := 0; ; round++ {
		err := w.commitOnce(ctx, cmd, also)
		if !ledger.IsConflict(err) {
			return err
		}
		if round == rounds {
			return tooManyRaces(err)
		}
		if err := pause(ctx, longestPause); err != nil {
			return err
		}
		now, loadErr := w.Reader.load(ctx, w.s.ID)
		if loadErr != nil {
			return loadErr
		}
		if !stands(cmd, w.s.Charge, now.Charge) {
			return err
		}
		w.s = now
	}
}

// stands tells whether a command that was decided on a charge as it was then may
// be decided on it as it is now: what it speaks of must not have moved.
//
// An attempt that somebody else has ended is not ended again: the next one's key
// may be in use, and a third would let the provider do it twice. A payment that
// somebody else has started does not fail before its intent is canceled. And a
// merchant who cancels is heard before anything else is done.
func stands(cmd domain.Command, then, now domain.Charge) bool {
	switch cmd := cmd.(type) {
	case domain.FailRefundAttempt:
		return sameRefund(cmd.RefundID, then, now)
	case domain.SucceedRefund:
		return sameRefund(cmd.RefundID, then, now)
	case domain.FailRefund:
		return sameRefund(cmd.RefundID, then, now)
	case domain.ReverseRefund:
		return sameRefund(cmd.RefundID, then, now)
	case domain.ReserveInventory, domain.RejectInventory, domain.StartPayment, domain.FailAttempt,
		domain.CapturePayment, domain.DeclinePayment, domain.FailCanceled:
		return samePayment(then, now)
	case domain.RequestCharge, domain.CancelCharge, domain.RequestRefund, domain.NotifyMerchant:
		return false // not a walk's
	default:
		return false
	}
}

func samePayment(then, now domain.Charge) bool {
	return then.CancelRequested == now.CancelRequested &&
		then.Step(domain.Inventory) == now.Step(domain.Inventory) &&
		then.Step(domain.Payment) == now.Step(domain.Payment) &&
		then.PaymentIntent == now.PaymentIntent &&
		then.AttemptVersion == now.AttemptVersion
}

func sameRefund(id string, then, now domain.Charge) bool {
	before, _ := then.Refund(id)
	after, _ := now.Refund(id)
	return before == after
}

// commits bounds how often one batch is sent that the server rolled back, but may
// accept when it is retried.
const commits = 5

// commitOnce is a commit on the stream as it is at hand.
//
// An unknown outcome ends the delivery: the message is claimed again, and the claim
// is a commit of its own. What the next try reads was committed before it, so a
// synchronous standby has it before the provider is asked.
func (w *walk) commitOnce(ctx context.Context, cmd domain.Command, also []func(*pgx.Batch, domain.Charge)) error {
	events, err := domain.Decide(w.s.Charge, cmd)
	if errors.Is(err, domain.ErrMismatch) || errors.Is(err, domain.ErrFinished) {
		return &inbox.ParkError{Err: err}
	}
	if err != nil || len(events) == 0 {
		return err
	}
	for try := 1; ; try++ {
		b := &pgx.Batch{}
		next, err := w.queue(b, events, also)
		if err != nil {
			return err
		}
		err = w.DB.Commit(ctx, b)
		if err == nil {
			if w.ends(next) {
				w.result = inbox.Completed
			}
			w.s = next
			return nil
		}
		if !postgres.IsTransient(err) || try == commits {
			return fmt.Errorf("commit version %d of %s: %w", w.s.Charge.Version+1, w.s.ID, err)
		}
		if err := pause(ctx, time.Duration(try)*50*time.Millisecond); err != nil {
			return err
		}
	}
}

func (w *walk) queue(b *pgx.Batch, events []domain.Event, also []func(*pgx.Batch, domain.Charge)) (ledger.Stream, error) {
	next, err := ledger.Append(b, w.s, cause(w.d), events...)
	if err != nil {
		return next, err
	}
	for _, effect := range also {
		effect(b, w.s.Charge)
	}
	for _, e := range next.Events[w.s.Charge.Version:] {
		if domain.EventTypeNamed(e.Type).Webhook == "" {
			continue
		}
		if err := announce(b, next, e, w.d); err != nil {
			return next, err
		}
	}
	if w.ends(next) {
		inbox.Done(b, w.d)
	}
	return next, nil
}

// ends tells whether a commit that leads to next is the last of the delivery. A
// message that speaks of refunds has a look to come that may find nothing to
// commit, and so may have reversals that somebody else records first: both are
// left to the inbox to end.
func (w *walk) ends(next ledger.Stream) bool {
	return next.Charge.Complete() && !w.aboutRefunds && len(w.gone) == 0
}
