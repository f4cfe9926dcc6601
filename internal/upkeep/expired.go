package upkeep

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
)

const (
	commitRows  = 500
	commitPause = 20 * time.Millisecond

	longestInterval  = 30 * time.Second // between looks at a table
	shortestInterval = 250 * time.Millisecond
)

// DeleteExpired deletes the rows that have expired, of every package's tables, until ctx ends. Each worker
// does. Several at the same time do no harm: a row that one deletes is skipped by the others, or gone for them.
// A commit deletes few rows, so that no transaction waits for its locks for long; after each comes a pause.
// DeleteExpired waits for a database that is away. A table that fails holds up no other.
//
// inboxWindow is how long a done message is kept, longer than the transport can redeliver it. Where workers
// differ, the shortest counts.
//
// If we die here: each commit has deleted all of its rows or none, and any worker goes on with what is left.
// Test: idempotency.TestExpireKeys.
func DeleteExpired(ctx context.Context, db *postgres.DB, log *slog.Logger, inboxWindow time.Duration) {
	var tables sync.WaitGroup
	defer tables.Wait()
	interval := min(max(inboxWindow/8, shortestInterval), longestInterval)
	for table, remove := range map[string]func() (rows int, err error){ // at most commitRows
		"idempotency_keys": func() (int, error) { return idempotency.ExpireKeys(ctx, db, commitRows) },
		"inbox":            func() (int, error) { return inbox.DeleteExpired(ctx, db, inboxWindow, commitRows) },
	} {
		tables.Go(func() { empty(ctx, log, table, interval, remove) })
	}
}

// empty deletes from a table until ctx ends. A commit that finds much fewer rows than it may take was the
// last for a while. Some fewer are no sign of the end: other transactions may have locked them.
func empty(ctx context.Context, log *slog.Logger, table string, interval time.Duration, remove func() (rows int, err error)) {
	deleted := 0
	loop.Run(ctx, log, "expired rows are not deleted", func(ctx context.Context) (time.Duration, error) {
		rows, err := remove()
		deleted += rows
		if err == nil && rows >= commitRows/2 {
			return commitPause, nil
		}
		if deleted > 0 {
			log.InfoContext(ctx, "expired rows deleted", "table", table, "rows", deleted)
			deleted = 0
		}
		return interval/2 + rand.N(interval), err //nolint:gosec // jitter: workers that start together do not delete together for long
	})
}
