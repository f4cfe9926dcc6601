package ledger_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// logged is what projectors have logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// background runs a function until stop is called, or the test ends.
func background(t *testing.T, run func(context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { run(ctx) })
	stop = func() { cancel(); ended.Wait() }
	t.Cleanup(stop)
	return stop
}

// hasty runs a projector whose pauses are a hundredth of those of Run.
func hasty(t *testing.T, db *postgres.DB, log *logged) (stop func()) {
	t.Helper()
	step := ledger.Steps(&ledger.Projector{DB: db, Log: slog.New(slog.NewJSONHandler(log, nil))})
	return background(t, func(ctx context.Context) {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(step(ctx) / 100):
			}
		}
	})
}

func TestProjector(t *testing.T) {
	t.Parallel()
	const charges = `select count(*) = $1 from charge_list`

	t.Run("one of several is active, and another one takes over when it ends", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		log := &logged{}
		var stops []func()
		for range 3 {
			stops = append(stops, hasty(t, db, log))
		}
		for i, stop := range stops {
			appendTo(t, db, newStreams(fmt.Sprintf("ch_%d_", i), 10), requested("acme"))
			await.Row(t, db, charges, 10*(i+1))
			stop()
		}
		if log.String() != "" {
			t.Errorf("it logs:\n%s", log)
		}
	})

	t.Run("logs the first of several failures and retries", func(t *testing.T) {
		testdb.Long(t, "it waits for pauses")
		t.Parallel()
		db := testdb.Reused(t)
		log := &logged{}
		exec(t, db, `alter table charge_list add constraint refused check (charge_id <> 'ch_1')`)
		appended(t, db, ledger.New("ch_1"), cause("a"), requested("acme"))
		background(t, (&ledger.Projector{DB: db, Log: slog.New(slog.NewJSONHandler(log, nil))}).Run)
		await.Progress(t, "the failure is logged", func() (string, bool) {
			return log.String(), strings.Contains(log.String(), "refused")
		})
		exec(t, db, `alter table charge_list drop constraint refused`)
		await.Row(t, db, charges, 1)
		if n := strings.Count(log.String(), "projecting failed"); n != 1 {
			t.Errorf("it was logged %d times:\n%s", n, log)
		}
	})

	t.Run("is woken by the bell before its slow poll", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		bell := make(chan struct{}, 1)
		background(t, (&ledger.Projector{
			DB: db, Bell: bell, Listening: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
		}).Run)
		n := 0
		await.True(t, "three charges are listed in less than two slow polls, once", func() bool {
			began := time.Now()
			for range 3 {
				n++
				appended(t, db, ledger.New(fmt.Sprint("ch_", n)), cause("a"), requested("acme"))
				bell <- struct{}{}
				await.Row(t, db, charges, n)
				<-time.After(time.Second) // it gathers, finds nothing and begins a slow poll
			}
			return time.Since(began) < 3*time.Second+2*time.Second
		})
	})
}

// TestProjector_pauses: the active projector lets events gather, and longer after a large
// page. The others poll seldom, and take over from one that has ended.
func TestProjector_pauses(t *testing.T) {
	testdb.Long(t, "it measures pauses")
	t.Parallel()
	db := testdb.Reused(t)
	listening := false
	p := &ledger.Projector{DB: db, Listening: func() bool { return listening }, Log: slog.New(slog.DiscardHandler)}
	active, other := ledger.Steps(p), ledger.Steps(p)
	const ms = time.Millisecond
	standsBy := func(pause time.Duration) bool { return pause >= 1500*ms && pause < 2250*ms }
	charges := 0
	request := func(n int) {
		t.Helper()
		charges++
		appendTo(t, db, newStreams(fmt.Sprintf("ch_%d_", charges), n), requested("acme"))
	}
	// folds steps until a page is folded: an event is left out while a transaction is open
	// that is older.
	folds := func(step func(context.Context) time.Duration, what string, want time.Duration) (steps int) {
		t.Helper()
		await.True(t, what+": a page is folded", func() bool {
			steps++
			got := step(t.Context())
			if got > 0 && got < 250*ms || standsBy(got) {
				return false
			}
			if got != want {
				t.Errorf("%s: the pause is %v, want %v", what, got, want)
			}
			return true
		})
		return steps
	}
	idles := func(want ...time.Duration) {
		t.Helper()
		for _, want := range want {
			if got := active(t.Context()); got != want {
				t.Errorf("nothing to fold: the pause is %v, want %v", got, want)
			}
		}
	}
	passes := func(step func(context.Context) time.Duration, what string) {
		t.Helper()
		if got := step(t.Context()); !standsBy(got) {
			t.Errorf("%s: the pause is %v", what, got)
		}
	}

	passes(active, "nothing waits, no projector is active")
	request(1)
	if steps := folds(active, "taking over", 250*ms); steps < 2 {
		t.Error("it takes over at its first step, though another one may be about to fold")
	}
	idles(20*ms, 40*ms, 50*ms, 50*ms)
	listening = true
	idles(320*ms, 640*ms, 1000*ms, 1000*ms)
	listening = false
	request(249)
	folds(active, "249 events", 250*ms)
	idles(20 * ms)
	request(250)
	folds(active, "250 events", 500*ms)
	request(2500)
	folds(active, "a full page", 0)

	for range 3 {
		request(1)
		passes(other, "another projector is active")
		folds(active, "the active one", 250*ms)
	}
	request(1)
	passes(other, "the active one may be about to fold")
	folds(other, "the active one has ended", 250*ms)
}
