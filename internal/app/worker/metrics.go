package worker

import (
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/telemetry"
)

// meter makes the program's metrics, which watch adds the database to.
func meter(log *slog.Logger, now func() time.Time) *telemetry.Worker {
	ends := make([]string, 0, len(inbox.Ends()))
	for _, end := range inbox.Ends() {
		ends = append(ends, string(end))
	}
	return telemetry.NewWorker(telemetry.Config{Now: now, Log: log}, telemetry.Names{
		Receivers: []string{fulfillment.ChargeReceiver, fulfillment.NotificationReceiver, fulfillment.ResendReceiver},
		Ends:      ends,
		Steps:     fulfillment.Steps(),
		Calls:     stripe.Calls(),
	})
}

func watch(m *telemetry.Worker, db, subscriber *postgres.DB) {
	m.Pools(map[string]*pgxpool.Pool{"main": db.Pool(), "subscriber": subscriber.Pool()})
	m.Figures(db)
}

func observeReceiver(m *telemetry.Worker, receiver string) inbox.Observer {
	return inbox.Observer{
		Claimed:  func(messages, deaths int) { m.Claimed(receiver, messages, deaths) },
		Handling: func() (handled func()) { return m.Handling(receiver) },
		Ended:    func(end inbox.End) { m.Ended(receiver, string(end)) },
	}
}

func observeReception(m *telemetry.Worker) func(inbox.Reception) {
	return func(r inbox.Reception) { m.Received(r.New, r.Duplicates, r.Aside) }
}

func observeProvider(m *telemetry.Worker) func(call string) (answered func(stripe.Answered)) {
	return func(call string) func(stripe.Answered) {
		answered := m.Calling(call)
		return func(a stripe.Answered) { answered(a.Status, a.Replayed) }
	}
}
