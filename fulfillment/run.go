package fulfillment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// deliveryRun processes one delivery about a charge. Steps never commit; deliveryRun does.
type deliveryRun struct {
	*Fulfillment
	delivery *inbox.Delivery
	version  int // of the event that the message names, 0 if it names none
	stream   ledger.Stream
	idle     int  // iterations in a row that recorded nothing
	ended    bool // a commit has ended the delivery

	// due returns the task that is next, or the zero task. record asks about the charge as its commit makes it:
	// if nothing is due then, the commit also ends the delivery. process asks again: the answer follows from the
	// charge and what run has set.
	due func(domain.Charge) task
}

// task is what is due: a step, a refund, an observation or a subscriber.
type task struct {
	name   string // for errors
	run    stepFunc
	forget func() // is called if the events of run lost a race; nil if run remembers nothing that may be old then
}

// load reads the stream. The message was committed with the event that it names; a server that shows less than this
// version is behind, such as a standby, and the message waits. It also waits if a newer program wrote an event, since a
// newer worker is being deployed. A charge whose first request is void has nothing to do and no merchant: the message
// becomes a dead letter. ErrNotFound if the message names no version and there is no charge.
func (r *deliveryRun) load(ctx context.Context, chargeID string) error {
	s, err := r.streams(ctx, chargeID)
	switch {
	case errors.Is(err, domain.ErrUnknownType):
		return &inbox.WaitError{Err: err}
	case err != nil && (r.version == 0 || !errors.Is(err, ledger.ErrNotFound)):
		return err
	case s.Charge.Version < r.version:
		return &inbox.WaitError{Err: fmt.Errorf("stream %s is read up to version %d, the message names version %d", chargeID, s.Charge.Version, r.version)}
	case s.Charge.MerchantID == "":
		return &inbox.DeadLetterError{Err: fmt.Errorf("stream %s: %w: its first event is void", chargeID, domain.ErrIllegal)}
	}
	r.stream = s
	return nil
}

// process does what is due until a commit has ended the delivery, nothing is due, or a step fails. Where nothing
// is due, the inbox ends the delivery.
func (r *deliveryRun) process(ctx context.Context) error {
	for !r.ended {
		t := r.due(r.stream.Charge)
		if t.run == nil {
			break
		}
		if err := r.do(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return nil
}

// maxIdle bounds how many iterations of a run in a row record nothing.
const maxIdle = 10

// do runs a task once and records its events. If another writer was first (version, stock, or inbox), nothing is
// recorded, the error of run is dropped, and the stream is loaded anew: process calls do again while there is
// still something to do.
//
// If we die here: between a lost race and the next commit nothing is recorded. The next worker asks the provider, which
// remembers. Test: TestDecides/LostRace/others_are_first_at_every_try_to_capture.
func (r *deliveryRun) do(ctx context.Context, t task) error {
	events, err := t.run(ctx, r.stream)
	if len(events) > 0 {
		commitErr := r.record(ctx, events)
		if groupcommit.Constraint(commitErr) == "ledger_events_by_payment_intent" {
			commitErr = r.record(ctx, r.stream.Charge.Fail(takenFailure))
		}
		if commitErr == nil {
			r.idle = 0
			return err
		}
		rival := groupcommit.Constraint(commitErr) == "inbox_one_first_per_key" // another message of the key was stored
		if !rival && !ledger.IsConflict(commitErr) && !isOutOfStock(commitErr) {
			return commitErr // ends the run; the inbox takes a lock for a wait
		}
		if t.forget != nil {
			t.forget()
		}
		err = r.load(ctx, r.stream.ID)
	}
	if err != nil {
		return err
	}
	r.idle++
	if r.idle > maxIdle { // no attempt is counted: the message is not the reason
		return &inbox.WaitError{Err: errors.New("the worker recorded nothing: other writers were first at every try")}
	}
	return nil
}

// takenFailure is why a charge fails if the payment intent that the provider returned for its key is
// already recorded for another charge.
var takenFailure = domain.Failure{Code: domain.ProviderRefused, Message: "the payment that was made under this key is another charge's"}

// record commits events, the rows that steps queue for them, and the messages
// about webhook events in one transaction, which also ends the delivery if nothing is left to do.
// An event that the charge does not allow makes a dead letter.
//
// An unknown outcome ends the run: a read now might show a commit that the synchronous standby lacks. The next begins
// after a new claim, which waits for the standby. If the unknown one has ended the delivery, this attempt is EndLost.
func (r *deliveryRun) record(ctx context.Context, events []domain.Event) error {
	b := &pgx.Batch{}
	next, err := r.queue(b, events)
	if errors.Is(err, domain.ErrIllegal) {
		return &inbox.DeadLetterError{Err: err}
	}
	if err != nil {
		return err
	}
	ends := r.due(next.Charge).run == nil
	if ends {
		err = r.delivery.Commit(ctx, r.db, b)
	} else {
		err = r.db.Commit(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("commit version %d of %s: %w", r.stream.Charge.Version+1, r.stream.ID, err)
	}
	r.stream, r.ended = next, ends
	return nil
}

// queue queues the events and what belongs to them.
func (r *deliveryRun) queue(b *pgx.Batch, events []domain.Event) (ledger.Stream, error) {
	d := r.delivery
	next, err := ledger.Append(b, r.stream, ledger.Cause{
		CorrelationID: d.Metadata[outbox.MetadataCorrelationID], CausationID: d.ID, Actor: "worker",
	}, events...)
	if err != nil {
		return next, err
	}
	for _, e := range next.Events[r.stream.Charge.Version:] {
		for _, s := range r.steps(nil) { // none of them runs here
			if s.queueRows != nil {
				s.queueRows(b, r.stream.Charge, e.Event)
			}
		}
		names := next.Charge.SubscribersOf(e.Event, e.Version)
		for _, to := range r.subscribers() {
			if slices.Contains(names, to.name) {
				r.announce(b, to, next, e)
			}
		}
		r.wakeRefund(b, next, e)
	}
	return next, nil
}
