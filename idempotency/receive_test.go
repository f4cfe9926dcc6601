package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestReceive_refusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, key := range []idempotency.Key{{}, keyOf(strings.Repeat("k", 256)), keyOf(" a"), {Scope: "\xff", Value: "k"}} {
		if _, err := (idempotency.Receiver{DB: db}).Receive(t.Context(), key, theRequest(), effect); !errors.Is(err, idempotency.ErrInvalid) {
			t.Errorf("%q: %v", key, err)
		}
	}
	if _, err := (idempotency.Receiver{}).Receive(t.Context(), theKey(), theRequest(), effect); err == nil {
		t.Error("a nil store")
	}
	_, err := (idempotency.Receiver{DB: testdb.Connect(t, testdb.Empty(t))}).Receive(t.Context(), theKey(), theRequest(), effect)
	if err == nil || errors.Is(err, idempotency.ErrUnknown) || !strings.Contains(err.Error(), "idempotency_keys") {
		t.Errorf("a missing table: %v", err)
	}
	wantEffects(t, db, 0)
}

func TestReceiver_reportsReadsAndCommits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		rival   bool // another request under the key is in flight
		lost    bool // the refusal is a lost race
		want    string
		reads   int
		commits map[idempotency.CommitResult]int
	}{
		{"a write that the database refuses", false, false, "null value", 1, map[idempotency.CommitResult]int{idempotency.CommitFailed: 1}},
		{"a race that the work lost", false, true, "", 2, map[idempotency.CommitResult]int{idempotency.CommitLost: 1, idempotency.CommitMade: 1}},
		{"a rival in flight", true, false, idempotency.ErrInFlight.Error(), 1, map[idempotency.CommitResult]int{idempotency.CommitInFlight: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: 20 * time.Millisecond})
			begun, read, calls, commits := 0, 0, 0, map[idempotency.CommitResult]int{}
			if test.rival {
				rivalInFlight(t, db)
			}
			r := idempotency.Receiver{
				DB: db, IsConflict: func(error) bool { return test.lost },
				Reading:  func() func() { begun++; return func() { read++ } },
				OnCommit: func(result idempotency.CommitResult) { commits[result]++ },
			}
			_, err := r.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
				if calls++; calls == 1 {
					b.Queue(`insert into outbox (topic, message_id, payload, metadata) values (null, 'effect', '', '{}')`)
				}
				return effect(ctx, b, now)
			})
			if got := fmt.Sprint(err); (err == nil) != (test.want == "") || !strings.Contains(got, test.want) || errors.Is(err, idempotency.ErrUnknown) {
				t.Errorf("the error is %s", got)
			}
			if begun != test.reads || read != test.reads {
				t.Errorf("%d reads of which %d ended, want %d", begun, read, test.reads)
			}
			testrun.Same(t, "commits", test.commits, commits)
		})
	}
}
