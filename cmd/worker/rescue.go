package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/payonce/payonce/internal/postgres"
)

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
		n, err := postgres.EndHalfSent(ctx, db, programs, postgres.HalfSent)
		if err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "looking for half-sent transactions failed", "error", err)
		}
		if n > 0 {
			log.ErrorContext(ctx, "ended half-sent transactions: a program or its network stands still", "sessions", n)
		}
	}
}
