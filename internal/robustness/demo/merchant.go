package demo

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// merchant sends the requests of a plan, and notes in them what came of each. A request without a
// definitive answer is retried under the same key.
type merchant struct {
	*harness.Client

	sandbox harness.Sandbox

	accepted, ended atomic.Int64 // charges
}

// made is a charge or a refund as GET shows it.
type made struct {
	ID      string `json:"id"`
	Status  string `json:"status"`
	Amount  int64  `json:"amount"`
	Failure struct {
		Code string `json:"code"`
	} `json:"failure"`
}

// outcome is succeeded, also of a charge that was refunded since, the code of the failure, the type
// of the problem that refused the request, or the status.
func (r *request) outcome() string {
	switch {
	case r.ID == "" && len(r.answers) > 0:
		return r.answers[0].Problem()
	case r.Status == "partially_refunded", r.Status == "refunded":
		return succeeded
	case r.Failure.Code != "":
		return r.Failure.Code
	}
	return r.Status
}

func (r *request) hasEnded() bool { return r.outcome() == succeeded || r.Status == failed }

// inFlight is how many charges are accepted and have not ended.
func (m *merchant) inFlight() int64 { return m.accepted.Load() - m.ended.Load() }

// run sends every charge at its time and returns when all have ended, or ctx has.
func (m *merchant) run(ctx context.Context, charges []*charge) {
	const most = 64 // at a time
	var all errgroup.Group
	all.SetLimit(most)
	var before time.Duration
	for _, c := range charges {
		_ = harness.Wait(ctx, c.at-before) // processing ends at once where ctx has
		before = c.at
		all.Go(func() error { m.process(ctx, c); return nil })
	}
	_ = all.Wait()
}

// send sends a request: some at once and, when what was accepted has ended, the others.
func (m *merchant) send(ctx context.Context, r *request, accepted func()) {
	r.answers = m.PostAll(ctx, r.together, r.path, r.key, r.body)
	if len(r.answers) > 0 && r.answers[0].Status == http.StatusAccepted {
		accepted()
		_ = m.Await(ctx, r.answers[0].Location, &r.made, r.hasEnded)
	}
	r.answers = append(r.answers, m.PostAll(ctx, 3-r.together, r.path, r.key, r.body)...)
}

// process sends one charge and what follows it. It stops where ctx ends.
func (m *merchant) process(ctx context.Context, c *charge) {
	m.send(ctx, &c.request, func() {
		m.accepted.Add(1)
		if c.cancel != nil {
			c.cancel.path = c.answers[0].Location + "/cancel"
			m.send(ctx, c.cancel, func() {})
		}
	})
	if !c.hasEnded() {
		return
	}
	m.ended.Add(1)
	own := chargesPath + "/" + c.ID
	var all sync.WaitGroup
	for i, refund := range c.refunds {
		refund.path = own + "/refunds"
		all.Go(func() {
			if c.then == outside && i == 0 {
				m.refundOutside(ctx, own, refund)
			} else {
				m.send(ctx, refund, func() {})
			}
		})
		if c.then != rivals {
			all.Wait()
		}
	}
	all.Wait()
	if c.then == "won" || c.then == "lost" {
		_ = m.sandbox.Dispute(ctx, m.event(ctx, own, "payment.started"), c.then)
		m.event(ctx, own, "charge.dispute_closed")
	}
}

// refundOutside refunds in the provider's dashboard, and waits until the service shows it.
func (m *merchant) refundOutside(ctx context.Context, own string, r *request) {
	var now struct {
		Data []made `json:"data"`
	}
	err := m.sandbox.Refund(ctx, m.event(ctx, own, "payment.started"), r.amount)
	if err == nil && m.Await(ctx, r.path, &now, func() bool { return len(now.Data) > 0 }) == nil {
		r.made = now.Data[0]
	}
}

// event waits for an event of a charge, by its type without the version, and returns the payment intent in it.
func (m *merchant) event(ctx context.Context, own, kind string) (intent string) {
	var stream struct {
		Data []struct {
			Type string `json:"type"`
			Data struct {
				PaymentIntent string `json:"payment_intent"`
			} `json:"data"`
		} `json:"data"`
	}
	_ = m.Await(ctx, own+"/events", &stream, func() bool {
		for _, e := range stream.Data {
			if strings.HasPrefix(e.Type, kind+".v") {
				intent = e.Data.PaymentIntent
				return true
			}
		}
		return false
	})
	return intent
}
