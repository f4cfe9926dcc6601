package main

import (
	"log/slog"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/arch"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/testdb"
)

func TestReference_metrics(t *testing.T) {
	t.Parallel()
	db, r := testdb.Reused(t), telemetry.NewRegistry(slog.New(slog.DiscardHandler), time.Now)
	r.Database(db)
	meter(r)
	addFigures(r, db, nil)
	arch.Metrics(t, "worker", r)
}
