package ledger_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

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
func hasty(t *testing.T, db *postgres.DB) (stop func()) {
	t.Helper()
	p := &ledger.Projector{DB: db}
	return background(t, func(ctx context.Context) {
		for ctx.Err() == nil {
			pause, err := ledger.Step(p, ctx)
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			loop.Pause(ctx, pause/100, nil)
		}
	})
}

func TestProjector(t *testing.T) {
	t.Parallel()
	const charges = `select count(*) = $1 from charge_list`

	t.Run("one of several is active, and another one takes over when it ends", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		var stops []func()
		for range 3 {
			stops = append(stops, hasty(t, db))
		}
		for i, stop := range stops {
			appendTo(t, db, newStreams(fmt.Sprintf("ch_%d_", i), 10), requested("acme"))
			await.Row(t, db, charges, 10*(i+1))
			stop()
		}
	})

	t.Run("is woken by the bell before its slow poll", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		bell := make(chan struct{}, 1)
		background(t, (&ledger.Projector{
			DB: db, Bell: bell, Log: slog.New(slog.DiscardHandler),
		}).Run)
		await.Soon(t, 3*time.Second, func(try int) { // else a slow poll
			appended(t, db, ledger.New(fmt.Sprint("ch_", try)), cause("a"), requested("acme"))
			bell <- struct{}{}
			await.Row(t, db, charges, try+1)
			<-time.After(time.Second) // it gathers, finds nothing and begins a slow poll
		})
	})
}

// TestProjector_pauses: the active projector lets events gather, and longer after a large
// page. The others poll seldom, and take over from one that has ended.
func TestProjector_pauses(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	active, other := &ledger.Projector{DB: db}, &ledger.Projector{DB: db}
	const ms, standby = time.Millisecond, 1500 * time.Millisecond
	charges := 0
	// wants requests n charges and steps until the pause is not that of an event that is left
	// out while an older transaction is open.
	wants := func(p *ledger.Projector, n int, want time.Duration) {
		t.Helper()
		charges++
		if n > 0 {
			appendTo(t, db, newStreams(fmt.Sprintf("ch_%d_", charges), n), requested("acme"))
		}
		await.True(t, "a page is folded, or the projector stands by", func() bool {
			got, err := ledger.Step(p, t.Context())
			if got == 50*ms {
				return false
			}
			if jitter := got - want; err != nil || jitter < 0 || jitter > 0 && (want != standby || jitter > standby/2) {
				t.Errorf("after %d events the pause is %v, want %v: %v", n, got, want, err)
			}
			return true
		})
	}
	wants(active, 1, 250*ms) // it has just started
	wants(active, 0, 0)      // nothing waits
	wants(active, 249, 250*ms)
	wants(active, 250, 500*ms)
	wants(active, 2500, 0) // a full page
	wants(other, 1, 250*ms)
	for range 3 {
		wants(active, 1, standby) // another one may be about to fold
		wants(other, 0, 250*ms)
	}
	wants(active, 1, standby)
	wants(active, 0, 250*ms) // the other one has ended
	wants(other, 1, standby)
}
