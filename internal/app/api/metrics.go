package api

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/telemetry"
)

// meter makes the program's metrics.
func meter(log *slog.Logger, db *postgres.DB, now func() time.Time) *telemetry.API {
	m := telemetry.NewAPI(telemetry.Config{Now: now, Log: log}, texts(httpapi.KeyResults()), texts(idempotency.Commits()))
	m.Pools(map[string]*pgxpool.Pool{"main": db.Pool()})
	m.Shared(db.Shared)
	return m
}

func texts[T ~string](values []T) []string {
	s := make([]string, len(values))
	for i, v := range values {
		s[i] = string(v)
	}
	return s
}

func observeRequests(m *telemetry.API, traces *telemetry.Traces) httpapi.Observer {
	o := httpapi.Observer{
		Answered: func(a httpapi.Answered) { m.Answered(a.Method, a.Route, a.Status, a.Took, string(a.Key)) },
		Event:    func(r inbox.Reception) { m.Event(r.New, r.Duplicates, r.Aside) },
	}
	if traces != nil {
		o.Serving = func(ctx context.Context, method, route string, traceparents []string) (context.Context, func(int, httpapi.KeyResult)) {
			ctx, served := traces.Serving(ctx, method, route, traceparents)
			return ctx, func(status int, key httpapi.KeyResult) { served(status, string(key)) }
		}
	}
	return o
}

func observeKeys(m *telemetry.API) idempotency.Observer {
	return idempotency.Observer{
		Reading:   m.Looking,
		Committed: func(c idempotency.Commit) { m.Committed(string(c)) },
	}
}
