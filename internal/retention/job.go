// Package retention deletes the rows that have expired, of every package's tables.
package retention

import (
	"context"
	"log/slog"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/outbox"
)

// A sweep must not be felt. A commit is small, so that nobody waits for its locks
// and no message for its end: while it is open, what was committed later is not
// received. After each comes a pause, and after so many the lease is renewed.
const (
	sweepRows    = 500
	sweepPause   = 20 * time.Millisecond
	sweepCommits = 40 // of one table, between two looks at the lease

	sweepEvery   = 30 * time.Second
	sweepSoonest = 250 * time.Millisecond
	leaseLeast   = 5 * time.Second // above what a round takes
	leaseLongest = 3 * sweepEvery  // of any worker, whatever its settings

	// What was kept aside for a human waits for one for longer than a provider
	// repeats anything.
	quarantineRetention = 90 * 24 * time.Hour
)

// Janitor removes what has expired. Each worker has one, of which one is at work
// at a time.
type Janitor struct {
	DB   *postgres.DB
	Log  *slog.Logger
	Name string // of this process and no other, also not one that is started in its place

	OutboxRetention time.Duration
	InboxRetention  time.Duration // longer than OutboxRetention

	// Swept is told of every commit that removed something; nil: nobody is.
	Swept func(table string, rows int64)

	warned windows // the last that were not its own
}

// Run removes what has expired until ctx ends. A database that is away is waited
// for.
//
// If we die here: what was removed is committed, a batch whole or not at all. The
// lease ends, and the next janitor goes on with what is left.
// Test: TestJanitor/the_next_goes_on_where_one_died.
func (j *Janitor) Run(ctx context.Context) {
	tick := time.NewTicker(j.every())
	defer tick.Stop()
	defer j.release(ctx)
	for ctx.Err() == nil {
		mine, err := j.hold(ctx)
		if err != nil && ctx.Err() == nil {
			j.Log.WarnContext(ctx, "no sweep: the janitor's lease cannot be asked for", "error", err)
		}
		if mine && j.round(ctx) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// every is the time between two looks: short windows want short ones.
func (j *Janitor) every() time.Duration {
	return min(max(j.OutboxRetention/4, sweepSoonest), sweepEvery)
}

// sweeps are the tables from which something goes, in the order in which it can
// go: the inbox forgets what the outbox has let go.
func (j *Janitor) sweeps() []sweep {
	return []sweep{
		{"idempotency_keys", func(ctx context.Context) (int, error) {
			return idempotency.Sweep(ctx, j.DB, sweepRows)
		}},
		{"outbox", func(ctx context.Context) (int, error) {
			return outbox.Sweep(ctx, j.DB, j.OutboxRetention, sweepRows)
		}},
		{"inbox", func(ctx context.Context) (int, error) {
			return inbox.Sweep(ctx, j.DB, j.InboxRetention, sweepRows)
		}},
		{"inbox_quarantine", func(ctx context.Context) (int, error) {
			return inbox.SweepQuarantine(ctx, j.DB, quarantineRetention, sweepRows)
		}},
		{"webhook_secrets", func(ctx context.Context) (int, error) {
			return merchants.SweepSecrets(ctx, j.DB, sweepRows)
		}},
	}
}

// sweep removes at most sweepRows rows of a table in one commit.
type sweep struct {
	table string
	once  func(ctx context.Context) (int, error)
}

// round sweeps every table and says whether there is more to do. A table that
// cannot be swept holds up no other, and is tried again at the next tick.
func (j *Janitor) round(ctx context.Context) (more bool) {
	for _, s := range j.sweeps() {
		total, full, err := j.sweep(ctx, s)
		if total > 0 {
			j.Log.InfoContext(ctx, "swept", "table", s.table, "rows", total)
		}
		if err != nil && ctx.Err() == nil {
			j.Log.WarnContext(ctx, "sweep failed", "table", s.table, "error", err)
		}
		more = more || full
	}
	return more
}

// sweep removes rows until a commit finds much fewer than it may take, or a
// round's bound is reached: then full is true. Some fewer are no sign of the end:
// somebody may have held them.
func (j *Janitor) sweep(ctx context.Context, s sweep) (total int, full bool, err error) {
	for commits := 0; commits < sweepCommits && ctx.Err() == nil; commits++ {
		n, err := s.once(ctx)
		if n > 0 && j.Swept != nil {
			j.Swept(s.table, int64(n))
		}
		total += n
		if err != nil || n < sweepRows/2 {
			return total, false, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(sweepPause):
		}
	}
	return total, true, nil
}
