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

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/ledger"
)

// running runs a projector until stop is called, or the test ends.
func running(t *testing.T, db *postgres.DB, log io.Writer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	p := &ledger.Projector{DB: db, Poll: 5 * time.Millisecond, Log: slog.New(slog.NewJSONHandler(log, nil))}
	ended.Go(func() { p.Run(ctx) })
	stop = func() { cancel(); ended.Wait() }
	t.Cleanup(stop)
	return stop
}

// eventually waits until a query answers true.
func eventually(t *testing.T, db *postgres.DB, condition string) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); pause(t) {
		if collect[bool](t, db, condition)[0] {
			return
		}
	}
	t.Fatalf("it does not come to pass: %s", condition)
}

func TestProjector(t *testing.T) {
	t.Parallel()
	const listed = `select count(*) = %d from charge_list`

	t.Run("of several one works, and another takes over when it is gone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		log := &transcript{}
		var stops []func()
		for range 3 {
			stops = append(stops, running(t, db, log))
		}
		for i, stop := range stops {
			for n := range 10 {
				appended(t, db, ledger.New(fmt.Sprintf("ch_%d_%d", i, n)), because("a"), opened("acme", 1000, "EUR"))
			}
			eventually(t, db, fmt.Sprintf(listed, 10*(i+1)))
			stop()
		}
		if log.String() != "" {
			t.Errorf("it complains:\n%s", log)
		}
	})

	t.Run("a failure is logged once, and outlived", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		log := &transcript{}
		running(t, db, log)
		exec(t, db, `alter table charge_list add constraint refused check (charge_id <> 'ch_1')`)
		appended(t, db, ledger.New("ch_1"), because("a"), opened("acme", 1000, "EUR"))
		for deadline := time.Now().Add(patience); !strings.Contains(log.String(), "refused"); pause(t) {
			if time.Now().After(deadline) {
				t.Fatal("nothing is logged")
			}
		}
		exec(t, db, `alter table charge_list drop constraint refused`)
		eventually(t, db, fmt.Sprintf(listed, 1))
		if n := strings.Count(log.String(), "projecting failed"); n != 1 {
			t.Errorf("it was logged %d times:\n%s", n, log)
		}
	})

	t.Run("with nothing to fold nothing is written", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
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

func TestGatherAfter(t *testing.T) {
	t.Parallel()
	for events, want := range map[int]time.Duration{1: 250, 249: 250, 250: 500, 2499: 500} {
		if got := ledger.GatherAfter(events); got != want*time.Millisecond {
			t.Errorf("behind %d events others gather for %v, want %v", events, got, want*time.Millisecond)
		}
	}
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
