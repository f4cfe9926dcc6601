package ledger_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// running runs a projector until stop is called, or the test ends. Its pauses are a
// hundredth of those that Run makes.
func running(t *testing.T, db *postgres.DB, log io.Writer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	p := &ledger.Projector{DB: db, Log: slog.New(slog.NewJSONHandler(log, nil))}
	look := ledger.Steps(p)
	ended.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(look(ctx) / 100):
			}
		}
	})
	stop = func() { cancel(); ended.Wait() }
	t.Cleanup(stop)
	return stop
}

func TestProjector(t *testing.T) {
	t.Parallel()
	const listed = `select count(*) = %d from charge_list`

	t.Run("of several one works, and another takes over when it is gone", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		log := &transcript{}
		var stops []func()
		for range 3 {
			stops = append(stops, running(t, db, log))
		}
		for i, stop := range stops {
			for n := range 10 {
				appended(t, db, ledger.New(fmt.Sprintf("ch_%d_%d", i, n)), because("a"), opened("acme", 1000, "EUR"))
			}
			await.RowWith(t, db, log.String, fmt.Sprintf(listed, 10*(i+1)))
			stop()
		}
		if log.String() != "" {
			t.Errorf("it complains:\n%s", log)
		}
	})

	t.Run("a failure is logged once, and outlived", func(t *testing.T) {
		testdb.Long(t, "it waits for pauses")
		t.Parallel()
		db := testdb.Reused(t)
		log := &transcript{}
		exec(t, db, `alter table charge_list add constraint refused check (charge_id <> 'ch_1')`)
		appended(t, db, ledger.New("ch_1"), because("a"), opened("acme", 1000, "EUR"))
		ctx, cancel := context.WithCancel(t.Context())
		p := &ledger.Projector{DB: db, Log: slog.New(slog.NewJSONHandler(log, nil))}
		var ended sync.WaitGroup
		ended.Go(func() { p.Run(ctx) })
		defer func() { cancel(); ended.Wait() }()
		await.Progress(t, "the failure is logged", func() (string, bool) {
			return log.String(), strings.Contains(log.String(), "refused")
		})
		exec(t, db, `alter table charge_list drop constraint refused`)
		await.RowWith(t, db, log.String, fmt.Sprintf(listed, 1))
		if n := strings.Count(log.String(), "projecting failed"); n != 1 {
			t.Errorf("it was logged %d times:\n%s", n, log)
		}
	})

	t.Run("the bell wakes it before its slow poll", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		bell := make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		p := &ledger.Projector{DB: db, Bell: bell, Listening: func() bool { return true }, Log: slog.New(slog.DiscardHandler)}
		var ended sync.WaitGroup
		ended.Go(func() { p.Run(ctx) })
		defer func() { cancel(); ended.Wait() }()
		charges := 0
		await.True(t, "three are listed in less than two slow polls once", func() bool {
			began := time.Now()
			for range 3 {
				charges++
				appended(t, db, ledger.New(fmt.Sprint("ch_", charges)), because("a"), opened("acme", 1000, "EUR"))
				bell <- struct{}{}
				await.Row(t, db, fmt.Sprintf(listed, charges))
				<-time.After(time.Second) // it gathers, finds nothing and waits for long
			}
			return time.Since(began) < 3*time.Second+2*time.Second
		})
	})

	t.Run("with nothing to fold nothing is written", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		for range 50 {
			if n, err := ledger.Project(t.Context(), db); n != 0 || err != nil {
				t.Fatal(n, err)
			}
		}
		if got := collect[string](t, db, `select row(batch, txid)::text from projections`); got[0] != "(0,0)" {
			t.Errorf("the checkpoint moved: %v", got)
		}
	})
}

// TestThePaceOfAProjector: who is at work lets events gather, and more of them for
// longer; the others look seldom, and take over from one that is gone.
func TestThePaceOfAProjector(t *testing.T) {
	testdb.Long(t, "it measures a pace")
	t.Parallel()
	db := testdb.Reused(t)
	heard := false
	p := &ledger.Projector{DB: db, Listening: func() bool { return heard }, Log: slog.New(slog.DiscardHandler)}
	atWork, other := ledger.Steps(p), ledger.Steps(p)
	standsBy := func(pause time.Duration) bool {
		return pause >= 1500*time.Millisecond && pause < 2250*time.Millisecond
	}
	// folds looks until one look was no look in vain: an event is passed over while a
	// transaction is under way that began before it.
	folds := func(look func(context.Context) time.Duration, what string, want time.Duration) (looks int) {
		t.Helper()
		await.True(t, what+": a page is folded", func() bool {
			looks++
			got := look(t.Context())
			if got > 0 && got < 250*time.Millisecond || standsBy(got) {
				return false
			}
			if got != want {
				t.Errorf("%s: others gather for %v, want %v", what, got, want)
			}
			return true
		})
		return looks
	}

	if got := atWork(t.Context()); !standsBy(got) {
		t.Errorf("nothing waits, nobody is at work: the next look is after %v", got)
	}
	charges := 0
	more := func(events int) {
		t.Helper()
		b := &pgx.Batch{}
		for range events {
			charges++
			if _, err := ledger.Append(b, ledger.New(fmt.Sprintf("ch_%d", charges)), because("a"), opened("acme", 1000, "EUR")); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	more(1)
	if looks := folds(atWork, "taking over", 250*time.Millisecond); looks < 2 {
		t.Error("one look is enough to take over, though somebody else may be about to fold")
	}
	for _, want := range []time.Duration{20, 40, 50, 50} {
		if got := atWork(t.Context()); got != want*time.Millisecond {
			t.Errorf("nothing to fold, and nobody rings: the next look is after %v, want %v ms", got, want)
		}
	}
	heard = true
	for _, want := range []time.Duration{320, 640, 1000, 1000} {
		if got := atWork(t.Context()); got != want*time.Millisecond {
			t.Errorf("nothing to fold, and the bell rings for what comes: the next look is after %v, want %v ms", got, want)
		}
	}
	heard = false
	more(249)
	folds(atWork, "249 events", 250*time.Millisecond)
	if got, want := atWork(t.Context()), 20*time.Millisecond; got != want {
		t.Errorf("after a page the next look that finds nothing makes it wait %v, want %v", got, want)
	}
	more(250)
	folds(atWork, "250 events", 500*time.Millisecond)
	more(2500)
	folds(atWork, "a full page", 0)

	for range 3 {
		more(1)
		if got := other(t.Context()); !standsBy(got) {
			t.Errorf("another is at work: the next look is after %v", got)
		}
		folds(atWork, "the one at work", 250*time.Millisecond)
	}
	more(1)
	if got := other(t.Context()); !standsBy(got) {
		t.Errorf("the one at work may be about to fold: the next look is after %v", got)
	}
	folds(other, "the one at work is gone", 250*time.Millisecond)
}

// transcript is what was logged.
type transcript struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
