package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/fulfillment/operate"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/service"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/telemetry"
)

// receiver is a receiver of messages and its processor, which has claims of its own.
type receiver struct {
	fulfillment.Receiver

	bell      <-chan struct{} // rings for messages of its topic
	processor *inbox.Processor
}

func processors(w *service.Service, services fulfillment.Services, m *metrics, s settings) ([]receiver, error) {
	f := fulfillment.New(w.DB, services, w.Log)
	var receivers []receiver
	for _, r := range f.Receivers() {
		o := inbox.Options{
			DB:          w.DB,
			Receiver:    r.Name,
			Handle:      r.Handle,
			Concurrency: s.WorkerConcurrency,
			Policy: inbox.Policy{
				Lease: s.Lease, MaxAttempts: s.MaxAttempts, GiveUpAfter: s.GiveUpAfter,
				BackoffBase: s.BackoffBase, BackoffCap: s.BackoffCap, DeadLetters: r.DeadLetters,
			},
			Wake:  w.Bell.Bell(r.Name),
			Drain: program.DrainTime,
			Log:   w.Log,
		}
		m.observe(&o, w.Traces)
		p, err := inbox.New(o)
		if err != nil {
			return nil, err
		}
		p.Pause(true) // until followPauses has read what is paused
		receivers = append(receivers, receiver{r, w.Bell.Bell(r.Topic), p})
	}
	return receivers, nil
}

// followPauses pauses the receivers and merchants that operators have paused, and resumes the others.
func followPauses(ctx context.Context, db *postgres.DB, receivers []receiver) error {
	all, err := operate.ListPauses(ctx, db)
	if err != nil {
		return err
	}
	var merchants []string
	for _, pause := range all {
		if pause.What == operate.PausedMerchant {
			merchants = append(merchants, pause.Merchant)
		}
	}
	for _, r := range receivers {
		r.processor.Pause(slices.Contains(all, operate.Pause{What: r.Name}), merchants...)
	}
	return nil
}

// metrics are those of a worker.
type metrics struct {
	received, claimed, deaths, ended, requests, replayed telemetry.Counter
	calling                                              telemetry.Times
}

func meter(r *telemetry.Registry) *metrics {
	receiver, call := telemetry.LabelOf("receiver", receiverNames()...), telemetry.LabelOf("call", stripe.Calls()...)
	return &metrics{
		received: r.Counter("payonce_outbox_deliveries_total",
			"Messages that the inbox received from the outbox. dead_letter: it cannot be read, or has another payload than the one under its id.", telemetry.LabelOf("result", "first", "duplicate", "dead_letter")),
		claimed: r.Counter("payonce_inbox_attempts_total", "Messages that were claimed: attempts that began.", receiver),
		deaths: r.Counter("payonce_inbox_holder_deaths_total",
			"Messages that were taken over: from a holder whose lease had expired, or after a claim of unknown outcome.", receiver),
		ended: r.Counter("payonce_inbox_messages_processed_total",
			"Attempts that ended. failed: an error or a panic. waiting: for an external service or for the database. blocked: for an operator, since the provider refuses the secret key or its mode. dead_letter: the message became one. released: the worker stops. lost: another holder has claimed or finished the message. left: the database did not accept the result.", receiver, telemetry.LabelOf("result", inbox.Ends()...)),
		calling: r.Times("payonce_provider_request_duration_seconds",
			"Time from a request to the provider to the headers of its response.", call),
		requests: r.Counter("payonce_provider_requests_total",
			"Requests to the provider. ok: 2xx. refused: 4xx. failed: 5xx. unavailable: 429, no response, or none of the provider's API.", call, telemetry.LabelOf("result", "ok", "refused", "failed", "unavailable")),
		replayed: r.Counter("payonce_provider_replays_total",
			"Responses that the provider replayed for a repeated idempotency key.", call),
	}
}

func receiverNames() (names []string) {
	for _, r := range (&fulfillment.Fulfillment{}).Receivers() {
		names = append(names, r.Name)
	}
	return names
}

// observe adds metrics, traces and a log line for each attempt to a processor. The messages that its handler causes go
// on with the handler's own span.
func (m *metrics) observe(p *inbox.Options, traces *telemetry.Traces) {
	receiver, log := p.Receiver, p.Log
	p.OnReceive = func(r inbox.Reception) {
		m.received.Add(r.New, "first")
		m.received.Add(r.Duplicates, "duplicate")
		m.received.Add(r.DeadLetters, "dead_letter")
	}
	p.OnAttempt = func(ctx context.Context, d *inbox.Delivery) (context.Context, func(inbox.End)) {
		ctx, attempted := traces.Attempting(ctx, telemetry.Attempt{
			Receiver: receiver, MessageID: d.ID, Type: d.Type, Charge: d.OrderingKey,
			Number: d.Attempt, Waits: d.Waits, Metadata: d.Metadata,
		})
		if carried := traces.Carry(ctx); carried != nil {
			metadata := map[string]string{}
			maps.Copy(metadata, d.Metadata)
			maps.Copy(metadata, carried)
			d.Metadata = metadata
		}
		m.claimed.Add(1, receiver)
		m.deaths.Add(min(d.Deaths, 1), receiver)
		began := time.Now()
		return ctx, func(end inbox.End) {
			log.InfoContext(ctx, "attempt", "receiver", receiver, "message_id", d.ID, "type", d.Type, "ordering_key", d.OrderingKey,
				"attempt", d.Attempt, "result", end, "milliseconds", time.Since(began).Milliseconds())
			attempted(string(end), end == inbox.EndFailed || end == inbox.EndDeadLetter)
			m.ended.Add(1, receiver, string(end))
		}
	}
}

func (m *metrics) observeProvider(traces *telemetry.Traces, host string) func(ctx context.Context, call string) (answered func(stripe.Answered)) {
	return func(ctx context.Context, call string) func(stripe.Answered) {
		timed := m.calling.Time(call)
		method, _, _ := strings.Cut(call, " ")
		traced := traces.Calling(ctx, host, method, call)
		return func(a stripe.Answered) {
			timed()
			traced(a.Status, a.Replayed)
			m.requests.Add(1, call, outcome(a.Status))
			if a.Replayed {
				m.replayed.Add(1, call)
			}
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
