package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
)

const (
	sweepEvery = 30 * time.Second
	sweepAtMax = 500 // rows in one commit, so that nobody waits for a sweep
)

// sweep turns expired idempotency keys into tombstones until ctx ends. Every
// worker sweeps; each takes what no other holds.
//
// If we die here: a batch is swept whole or not at all, and whoever sweeps next
// finds what is left.
func sweep(ctx context.Context, log *slog.Logger, db *postgres.DB) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		n, err := idempotency.Sweep(ctx, db, sweepAtMax)
		switch {
		case err != nil && ctx.Err() == nil:
			log.WarnContext(ctx, "sweep failed", "table", "idempotency_keys", "error", err)
		case n > 0:
			log.InfoContext(ctx, "swept", "table", "idempotency_keys", "rows", n)
		}
		if n == sweepAtMax && err == nil {
			continue // there is more
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
