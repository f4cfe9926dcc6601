package sandbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// senders is how many events are on their way at once.
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
	// restAfterError spares a database that cannot be used.
	restAfterError = time.Second
)

// Deliver sends events that are due and settles intents that are processing,
// until ctx ends; then it returns nil. Events leave in no promised order and
// may arrive twice, as at Stripe. What it cannot do now it logs and tries again.
func (s *Sandbox) Deliver(ctx context.Context) error {
	for ctx.Err() == nil {
		sent, err := s.deliverOnce(ctx)
		rest := pollEvery
		switch {
		case err != nil && ctx.Err() == nil:
			s.logger.Warn("events not delivered", "error", err)
			rest = restAfterError
		case sent > 0:
			continue
		}
		timer := time.NewTimer(rest)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
		timer.Stop()
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
	claimed, err := s.claim(ctx)
	if err != nil || len(claimed) == 0 {
		return 0, err
	}
	s.sendAll(ctx, claimed)
	return len(claimed), s.record(ctx, claimed)
}

// delivery is a claimed row of event_deliveries with the event's body, and what
// came of sending it.
type delivery struct {
	Position  int64
	Attempts  int
	Body      string
	outcome   string
	delivered bool
}

// claimDue takes deliveries for as long as their lease: no transaction is open
// while they are sent, and a process that dies while sending leaves them due.
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

func (s *Sandbox) claim(ctx context.Context) ([]*delivery, error) {
	rows, err := s.pool.Query(ctx, claimDue, claimSize, lease)
	if err != nil {
		return nil, fmt.Errorf("claim events: %w", err)
	}
	claimed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*delivery, error) {
		d := &delivery{}
		return d, row.Scan(&d.Position, &d.Attempts, &d.Body)
	})
	if err != nil {
		return nil, fmt.Errorf("claim events: %w", err)
	}
	return claimed, nil
}

func (s *Sandbox) sendAll(ctx context.Context, claimed []*delivery) {
	next := make(chan *delivery)
	var all sync.WaitGroup
	for range min(senders, len(claimed)) {
		all.Go(func() {
			for d := range next {
				d.outcome, d.delivered = s.post(ctx, d.Body)
			}
		})
	}
	for _, d := range claimed {
		next <- d
	}
	close(next)
	all.Wait()
}

const updateDelivered = `
update event_deliveries
set due_at = null,
    delivered_at = clock_timestamp(),
    outcome = $2
where position = $1`

const updateFailed = `
update event_deliveries
set due_at = case when attempts < $3 then clock_timestamp() + $4::interval end,
    outcome = $2
where position = $1`

// record keeps what came of a claim, also when ctx ended meanwhile. If it is
// lost, the events are sent once more when their lease ends.
func (s *Sandbox) record(ctx context.Context, sent []*delivery) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendDeadline)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(withoutWaiting)
	for _, d := range sent {
		if d.delivered {
			b.Queue(updateDelivered, d.Position, d.outcome)
		} else {
			b.Queue(updateFailed, d.Position, d.outcome, attemptsMax, backoff(d.Attempts))
		}
	}
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("record deliveries: %w", err)
	}
	return nil
}

// backoff is the pause after the n-th failed attempt.
func backoff(n int) time.Duration {
	return min(retryCap, retryBase<<min(n-1, 20))
}
