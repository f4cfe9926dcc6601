package fulfillment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// rounds bounds how often one delivery loses a race for the stream's next
// version before its attempt is given up.
const rounds = 10

// again loads a charge's stream and lets decide work on it, once more from the
// start whenever somebody else was faster. ErrNotFound if there is no charge.
func again(ctx context.Context, q postgres.Querier, charge string, decide func(ledger.Stream) (inbox.Result, error)) (inbox.Result, error) {
	for round := 0; ; round++ {
		s, err := load(ctx, q, charge)
		if errors.Is(err, domain.ErrUnknownType) {
			// A newer program wrote it, so a newer worker is on its way.
			return inbox.Complete, &inbox.WaitError{Err: err}
		}
		if err != nil {
			return inbox.Complete, err
		}
		result, err := decide(s)
		if err == nil || !ledger.IsConflict(err) || round == rounds {
			return result, err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return inbox.Complete, err
		}
	}
}

// readTimeout bounds one read: a connection that never answers must not keep a
// message for ever. It is longer than the server's own statement_timeout.
const readTimeout = 15 * time.Second

func load(ctx context.Context, q postgres.Querier, id string) (ledger.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return ledger.Load(ctx, q, id)
}

// pause waits a random part of longest, so that rivals part.
func pause(ctx context.Context, longest time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rand.N(longest)): //nolint:gosec // jitter
		return nil
	}
}

// walk is one try to bring a charge and its refunds further.
type walk struct {
	*Fulfillment
	d            inbox.Delivery
	s            ledger.Stream
	aboutRefunds bool           // the message asks for a look at refunds beyond the pending ones
	intent       *stripe.Intent // the provider's object, when this walk made it
	result       inbox.Result   // Completed once Done rode in a commit
}

// commits bounds how often one batch is sent whose outcome nobody could tell.
const commits = 5

// commit decides cmd on the stream and commits its events together with what
// also queues and the messages about outcomes. The commit after which nothing is
// left to be carried ends the delivery too. Nothing is written when cmd has
// happened.
//
// An unknown outcome is settled by the same batch again: it has the same event
// ids and versions, so it waits for the first one and is refused if that made it.
func (w *walk) commit(ctx context.Context, cmd domain.Command, also ...func(*pgx.Batch, domain.Charge)) error {
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
		unsettled := errors.Is(err, postgres.ErrUnknown) || postgres.IsTransient(err)
		if !unsettled || try == commits {
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
		if webhookType(e.Type) == "" {
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
// commit, so it is left to the inbox to end.
func (w *walk) ends(next ledger.Stream) bool { return next.Charge.Settled() && !w.aboutRefunds }

func cause(d inbox.Delivery) ledger.Cause {
	return ledger.Cause{
		CorrelationID: d.Metadata[outbox.MetadataCorrelationID],
		CausationID:   d.ID,
		Actor:         "worker",
	}
}

// announce queues the message about an outcome.
func announce(b *pgx.Batch, s ledger.Stream, e ledger.Recorded, d inbox.Delivery) error {
	payload, err := s.Seal(e)
	if err != nil {
		return err
	}
	return outbox.Append(b, outbox.Message{
		Topic:       ledger.Topic,
		ID:          e.ID.String(),
		Type:        e.Type,
		OrderingKey: s.ID,
		Payload:     payload,
		Metadata: map[string]string{
			outbox.MetadataCorrelationID: d.Metadata[outbox.MetadataCorrelationID],
			outbox.MetadataCausationID:   d.ID,
		},
	})
}
