package main

import (
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/telemetry"
)

// meter makes the program's metrics.
func meter(log *slog.Logger, db *postgres.DB) *telemetry.API {
	m := telemetry.NewAPI(telemetry.Config{Now: time.Now, Log: log}, texts(httpapi.KeyResults()), texts(idempotency.Commits()))
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

// observe counts requests, and traces those of the API.
func observe(m *telemetry.API, traces *telemetry.Traces) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			began, r, request := time.Now(), c.Request(), httpapi.AnswerOf(c)
			traced := func(int, string) {}
			if strings.HasPrefix(request.Route, "/v1/") {
				ctx, end := traces.Serving(r.Context(), request.Method, request.Route, r.Header.Values("Traceparent"))
				c.SetRequest(r.WithContext(ctx))
				traced = end
			}
			err := next(c)
			a := httpapi.AnswerOf(c)
			traced(a.Status, string(a.Key))
			m.Answered(a.Method, a.Route, a.Status, time.Since(began), string(a.Key))
			m.Event(a.Event.New, a.Event.Duplicates, a.Event.Aside)
			return err
		}
	}
}

func observeKeys(m *telemetry.API) idempotency.Observer {
	return idempotency.Observer{
		Reading:   m.Looking,
		Committed: func(c idempotency.Commit) { m.Committed(string(c)) },
	}
}
