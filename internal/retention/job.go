// Package retention deletes the rows that have expired, of every package's tables.
//
// Each worker runs the job, and one at a time works. A commit deletes few rows, so that no
// transaction waits for its locks for long and no reader of the outbox for its end; after
// each comes a pause.
//
// Table: retention_lease.
package retention

import (
	"context"
	"log/slog"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

const (
	commitRows   = 500
	commitPause  = 20 * time.Millisecond
	roundCommits = 40 // of one table, before the lease is renewed

	longestInterval  = 30 * time.Second // between rounds
	shortestInterval = 250 * time.Millisecond
)

// Job deletes what has expired.
type Job struct {
	DB   *postgres.DB
	Log  *slog.Logger
	Name string // of this process and no other, also not one that is started in its place

	InboxWindow time.Duration
}

// Run deletes what has expired until ctx ends. It waits for a database that is away.
//
// If we die here: each commit has deleted all of its rows or none. The lease ends, and the
// job of another worker goes on with what is left.
// Test: TestJob/the_next_continues_where_one_died.
func (j *Job) Run(ctx context.Context) {
	defer j.release(ctx)
	loop.Run(ctx, j.Log, "nothing is deleted: the lease of the retention job cannot be taken", func(ctx context.Context) (time.Duration, error) {
		held, err := j.hold(ctx)
		if held && j.round(ctx) {
			return 0, nil
		}
		return j.interval(), err
	})
}

// interval is the time between rounds: a fourth of the shortest window, within bounds.
func (j *Job) interval() time.Duration {
	return min(max(j.InboxWindow/8, shortestInterval), longestInterval)
}

// round deletes from every table, and returns whether there is more to delete. The tables
// are in the order in which rows can go: the inbox forgets what the outbox has let go. A
// table that fails holds up no other, and is tried again in the next round.
func (j *Job) round(ctx context.Context) (more bool) {
	for _, t := range []struct {
		name   string
		delete func() (rows int, err error) // at most commitRows
	}{
		{"idempotency_keys", func() (int, error) { return idempotency.ExpireKeys(ctx, j.DB, commitRows) }},
		{"inbox", func() (int, error) { return inbox.DeleteExpired(ctx, j.DB, j.InboxWindow, commitRows) }},
		{"webhook_secrets", func() (int, error) { return merchants.DeleteExpiredSecrets(ctx, j.DB, commitRows) }},
	} {
		rows, full, err := empty(ctx, t.delete)
		if rows > 0 {
			j.Log.InfoContext(ctx, "expired rows deleted", "table", t.name, "rows", rows)
		}
		if err != nil && ctx.Err() == nil {
			j.Log.WarnContext(ctx, "deleting expired rows failed", "table", t.name, "error", err)
		}
		more = more || full
	}
	return more
}

// empty deletes until a commit finds much fewer rows than it may take, or the round's bound
// is reached: then full is true. Some fewer are no sign of the end: other transactions may
// have locked them.
func empty(ctx context.Context, deleteSome func() (int, error)) (rows int, full bool, err error) {
	for commits := 0; commits < roundCommits && ctx.Err() == nil; commits++ {
		n, err := deleteSome()
		rows += n
		if err != nil || n < commitRows/2 {
			return rows, false, err
		}
		loop.Pause(ctx, commitPause, nil)
	}
	return rows, true, nil
}
