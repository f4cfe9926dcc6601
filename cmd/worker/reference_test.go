package main

import (
	"log/slog"
	"testing"

	"github.com/payonce/payonce/internal/defects"
	"github.com/payonce/payonce/internal/testdb"
)

func TestReference_metrics(t *testing.T) {
	t.Parallel()
	log, db := slog.New(slog.DiscardHandler), testdb.Reused(t)
	m := meter(log)
	addDatabaseGauges(m, db, nil)
	defects.Metrics(t, "worker", m.Registry)
}
