package idempotency_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// counts are what an Observer is told.
type counts struct {
	mu              sync.Mutex
	looking, looked int
	commits         map[idempotency.Commit]int
}

func (c *counts) observer() idempotency.Observer {
	c.commits = map[idempotency.Commit]int{}
	return idempotency.Observer{
		Reading: func() func() { c.looking++; return func() { c.looked++ } },
		Committed: func(kind idempotency.Commit) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.commits[kind]++
		},
	}
}

func (c *counts) want(t *testing.T, looks int, commits map[idempotency.Commit]int) {
	t.Helper()
	if c.looking != looks || c.looked != looks {
		t.Errorf("%d looks of which %d ended, want %d", c.looking, c.looked, looks)
	}
	if diff := cmp.Diff(commits, c.commits); diff != "" {
		t.Errorf("commits (-want +got):\n%s", diff)
	}
}

func TestObserver(t *testing.T) {
	t.Parallel()

	t.Run("a request is looked up and committed, and its replay is looked up", func(t *testing.T) {
		t.Parallel()
		told := &counts{}
		r := idempotency.Receiver{DB: pgtest.Reused(t), Observer: told.observer()}
		receive(t, r, effect)
		told.want(t, 1, map[idempotency.Commit]int{idempotency.CommitMade: 1})
		receive(t, r, effect)
		told.want(t, 2, map[idempotency.Commit]int{idempotency.CommitMade: 1})
	})

	t.Run("a rival that was faster", func(t *testing.T) {
		t.Parallel()
		db, told := pgtest.Reused(t), &counts{}
		r := idempotency.Receiver{DB: db, Observer: told.observer()}
		receive(t, r, func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			receive(t, idempotency.Receiver{DB: db}, effect)
			return effect(ctx, b, now)
		})
		told.want(t, 2, map[idempotency.Commit]int{idempotency.CommitTaken: 1})
	})

	t.Run("a rival that does not end", func(t *testing.T) {
		t.Parallel()
		address, told := pgtest.URL(t), &counts{}
		db := open(t, address, postgres.Options{LockTimeout: 20 * time.Millisecond})
		tx, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		b := &pgx.Batch{}
		idempotency.Claim(b, theKey(), theRequest(), theAnswer(), time.Now().Add(time.Hour))
		if err := tx.SendBatch(t.Context(), b).Close(); err != nil {
			t.Fatal(err)
		}
		r := idempotency.Receiver{DB: db, Observer: told.observer()}
		if _, err := r.Receive(t.Context(), theKey(), theRequest(), effect); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("the error is %v", err)
		}
		told.want(t, 1, map[idempotency.Commit]int{idempotency.CommitInFlight: 1})
	})

	t.Run("a race that the work lost, and a refusal of it", func(t *testing.T) {
		t.Parallel()
		db, told := pgtest.Reused(t), &counts{}
		odd := func(_ context.Context, b *pgx.Batch, _ time.Time) (idempotency.Answer, error) {
			b.Queue(`insert into outbox (topic, message_id, payload, metadata) values (null, 'effect', '', '{}')`)
			return theAnswer(), nil
		}
		r := idempotency.Receiver{DB: db, Observer: told.observer()}
		if _, err := r.Receive(t.Context(), theKey(), theRequest(), odd); err == nil {
			t.Error("it was accepted")
		}
		told.want(t, 1, map[idempotency.Commit]int{idempotency.CommitFailed: 1})
		lost := 0
		r.Lost = func(error) bool { return true }
		receive(t, r, func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			if lost++; lost == 1 {
				return odd(ctx, b, now)
			}
			return effect(ctx, b, now)
		})
		told.want(t, 3, map[idempotency.Commit]int{
			idempotency.CommitFailed: 1, idempotency.CommitLost: 1, idempotency.CommitMade: 1,
		})
	})
}
