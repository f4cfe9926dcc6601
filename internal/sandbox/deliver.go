package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

const (
	// senders is how many events are sent at the same time.
	senders = 8
	// claimSize bounds the deliveries claimed at once, so that a claim's lease
	// outlasts all of its sends: claimSize / senders * sendDeadline < lease.
	claimSize = 64
	lease     = time.Minute
	// Failed deliveries are sent again after retryBase, doubling up to retryCap,
	// attemptsMax times in all.
	retryBase   = 200 * time.Millisecond
	retryCap    = time.Minute
	attemptsMax = 100
	// pollEvery bounds how late a retry or a settlement is.
	pollEvery = 250 * time.Millisecond
	// pauseAfterError spares a database that cannot be used.
	pauseAfterError = time.Second
)

// Deliver sends events that are due and settles intents that are processing, until
// ctx ends; then it returns nil. Like Stripe's, events have no order and may arrive
// twice. It logs a failure and retries.
func (s *Sandbox) Deliver(ctx context.Context) error {
	for ctx.Err() == nil {
		sent, err := s.deliverOnce(ctx)
		pause := pollEvery
		switch {
		case err != nil && ctx.Err() == nil:
			s.options.Logger.Warn("events not delivered", "error", err)
			pause = pauseAfterError
		case sent > 0:
			continue
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-time.After(pause):
		}
	}
	return nil
}

// deliverOnce settles what is due and sends one claim of events; it returns how
// many it tried to send.
func (s *Sandbox) deliverOnce(ctx context.Context) (int, error) {
	if err := s.settle(ctx); err != nil {
		return 0, err
	}
	if s.options.WebhookURL == "" {
		return 0, nil
	}
	claimed, err := collect[delivery](ctx, s.pool, claimDue, claimSize, lease)
	if err != nil || len(claimed) == 0 {
		return 0, err
	}
	var sending errgroup.Group
	sending.SetLimit(senders)
	for _, d := range claimed {
		sending.Go(func() error {
			d.Outcome, d.Delivered = s.post(ctx, d.Body)
			return nil
		})
	}
	_ = sending.Wait() // the outcomes say what failed
	return len(claimed), s.record(ctx, claimed)
}

// delivery is a claimed row of event_deliveries with the event's body, and its
// outcome.
type delivery struct {
	Position  int64
	Attempts  int
	Body      string
	Outcome   string `db:"-"`
	Delivered bool   `db:"-"`
}

// claimDue leases deliveries: no transaction is open while they are sent, and those
// of a process that dies while sending are due again when the lease ends.
const claimDue = `
update event_deliveries d
set attempts = d.attempts + 1,
    due_at = clock_timestamp() + $2::interval
from (
  select position
  from event_deliveries
  where due_at <= clock_timestamp()
  order by due_at, position
  limit $1
  for update skip locked) due, events e
where d.position = due.position
  and e.id = d.event_id
returning d.position, d.attempts, e.body`

const updateSent = `
update event_deliveries
set due_at = case when not $3 and attempts < $4 then clock_timestamp() + $5::interval end,
    delivered_at = case when $3 then clock_timestamp() end,
    outcome = $2
where position = $1`

// record stores the outcomes of a claim, also after ctx ended. If that fails, the
// events are sent again when their lease ends.
func (s *Sandbox) record(ctx context.Context, sent []*delivery) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendDeadline)
	defer cancel()
	err := s.sendRelaxed(ctx, func(b *pgx.Batch) {
		for _, d := range sent {
			b.Queue(updateSent, d.Position, d.Outcome, d.Delivered, attemptsMax, backoff(d.Attempts))
		}
	})
	if err != nil {
		return fmt.Errorf("record deliveries: %w", err)
	}
	return nil
}

// backoff is the pause after the n-th failed attempt.
func backoff(n int) time.Duration {
	return min(retryCap, retryBase<<min(n-1, 20))
}
