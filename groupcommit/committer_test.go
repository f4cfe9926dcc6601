package groupcommit_test

import (
	"context"
	"database/sql/driver"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// queueUnits returns the results of units that queue in their order until release, so that one group
// commit takes them all.
func queueUnits(t *testing.T, c *groupcommit.Committer, units ...func(context.Context) error) (results []chan error, release func()) {
	t.Helper()
	release = c.HoldCommit()
	for i, unit := range units {
		result := make(chan error, 1)
		results = append(results, result)
		go func() { result <- unit(t.Context()) }()
		for c.Pending() <= i { // soon
			select {
			case err := <-result:
				t.Fatalf("unit %d has ended before it queued: %v", i, err)
			default:
				runtime.Gosched()
			}
		}
	}
	return results, release
}

// together commits units in one group commit, and returns the error of each.
func together(t *testing.T, c *groupcommit.Committer, units ...func(context.Context) error) []error {
	t.Helper()
	results, release := queueUnits(t, c, units...)
	release()
	errs := make([]error, len(units))
	for i := range results {
		errs[i] = <-results[i]
	}
	if n := c.Pending(); n != 0 {
		t.Errorf("%d are still queued", n)
	}
	return errs
}

// committing are units of one batch each.
func committing(db groupcommit.DB, batches ...*pgx.Batch) []func(context.Context) error {
	units := make([]func(context.Context) error, len(batches))
	for i, b := range batches {
		units[i] = func(ctx context.Context) error { return db.Commit(ctx, b) }
	}
	return units
}

// numbered are n batches of the ids 1 to n.
func numbered(n int) []*pgx.Batch {
	batches := make([]*pgx.Batch, n)
	for i := range batches {
		batches[i] = batch(i + 1)
	}
	return batches
}

func wantNoErrors(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Errorf("unit %d has the error %v", i+1, err)
		}
	}
}

// Of 65 batches one is over: a group has at most 64.
func TestGroupCommit_sendsQueuedBatchesAsOneTransaction(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{Writes: declared()})
	wantNoErrors(t, together(t, db.Committer(), committing(db, numbered(65)...)...))
	if got, want := db.Committer().Stats(), (groupcommit.Stats{Commits: 1, Batches: 64}); got != want {
		t.Errorf("group commits are %+v, want %+v", got, want)
	}
	if n := len(stored(t, db)); n != 65 {
		t.Errorf("%d batches are stored", n)
	}
}

// panics is an argument that cannot be sent.
type panics struct{}

func (panics) Value() (driver.Value, error) { panic("planted") }

// A panic while a group commit is sent is an unknown outcome for all of its batches, and
// leaves the slot free.
func TestGroupCommit_aPanicIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{Writes: declared()})
	batches := numbered(8)
	batches[4].Queue(insert, panics{}, 1)
	for i, err := range together(t, db.Committer(), committing(db, batches...)...) {
		if groupcommit.OutcomeOf(err) != groupcommit.Unknown || !strings.Contains(err.Error(), "panic: planted") {
			t.Errorf("batch %d has the error %v", i+1, err)
		}
	}
	if err := db.Commit(t.Context(), batch(1)); err != nil {
		t.Error(err)
	}
	wantStored(t, db, 1)
}

// tracer notes the batches of each caller, and which of them failed.
type tracer struct {
	*multitracer.Tracer // of all else nothing

	mu     sync.Mutex
	traces map[string]string
}

type caller struct{}

func (tr *tracer) note(ctx context.Context, what string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if name, ok := ctx.Value(caller{}).(string); ok { // else the test's own, and group commits
		tr.traces[name] += what
	}
}

func (tr *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	tr.note(ctx, strconv.Itoa(data.Batch.Len()))
	return ctx
}

func (tr *tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	tr.note(ctx, map[bool]string{true: " failed, ", false: " ended, "}[data.Err != nil])
}

// The trace of a caller has its own statements and no others.
func TestGroupCommit_tracesEachBatchForItsCaller(t *testing.T) {
	t.Parallel()
	traces := &tracer{Tracer: multitracer.New(), traces: map[string]string{}}
	db, _ := effects(t, postgres.Options{Writes: declared(), Tracer: traces})
	testdb.Must(t, db.Commit(t.Context(), batch(100)))
	as := func(name string, b *pgx.Batch) func(context.Context) error {
		return func(ctx context.Context) error {
			return db.Commit(context.WithValue(ctx, caller{}, name), b)
		}
	}
	errs := together(t, db.Committer(), as("one", batch(1)), as("three", batch(2, 3, 4)), as("refused", batch(5, 100)), as("beside", batch(6)))
	if errs[0] != nil || errs[1] != nil || groupcommit.Constraint(errs[2]) != "effects_once" || errs[3] != nil {
		t.Fatalf("the errors are %v", errs)
	}
	want := map[string]string{ // in the group commit, and individually
		"one": "1 ended, 1 ended, ", "three": "3 ended, 3 ended, ", "refused": "2 ended, 2 failed, ", "beside": "1 ended, 1 ended, ",
	}
	testrun.Same(t, "traces", want, traces.traces)
}
