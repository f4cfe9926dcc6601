package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/telemetry"
)

// openTime is how long one try to open the standby takes at most.
const openTime = 10 * time.Second

// replica is the standby of READ_DATABASE_URL, once it has been opened.
type replica struct{ db atomic.Pointer[postgres.DB] }

// open tries until the standby answers. The api serves meanwhile.
func (r *replica) open(ctx context.Context, log *slog.Logger, s settings, traces *telemetry.Traces) {
	if s.ReadDatabaseURL == "" {
		return
	}
	ctx, opened := context.WithCancel(ctx)
	defer opened()
	o := s.database(traces, nil)
	o.AllowReadOnly, o.Writes = true, nil
	loop.Run(ctx, log, "READ_DATABASE_URL does not answer, and the database answers in its place", func(ctx context.Context) (time.Duration, error) {
		within, cancel := context.WithTimeout(ctx, openTime)
		defer cancel()
		db, err := postgres.Open(within, s.ReadDatabaseURL.Reveal(), o)
		if err == nil {
			r.db.Store(db)
			opened()
		}
		return 0, err
	})
}

func (r *replica) database() httpapi.Database {
	if db := r.db.Load(); db != nil {
		return db
	}
	return nil
}

// Close closes the standby.
func (r *replica) Close() {
	if db := r.db.Load(); db != nil {
		db.Close()
	}
}
