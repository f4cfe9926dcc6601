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

// merchant sends the requests of a plan, and records the answers. A request without a definitive
// answer is retried under the same key. Each request is sent three times: some at once, the
// others after the charge has ended.
type merchant struct {
	*harness.Client

	sandbox harness.Sandbox

	accepted, ended atomic.Int64 // charges
	reused          atomic.Int64 // requests with another body under a used key
}

// inFlight is how many charges are accepted and have not ended.
func (m *merchant) inFlight() int64 { return m.accepted.Load() - m.ended.Load() }

// record is what was observed of one charge.
type record struct {
	charge charge

	id      string
	answers []harness.Answer // definitive ones to the three requests
	reuse   []harness.Answer // to the other body under the same key
	cancel  []harness.Answer // to the three requests to cancel it
	final   state
	refunds []refundRecord
	events  []event // when the merchant was notified of each outcome
	later   []event // after the provider has repeated its webhooks
}

// refundRecord is what was observed of one refund.
type refundRecord struct {
	refund  refund
	answers []harness.Answer // definitive ones to the three requests

	ID     string `json:"id"`
	Amount int64  `json:"amount"`
	Status string `json:"status"`
}

// state is a charge as GET shows it.
type state struct {
	Status         string `json:"status"`
	Amount         int64  `json:"amount"`
	Currency       string `json:"currency"`
	AmountRefunded int64  `json:"amount_refunded"`
	Failure        struct {
		Code string `json:"code"`
	} `json:"failure"`
}

// event is an event of a charge's stream.
type event struct {
	Type string `json:"type"`
	Data struct {
		PaymentIntent string `json:"payment_intent"`
	} `json:"data"`
}

// captured reports whether the charge succeeded, refunded or not.
func (s state) captured() bool {
	return s.Status == succeeded || s.Status == "partially_refunded" || s.Status == "refunded"
}

func (s state) ended() bool { return s.captured() || s.Status == failed }

// outcome is succeeded, or the code of the failure, or else the status.
func (s state) outcome() string {
	switch {
	case s.Status == failed:
		return s.Failure.Code
	case s.captured():
		return succeeded
	}
	return s.Status
}

func (r refundRecord) ended() bool { return r.Status == succeeded || r.Status == failed }

// outcome is the status, or the type of the problem that refused the refund.
func (r refundRecord) outcome() string {
	if r.ID == "" && len(r.answers) > 0 {
		return r.answers[0].Problem()
	}
	return r.Status
}

// outcomes is how many outcomes the merchant is notified of.
func (r record) outcomes() (n int) {
	if r.final.ended() {
		n++
	}
	for _, refund := range r.refunds {
		if refund.ended() {
			n++
		}
	}
	// A dispute is opened, withdrawn, reinstated if it is won, and closed.
	return n + map[string]int{won: 4, lost: 3}[r.charge.disputed]
}

// run sends every charge at its time and returns when all have ended, or ctx has. The records are
// in the plan's order.
func (m *merchant) run(ctx context.Context, p plan) []record {
	records := make([]record, len(p.charges))
	for i, c := range p.charges {
		records[i].charge = c
	}
	var before time.Duration
	each(records, func(r *record) {
		_ = harness.Wait(ctx, r.charge.at-before) // processing ends at once where ctx has
		before = r.charge.at
	}, func(r *record) { m.process(ctx, r) })
	return records
}

// each begins every record in turn, and calls do for some of them at a time.
func each(records []record, begin, do func(*record)) {
	const most = 64
	var all errgroup.Group
	all.SetLimit(most)
	for i := range records {
		begin(&records[i])
		all.Go(func() error { do(&records[i]); return nil })
	}
	_ = all.Wait()
}

// process sends one charge: some of its requests at once, the others when it has ended. It stops
// where ctx ends.
func (m *merchant) process(ctx context.Context, r *record) {
	const path = "/v1/charges"
	c := r.charge
	r.answers = m.PostAll(ctx, c.together, path, c.key, c.body)
	if len(r.answers) == 0 || r.answers[0].Status != http.StatusAccepted {
		return
	}
	r.id = r.answers[0].Member("id")
	own := path + "/" + r.id
	m.accepted.Add(1)
	if c.reuse {
		r.reuse = m.PostAll(ctx, 1, path, c.key, c.otherBody())
		m.reused.Add(int64(len(r.reuse)))
	}
	if c.cancel && harness.Wait(ctx, c.cancelAfter) == nil {
		r.cancel = m.PostAll(ctx, 2, own+"/cancel", c.key+"-cancel", nil)
	}
	if m.Await(ctx, own, &r.final, func() bool { return r.final.ended() }) != nil {
		return
	}
	m.ended.Add(1)
	if c.cancel {
		r.cancel = append(r.cancel, m.PostAll(ctx, 1, own+"/cancel", c.key+"-cancel", nil)...)
	}
	m.refundAll(ctx, own, r)
	if c.disputed != "" {
		_ = m.sandbox.Dispute(ctx, m.intent(ctx, r.id), c.disputed)
	}
	r.answers = append(r.answers, m.PostAll(ctx, 3-c.together, path, c.key, c.body)...)
	_ = m.Await(ctx, own, &r.final, func() bool { return true })
	r.events = m.events(ctx, r.id, r.outcomes())
}

// refundAll requests the refunds of a charge that has ended and waits for their outcomes.
func (m *merchant) refundAll(ctx context.Context, own string, r *record) {
	r.refunds = make([]refundRecord, len(r.charge.refunds))
	var all sync.WaitGroup
	for i, refund := range r.charge.refunds {
		r.refunds[i].refund = refund
		all.Go(func() {
			if refund.outside {
				m.refundOutside(ctx, r.id, &r.refunds[i])
			} else {
				m.refund(ctx, own+"/refunds", &r.refunds[i])
			}
		})
		if !r.charge.rivals {
			all.Wait()
		}
	}
	all.Wait()
}

// refund sends two requests at once and, when the refund has ended, the third.
func (m *merchant) refund(ctx context.Context, path string, r *refundRecord) {
	r.answers = m.PostAll(ctx, 2, path, r.refund.key, r.refund.body)
	if len(r.answers) > 0 && r.answers[0].Status == http.StatusAccepted {
		_ = m.Await(ctx, path+"/"+r.answers[0].Member("id"), r, func() bool { return r.ended() })
	}
	r.answers = append(r.answers, m.PostAll(ctx, 1, path, r.refund.key, r.refund.body)...)
}

// refundOutside refunds in the provider's dashboard, and waits until the service shows it.
func (m *merchant) refundOutside(ctx context.Context, id string, r *refundRecord) {
	var now struct {
		Data []refundRecord `json:"data"`
	}
	err := m.sandbox.Refund(ctx, m.intent(ctx, id), r.refund.amount)
	if err == nil && m.Await(ctx, "/v1/charges/"+id+"/refunds", &now, func() bool { return len(now.Data) > 0 }) == nil {
		r.ID, r.Amount, r.Status = now.Data[0].ID, now.Data[0].Amount, now.Data[0].Status
	}
}

// intent is the payment intent of a captured charge.
func (m *merchant) intent(ctx context.Context, id string) string {
	for _, e := range m.events(ctx, id, 0) {
		if e.Data.PaymentIntent != "" {
			return e.Data.PaymentIntent
		}
	}
	return ""
}

// events is a charge's stream when the merchant was notified of that many outcomes.
func (m *merchant) events(ctx context.Context, id string, outcomes int) []event {
	var stream struct {
		Data []event `json:"data"`
	}
	_ = m.Await(ctx, "/v1/charges/"+id+"/events", &stream, func() bool {
		notified := 0
		for _, e := range stream.Data {
			if strings.HasPrefix(e.Type, "merchant.notified.v") {
				notified++
			}
		}
		return notified >= outcomes
	})
	return stream.Data
}

// reread reads the streams once more, when all is quiet.
func (m *merchant) reread(ctx context.Context, records []record) {
	each(records, func(*record) {}, func(r *record) {
		if r.id != "" {
			r.later = m.events(ctx, r.id, 0)
		}
	})
}
