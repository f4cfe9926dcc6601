package main

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/telemetry"
)

// meter makes the program's metrics, which watch adds the database to.
func meter(log *slog.Logger) *telemetry.Worker {
	ends := make([]string, 0, len(inbox.Ends()))
	for _, end := range inbox.Ends() {
		ends = append(ends, string(end))
	}
	var receivers []string
	for _, r := range (&fulfillment.Fulfillment{}).Receivers() {
		receivers = append(receivers, r.Name)
	}
	return telemetry.NewWorker(telemetry.Config{Now: time.Now, Log: log}, telemetry.Names{
		Receivers: receivers,
		Ends:      ends,
		Steps:     fulfillment.Steps(),
		Calls:     stripe.Calls(),
	})
}

func watch(m *telemetry.Worker, db, subscriber *postgres.DB) {
	m.Pools(map[string]*pgxpool.Pool{"main": db.Pool(), "subscriber": subscriber.Pool()})
	m.Shared(db.Shared)
	m.Figures(db, func(ctx context.Context, q postgres.Querier) (bool, error) {
		why, err := restored(ctx, q)
		return why != "", err
	})
}

func observeReceiver(m *telemetry.Worker, traces *telemetry.Traces, receiver string) inbox.Observer {
	return inbox.Observer{
		Attempting: func(ctx context.Context, d inbox.Delivery) (context.Context, func(inbox.End)) {
			ctx, attempted := traces.Attempting(ctx, telemetry.Attempt{
				Receiver: receiver, MessageID: d.ID, Type: d.Type, Charge: d.OrderingKey,
				Number: d.Attempt, Waits: d.Waits, Metadata: d.Metadata,
			})
			return ctx, func(end inbox.End) {
				attempted(string(end), end == inbox.EndFailed || end == inbox.EndParked)
			}
		},
		Claimed:  func(messages, deaths int) { m.Claimed(receiver, messages, deaths) },
		Handling: func() (handled func()) { return m.Handling(receiver) },
		Ended:    func(end inbox.End) { m.Ended(receiver, string(end)) },
	}
}

func observeReception(m *telemetry.Worker) func(inbox.Reception) {
	return func(r inbox.Reception) { m.Received(r.New, r.Duplicates, r.Aside) }
}

// onward lets the messages that a handler causes go on with its own span.
func onward(traces *telemetry.Traces, handle inbox.Handler) inbox.Handler {
	return func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
		if carried := traces.Carry(ctx); carried != nil {
			metadata := maps.Clone(d.Metadata)
			if metadata == nil {
				metadata = map[string]string{}
			}
			maps.Copy(metadata, carried)
			d.Metadata = metadata
		}
		return handle(ctx, d)
	}
}

func observeSteps(m *telemetry.Worker, traces *telemetry.Traces) func(context.Context, string) (context.Context, func(bool, error)) {
	return func(ctx context.Context, step string) (context.Context, func(bool, error)) {
		timed := m.Stepping(step)
		ctx, traced := traces.Stepping(ctx, step)
		return ctx, func(did bool, err error) {
			if did {
				timed()
			}
			traced(did, err)
		}
	}
}

func observeProvider(m *telemetry.Worker, traces *telemetry.Traces, host string) func(ctx context.Context, call string) (answered func(stripe.Answered)) {
	return func(ctx context.Context, call string) func(stripe.Answered) {
		counted := m.Calling(call)
		method, _, _ := strings.Cut(call, " ")
		traced := traces.Calling(ctx, host, method, call)
		return func(a stripe.Answered) {
			counted(a.Status, a.Replayed)
			traced(a.Status, a.Replayed)
		}
	}
}
