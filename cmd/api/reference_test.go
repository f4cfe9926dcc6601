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
	r := telemetry.NewRegistry(slog.New(slog.DiscardHandler), time.Now)
	r.Database(testdb.Reused(t))
	meter(r)
	arch.Metrics(t, "api", r)
}
