package fulfillment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// The receivers of charges and their refunds, of the merchant's webhooks, and of webhooks
// that an operator sends again.
const (
	ChargeReceiver       = "fulfillment"
	NotificationReceiver = domain.Notification
	ResendReceiver       = "resend"
)

// Fulfillment handles the messages of Receivers.
type Fulfillment struct {
	// OnStep, where set, is called before a step. The step runs in the context that it
	// returns; done is called after the step, with whether the step had work to do and its
	// error. Both must return at once.
	OnStep func(ctx context.Context, step string) (within context.Context, done func(worked bool, err error))

	db       *postgres.DB
	services Services
	log      *slog.Logger

	// Reads that several handlers ask for at the same moment share a round trip
	// (postgres.Reads); nothing is cached.
	streams   func(ctx context.Context, charge string) (ledger.Stream, error)
	endpoints func(ctx context.Context, merchant string) (merchants.Endpoint, error)
	stock     *postgres.Reads[[]article, map[article]int64]
}

// maxReadsInFlight bounds how many reads of one kind are in flight, so that slow reads leave
// connections to the commits.
const maxReadsInFlight = 4

// New returns the handlers of one process.
func New(db *postgres.DB, services Services, log *slog.Logger) *Fulfillment {
	return &Fulfillment{
		db: db, services: services, log: log,
		streams: ledger.NewLoader(db, maxReadsInFlight), endpoints: merchants.NewEndpoints(db, maxReadsInFlight), stock: newStock(db),
	}
}

// maxIdle bounds how many iterations of a run in a row record nothing.
const maxIdle = 10

// deliveryRun processes one delivery about a charge. Steps never commit; deliveryRun and resolve
// do.
type deliveryRun struct {
	*Fulfillment
	delivery *inbox.Delivery
	version  int // of the event that the message names, 0 if it names none
	stream   ledger.Stream
	steps    []step
	next     func(domain.Charge) work // what is due; the zero work if nothing is
	once     bool                     // the first commit ends the delivery, and not only the one after which nothing is due
	reread   func()                   // after a lost race: what was read of the provider may be older than the stream
	stuck    map[string]error         // by refunds that wait, or that need an operator
	idle     int                      // iterations in a row that recorded nothing
	ended    bool                     // a commit ended the delivery
}

// work is what is due.
type work struct {
	step   string // one of Steps, or a subscriber
	refund string // or the dispute that it is about, if any
	act    act
}

// charge is the inbox handler that brings one charge to its outcome, and then every
// pending refund of it.
//
// The ordering key names the charge. Of the payload it reads only the version of the
// event; of an event of the provider only the type: if it is about refunds or disputes, the
// provider's list says which are new, and what became of the others.
func (f *Fulfillment) charge(ctx context.Context, d *inbox.Delivery) error {
	r := &deliveryRun{Fulfillment: f, delivery: d, steps: f.steps(d.ClaimedAt), stuck: map[string]error{}}
	refunds := &refunds{provider: f.services.Provider, now: d.ClaimedAt, unread: isAboutRefunds(d.Type)}
	disputes := &disputes{provider: f.services.Provider, unread: isAboutDisputes(d.Type), waited: d.Waits > 0}
	r.reread = disputes.forget
	r.next = func(c domain.Charge) work {
		if !c.Terminal() {
			return r.nextStep(c)
		}
		if w := refunds.next(c, r.stuck); w.act != nil {
			return w
		}
		return disputes.next(c, r.stuck)
	}
	if envelope, err := ledger.DecodeEnvelope(d.Payload); err == nil {
		r.version = envelope.Version
	}
	err := r.load(ctx, d.OrderingKey)
	if errors.Is(err, ledger.ErrNotFound) && strings.HasPrefix(d.Type, ProviderEvent) {
		f.log.InfoContext(ctx, "provider event of an unknown charge", "message_id", d.ID, "charge_id", d.OrderingKey, "type", d.Type)
		return nil
	}
	if err != nil {
		return err
	}
	return r.process(ctx)
}

// nextStep is the step that is due; a cancellation on request or by a deadline comes before it.
func (r *deliveryRun) nextStep(c domain.Charge) work {
	i := slices.IndexFunc(r.steps, func(s step) bool { return s.name == c.Next() })
	switch {
	case i < 0: // no message of such a charge may end as done
		return work{step: domain.Payment, act: func(context.Context, ledger.Stream) (decision, error) {
			return decision{}, fmt.Errorf("charge %s has no outcome after its last step", c.ID)
		}}
	case c.CancelDue(r.delivery.ClaimedAt) == "":
		return work{step: r.steps[i].name, act: r.steps[i].run}
	case r.steps[i].cancel != nil:
		return work{step: "cancel", act: r.steps[i].cancel}
	}
	return work{step: "cancel", act: func(context.Context, ledger.Stream) (decision, error) {
		return decision{command: domain.FailCanceled{Now: r.delivery.ClaimedAt}}, nil
	}}
}

// subscriberHandler is the inbox handler of a subscriber.
func (f *Fulfillment) subscriberHandler(to subscriber) inbox.Handler {
	return func(ctx context.Context, d *inbox.Delivery) error {
		envelope, err := ledger.DecodeEnvelope(d.Payload)
		if err != nil {
			return &inbox.DeadLetterError{Err: err}
		}
		r := &deliveryRun{Fulfillment: f, delivery: d, version: envelope.Version, once: true}
		if err := r.load(ctx, envelope.ChargeID); err != nil {
			return err
		}
		outcome := r.stream.At(envelope.Version)
		if domain.EventTypeNamed(outcome.Type).Webhook == "" {
			return &inbox.DeadLetterError{Err: fmt.Errorf("message %s names a %s of %s, which is no webhook event", d.ID, outcome.Type, r.stream.ID)}
		}
		due := work{step: to.name, act: to.step(d, outcome.Version)}
		r.next = func(c domain.Charge) work {
			if d.Type != TypeResend && !c.SubscriberPending(to.name, outcome.Version) {
				return work{}
			}
			return due
		}
		return r.process(ctx)
	}
}

// load reads the stream. The message was committed with the event that it names; a
// server that shows less than this version is behind, such as a standby, and the message
// waits. It also waits if a newer program wrote an event, since a newer worker is being
// deployed. A charge whose first request is void has nothing to do and no merchant: the message
// becomes a dead letter. ErrNotFound if the message names no version and there is no charge.
func (r *deliveryRun) load(ctx context.Context, charge string) error {
	s, err := r.streams(ctx, charge)
	switch {
	case errors.Is(err, domain.ErrUnknownType):
		return &inbox.WaitError{Err: err}
	case err != nil && (r.version == 0 || !errors.Is(err, ledger.ErrNotFound)):
		return err
	case s.Charge.Version < r.version:
		return &inbox.WaitError{Err: fmt.Errorf("stream %s is read up to version %d, the message names version %d", charge, s.Charge.Version, r.version)}
	case s.Charge.MerchantID == "":
		return &inbox.DeadLetterError{Err: fmt.Errorf("stream %s: %w: its first event is void", charge, domain.ErrIllegal)}
	}
	r.stream = s
	return nil
}

// process does what is due until nothing is, or a commit has ended the delivery. A refund
// that waits, or that needs an operator, does not keep the others from their outcome.
// Every other error ends the run.
func (r *deliveryRun) process(ctx context.Context) error {
	for !r.ended {
		w := r.next(r.stream.Charge)
		if w.act == nil {
			break
		}
		err := r.observed(ctx, w.step, func(ctx context.Context) error { return r.do(ctx, w.act) })
		if err == nil {
			continue
		}
		if w.refund == "" {
			return fmt.Errorf("%s: %w", w.step, err)
		}
		err = fmt.Errorf("%s %s: %w", w.step, w.refund, err)
		if !isStuck(err) {
			return err
		}
		r.stuck[w.refund] = err
	}
	return mostUrgent(r.stuck)
}

// do calls act once and records its decision. If another writer was first, to the stream's
// next version or to the stock, nothing is recorded and the stream is the new one: process
// calls do again while there is still something to do.
//
// If we die here: between a lost race and the next commit nothing is recorded. The next
// worker asks the provider, which remembers.
// Test: TestLostRace_atEveryTry.
func (r *deliveryRun) do(ctx context.Context, act act) error {
	d, err := act(ctx, r.stream)
	if d.command == nil && err != nil {
		return err
	}
	if d.command != nil {
		commitErr := r.record(ctx, d)
		if groupcommit.Constraint(commitErr) == "ledger_events_by_payment_intent" {
			commitErr = r.record(ctx, decision{command: domain.DeclinePayment{Failure: takenFailure}})
		}
		if commitErr == nil {
			r.idle = 0
			return err
		}
		if !ledger.IsConflict(commitErr) && !isOutOfStock(commitErr) {
			return commitErr
		}
		if err := r.load(ctx, r.stream.ID); err != nil {
			return err
		}
		if r.reread != nil {
			r.reread()
		}
	}
	if r.idle++; r.idle > maxIdle { // no attempt is counted: the message is not the reason
		return &inbox.WaitError{Err: errIdle}
	}
	return nil
}

// takenFailure is why a charge fails whose key has made another charge, which has the payment.
var takenFailure = domain.Failure{Code: domain.ProviderRefused, Message: "the payment that was made under this key is another charge's"}

var (
	errIdle = errors.New("nothing was recorded: other writers were first at every try")
	// errUndecided keeps a due step whose command has happened from being run for ever.
	errUndecided = errors.New("the step is due and decided nothing")
)

// observed runs a step of a charge under OnStep.
func (r *deliveryRun) observed(ctx context.Context, name string, do func(context.Context) error) error {
	if r.OnStep == nil || r.once {
		return do(ctx)
	}
	ctx, done := r.OnStep(ctx, name)
	before := r.stream.Charge.Version
	err := errPanicked
	defer func() { done(err != nil || r.stream.Charge.Version != before, err) }()
	err = do(ctx)
	return err
}

// errPanicked is the error that OnStep's done receives when a step panics.
var errPanicked = errors.New("the step panicked")

// record decides a command and commits its events, the rows that steps queue for them,
// and the messages about webhook events in one transaction. The commit after which nothing is
// left to do also ends the delivery.
//
// An unknown outcome ends the run: the inbox delivers the message again, and that claim
// is a commit of its own. What the next run reads was committed before the claim, so a
// synchronous standby has it before the provider is called.
func (r *deliveryRun) record(ctx context.Context, d decision) error {
	events, err := domain.Decide(r.stream.Charge, d.command)
	if errors.Is(err, domain.ErrMismatch) || errors.Is(err, domain.ErrFinished) {
		return &inbox.DeadLetterError{Err: err}
	}
	if err != nil {
		return err
	}
	if len(events) == 0 && d.rows == nil {
		return fmt.Errorf("%T: %w", d.command, errUndecided)
	}
	b := &pgx.Batch{}
	next, err := r.queue(b, events)
	if err != nil {
		return err
	}
	if d.rows != nil {
		d.rows(b)
	}
	ends := r.once || len(r.stuck) == 0 && r.next(next.Charge).act == nil
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
		for _, s := range r.steps {
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
	}
	return next, nil
}

// announce queues the message to a subscriber, into its inbox. A subscriber that the charge does
// not have costs no message.
func (r *deliveryRun) announce(b *pgx.Batch, to subscriber, s ledger.Stream, e ledger.StoredEvent) {
	metadata := map[string]string{
		outbox.MetadataType: e.Type, outbox.MetadataOrderingKey: s.ID, outbox.MetadataPartition: s.Charge.MerchantID,
		outbox.MetadataCausationID: r.delivery.ID,
	}
	for _, name := range []string{outbox.MetadataCorrelationID, outbox.MetadataTraceparent} {
		if value := r.delivery.Metadata[name]; value != "" {
			metadata[name] = value
		}
	}
	inbox.Append(b, to.name, inbox.Message{
		ID: e.ID.String(), Type: e.Type, OrderingKey: s.ID, Partition: s.Charge.MerchantID,
		Payload: s.EncodeEnvelope(e), Metadata: metadata,
	})
}
