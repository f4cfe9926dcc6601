package telemetry

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/payonce/payonce/internal/postgres"
)

// Worker are the metrics of the program that carries. Its methods are called by
// many at once.
type Worker struct {
	*registry

	received *prometheus.CounterVec
	claimed  *prometheus.CounterVec
	deaths   *prometheus.CounterVec
	ended    *prometheus.CounterVec
	handling *prometheus.HistogramVec
	stepping *prometheus.HistogramVec
	calling  *prometheus.HistogramVec
	requests *prometheus.CounterVec
	replayed *prometheus.CounterVec

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
	w := &Worker{
		registry: r,
		received: r.counters("payonce_outbox_deliveries_total",
			"Messages that the transport brought to the inbox, by whether they were known.", "result", receptions()),
		claimed: r.counters("payonce_inbox_attempts_total",
			"Messages that were taken to be worked on.", "receiver", n.Receivers),
		deaths: r.counters("payonce_inbox_holder_deaths_total",
			"Messages that were taken over from a holder that had died or gone silent.", "receiver", n.Receivers),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "payonce_inbox_messages_processed_total",
			Help: "Attempts that ended, by receiver and result.",
		}, []string{"receiver", "result"}),
		handling: r.timings("payonce_inbox_handler_duration_seconds",
			"Time that a handler worked on a message.", "receiver", n.Receivers, calls()),
		stepping: r.timings("payonce_step_duration_seconds",
			"Time of a step of a charge that had something to do.", "step", n.Steps, calls()),
		calling: r.timings("payonce_provider_request_duration_seconds",
			"Time from a request to the provider to the headers of its answer.", "call", n.Calls, calls()),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "payonce_provider_requests_total",
			Help: "Requests to the provider, by call and by what came back.",
		}, []string{"call", "result"}),
		replayed: r.counters("payonce_provider_replays_total",
			"Answers that the provider had given before to the same idempotency key.", "call", n.Calls),
	}
	w.receivers = n.Receivers
	for _, receiver := range n.Receivers {
		for _, end := range n.Ends {
			w.ended.WithLabelValues(receiver, end)
		}
	}
	for _, call := range n.Calls {
		for _, result := range []string{"ok", "refused", "failed", "unavailable"} {
			w.requests.WithLabelValues(call, result)
		}
	}
	r.all.MustRegister(w.ended, w.requests)
	return w
}

// Restored asks whether the tables came through a dump and were not repaired since.
type Restored func(context.Context, postgres.Querier) (bool, error)

// Figures adds what a database knows. Once at most.
func (w *Worker) Figures(db postgres.Querier, restored Restored) {
	w.all.MustRegister(newFigures(w.config, db, w.receivers, restored))
}

// Received counts what became of a message that the transport brought.
func (w *Worker) Received(kept, duplicates, aside int) { count(w.received, kept, duplicates, aside) }

// Claimed counts messages that were taken, and those of dead holders among them.
func (w *Worker) Claimed(receiver string, messages, deaths int) {
	w.claimed.WithLabelValues(receiver).Add(float64(messages))
	w.deaths.WithLabelValues(receiver).Add(float64(deaths))
}

// Ended counts the end of an attempt.
func (w *Worker) Ended(receiver, end string) { w.ended.WithLabelValues(receiver, end).Inc() }

// Handling times a handler.
func (w *Worker) Handling(receiver string) (handled func()) {
	return w.since(w.handling.WithLabelValues(receiver))
}

// Stepping times a step of a charge.
func (w *Worker) Stepping(step string) (stepped func()) {
	return w.since(w.stepping.WithLabelValues(step))
}

// Calling times a request to the provider. Status is 0 where no answer came.
func (w *Worker) Calling(call string) (answered func(status int, replayed bool)) {
	done := w.since(w.calling.WithLabelValues(call))
	return func(status int, replayed bool) {
		done()
		w.requests.WithLabelValues(call, outcome(status)).Inc()
		if replayed {
			w.replayed.WithLabelValues(call).Inc()
		}
	}
}

// outcome tells an answer of the provider's apart from its absence. What is not
// from its API, such as a redirect, is an absence too.
func outcome(status int) string {
	switch {
	case status >= 200 && status < 300:
		return "ok"
	case status == 429:
		return "unavailable"
	case status >= 400 && status < 500:
		return "refused"
	case status >= 500:
		return "failed"
	}
	return "unavailable"
}
