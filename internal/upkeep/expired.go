package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
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
	roundCommits = 40 // of one table, before the next table's

	longestInterval  = 30 * time.Second // between rounds
	shortestInterval = 250 * time.Millisecond
)

// Expired deletes the rows that have expired, of every package's tables. Each worker does. Several at the
// same time do no harm: a row that one deletes is skipped by the others, or gone for them. A commit
// deletes few rows, so that no transaction waits for its locks for long; after each comes a pause.
type Expired struct {
	DB  *postgres.DB
	Log *slog.Logger

	// InboxWindow is how long a done message is kept, longer than the transport can redeliver it.
	// Where workers differ, the shortest counts.
	InboxWindow time.Duration
}

// Run deletes what has expired until ctx ends. It waits for a database that is away.
//
// If we die here: each commit has deleted all of its rows or none. The next round of any worker
// goes on with what is left. Test: TestExpired/the_next_continues_where_one_died.
func (e *Expired) Run(ctx context.Context) {
	loop.Run(ctx, e.Log, "expired rows are not deleted", func(ctx context.Context) (time.Duration, error) {
		more, err := e.round(ctx)
		if more {
			return 0, err
		}
		return e.interval(), err
	})
}

// interval is the time between rounds: about an eighth of the window, within bounds.
// Workers that start at the same time do not delete at the same time for long.
func (e *Expired) interval() time.Duration {
	mean := min(max(e.InboxWindow/8, shortestInterval), longestInterval)
	return mean/2 + rand.N(mean) //nolint:gosec // jitter
}

// round deletes from every table, and returns whether there is more to delete. A table that
// fails holds up no other.
func (e *Expired) round(ctx context.Context) (more bool, failed error) {
	for _, t := range []struct {
		name   string
		delete func() (rows int, err error) // at most commitRows
	}{
		{"idempotency_keys", func() (int, error) { return idempotency.ExpireKeys(ctx, e.DB, commitRows) }},
		{"inbox", func() (int, error) { return inbox.DeleteExpired(ctx, e.DB, e.InboxWindow, commitRows) }},
		{"webhook_secrets", func() (int, error) { return merchants.DeleteExpiredSecrets(ctx, e.DB, commitRows) }},
	} {
		rows, full, err := empty(ctx, t.delete)
		if rows > 0 {
			e.Log.InfoContext(ctx, "expired rows deleted", "table", t.name, "rows", rows)
		}
		more, failed = more || full, errors.Join(failed, err)
	}
	return more, failed
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
