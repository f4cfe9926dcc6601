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

const (
	rescueEvery = 5 * time.Second
	programs    = "payonce-" // how the names of our programs' sessions begin
)

// rescue ends sessions that stopped in the middle of a transaction, until ctx
// ends: while one stands there, no later message is received.
func rescue(ctx context.Context, log *slog.Logger, db *postgres.DB) {
	tick := time.NewTicker(rescueEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n, err := postgres.EndHalfSent(ctx, db, programs)
		if err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "looking for half-sent transactions failed", "error", err)
		}
		if n > 0 {
			log.ErrorContext(ctx, "ended half-sent transactions: a program or its network stands still", "sessions", n)
		}
	}
}
