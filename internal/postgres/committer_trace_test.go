package postgres_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// batches is a tracer that notes which batches it was told of, and in whose trace.
type batches struct {
	mu    sync.Mutex
	began []*pgx.Batch
	tells map[string]*tells // by caller
}

type tells struct{ Began, Statements, Refused, Ended, Failed int }

type caller struct{}

func (b *batches) of(ctx context.Context) *tells {
	name, _ := ctx.Value(caller{}).(string)
	if b.tells == nil {
		b.tells = map[string]*tells{}
	}
	if b.tells[name] == nil {
		b.tells[name] = &tells{}
	}
	return b.tells[name]
}

func (b *batches) sent() []*pgx.Batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*pgx.Batch{}, b.began...)
}

func (b *batches) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began = append(b.began, data.Batch)
	t := b.of(ctx)
	t.Began++
	t.Statements += data.Batch.Len()
	return ctx
}

func (b *batches) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if data.Err != nil {
		b.of(ctx).Refused++
	}
}

func (b *batches) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(ctx).Ended++
	if data.Err != nil {
		b.of(ctx).Failed++
	}
}

func (b *batches) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (b *batches) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestTracesOfAJoinedCommit: the trace of a caller has its own statements, and none
// of those that were committed with them.
func TestTracesOfAJoinedCommit(t *testing.T) {
	t.Parallel()
	told := &batches{}
	db, _ := effects(t, postgres.Options{Writes: declared(), SharedCommits: 1, Tracer: told})
	if err := db.Commit(t.Context(), batch(100)); err != nil {
		t.Fatal(err)
	}
	as := func(name string, b *pgx.Batch) func(context.Context) error {
		return func(ctx context.Context) error { return db.Commit(context.WithValue(ctx, caller{}, name), b) }
	}
	answers := gathered(t, db, as("one", batch(1)), as("three", batch(2, 3, 4)), as("refused", batch(5, 100)))
	if answers[0] != nil || answers[1] != nil || postgres.Constraint(answers[2]) != "effects_once" {
		t.Fatalf("they were told %v", answers)
	}
	want := map[string]*tells{
		"one":     {Began: 1, Statements: 1, Ended: 1},
		"three":   {Began: 1, Statements: 3, Ended: 1},
		"refused": {Began: 2, Statements: 4, Refused: 2, Ended: 2, Failed: 2}, // in company, and by itself
	}
	told.mu.Lock()
	defer told.mu.Unlock()
	delete(told.tells, "") // who holds the slot, and what is in nobody's trace
	if diff := cmp.Diff(want, told.tells); diff != "" {
		t.Errorf("traces (-want +got):\n%s", diff)
	}
}
