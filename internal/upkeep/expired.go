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
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

const (
	commitRows  = 500
	commitPause = 20 * time.Millisecond

	longestInterval  = 30 * time.Second // between looks at a table
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

// Run deletes what has expired until ctx ends. It waits for a database that is away. A table that fails
// holds up no other.
//
// If we die here: each commit has deleted all of its rows or none, and any worker goes on with what is left.
// Test: idempotency.TestExpireKeys.
func (e *Expired) Run(ctx context.Context) {
	var tables sync.WaitGroup
	for table, remove := range map[string]func() (rows int, err error){ // at most commitRows
		"idempotency_keys": func() (int, error) { return idempotency.ExpireKeys(ctx, e.DB, commitRows) },
		"inbox":            func() (int, error) { return inbox.DeleteExpired(ctx, e.DB, e.InboxWindow, commitRows) },
		"webhook_secrets":  func() (int, error) { return merchants.DeleteExpiredSecrets(ctx, e.DB, commitRows) },
	} {
		tables.Go(func() { e.empty(ctx, table, remove) })
	}
	tables.Wait()
}

// empty deletes from a table until ctx ends. A commit that finds much fewer rows than it may take was the
// last for a while. Some fewer are no sign of the end: other transactions may have locked them.
func (e *Expired) empty(ctx context.Context, table string, remove func() (rows int, err error)) {
	deleted := 0
	report := func() {
		if deleted > 0 {
			e.Log.InfoContext(context.WithoutCancel(ctx), "expired rows deleted", "table", table, "rows", deleted)
			deleted = 0
		}
	}
	defer report()
	loop.Run(ctx, e.Log, "expired rows are not deleted", func(context.Context) (time.Duration, error) {
		rows, err := remove()
		deleted += rows
		if err == nil && rows >= commitRows/2 {
			return commitPause, nil
		}
		report()
		// About an eighth of the window: workers that start together do not delete together for long.
		mean := min(max(e.InboxWindow/8, shortestInterval), longestInterval)
		return mean/2 + rand.N(mean), err //nolint:gosec // jitter
	})
}
