package main

import (
	"log/slog"
	"testing"

	"github.com/payonce/payonce/internal/reference"
	"github.com/payonce/payonce/internal/testdb"
)

func TestReference_metrics(t *testing.T) {
	t.Parallel()
	reference.Metrics(t, "api", meter(slog.New(slog.DiscardHandler), testdb.Reused(t)).Registry)
}
