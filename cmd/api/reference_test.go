package main

import (
	"log/slog"
	"testing"

	"github.com/payonce/payonce/internal/defects"
	"github.com/payonce/payonce/internal/testdb"
)

func TestReference_metrics(t *testing.T) {
	t.Parallel()
	defects.Metrics(t, "api", meter(slog.New(slog.DiscardHandler), testdb.Reused(t)).Registry)
}
