package telemetry

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/payonce/payonce/internal/postgres"
)

// Worker has the metrics of the worker. Its methods may be called concurrently.
type Worker struct {
	*registry

	received, claimed, deaths, ended, requests, replayed *prometheus.CounterVec
	handling, stepping, calling                          *prometheus.HistogramVec

	receivers []string
}

// Names are the values that labels can have.
type Names struct {
	Receivers []string // of messages
	Ends      []string // of claims
	Steps     []string // of charges
	Calls     []string // of the provider
}

// NewWorker makes them.
func NewWorker(c Config, n Names) *Worker {
	r := newRegistry(c)
	receiver, call := label{"receiver", n.Receivers}, label{"call", n.Calls}
	return &Worker{
		registry: r, receivers: n.Receivers,
		received: r.counter("payonce_outbox_deliveries_total",
			"Messages that the transport brought to the inbox, by whether they were known.", label{"result", receptions}),
		claimed: r.counter("payonce_inbox_attempts_total", "Messages that were claimed.", receiver),
		deaths: r.counter("payonce_inbox_holder_deaths_total",
			"Messages that were taken over from a holder that had died or gone silent.", receiver),
		ended: r.counter("payonce_inbox_messages_processed_total",
			"Attempts that ended, by receiver and result.", receiver, label{"result", n.Ends}),
		handling: r.histogram("payonce_inbox_handler_duration_seconds",
			"Time that a handler worked on a message.", callBuckets, receiver),
		stepping: r.histogram("payonce_step_duration_seconds",
			"Time of a step of a charge that had something to do.", callBuckets, label{"step", n.Steps}),
		calling: r.histogram("payonce_provider_request_duration_seconds",
			"Time from a request to the provider to the headers of its answer.", callBuckets, call),
		requests: r.counter("payonce_provider_requests_total",
			"Requests to the provider, by call and by the answer.", call, label{"result", []string{"ok", "refused", "failed", "unavailable"}}),
		replayed: r.counter("payonce_provider_replays_total",
			"Answers that the provider had given before to the same idempotency key.", call),
	}
}

// Restored reports whether the tables came through a dump and were not repaired since.
type Restored func(context.Context, postgres.Querier) (bool, error)

// Figures adds what the database alone knows. It is called at most once.
func (w *Worker) Figures(db postgres.Querier, restored Restored) {
	w.all.MustRegister(newFigures(w.config, db, w.receivers, restored))
}

// Received counts messages that the transport brought, by what became of them.
func (w *Worker) Received(kept, duplicates, aside int) { count(w.received, kept, duplicates, aside) }

// Claimed counts claimed messages, and those of dead holders among them.
func (w *Worker) Claimed(receiver string, messages, deaths int) {
	w.claimed.WithLabelValues(receiver).Add(float64(messages))
	w.deaths.WithLabelValues(receiver).Add(float64(deaths))
}

// Ended counts the end of an attempt.
func (w *Worker) Ended(receiver, end string) { w.ended.WithLabelValues(receiver, end).Inc() }

// Handling times a handler.
func (w *Worker) Handling(receiver string) (handled func()) {
	return w.time(w.handling.WithLabelValues(receiver))
}

// Stepping times a step of a charge.
func (w *Worker) Stepping(step string) (stepped func()) {
	return w.time(w.stepping.WithLabelValues(step))
}

// Calling times a request to the provider. status is 0 where no answer came.
func (w *Worker) Calling(call string) (answered func(status int, replayed bool)) {
	done := w.time(w.calling.WithLabelValues(call))
	return func(status int, replayed bool) {
		done()
		w.requests.WithLabelValues(call, outcome(status)).Inc()
		if replayed {
			w.replayed.WithLabelValues(call).Inc()
		}
	}
}

// outcome separates an answer of the provider from its absence. An answer that is not of its
// API, such as a redirect, is an absence too.
func outcome(status int) string {
	switch {
	case status >= 200 && status < 300:
		return "ok"
	case status >= 400 && status < 500 && status != 429:
		return "refused"
	case status >= 500:
		return "failed"
	}
	return "unavailable"
}
