package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// scenario is one of the ways through the service, with what must come of it.
type scenario struct {
	name     string
	programs []string // those that have points in it
	// prepare does what lies before, with nothing armed.
	prepare func(context.Context, *place) (job, error)
}

// job is what a run of a scenario has to do.
type job struct {
	requests []request // one after another, each until it is answered
	// twice sends each request to another api too, while the fault strikes, and
	// once more at the end.
	twice bool
	// before the worker starts, after the requests were answered.
	before func(context.Context, *place) error
	// want complains of an outcome that is not the scenario's.
	want func(context.Context, *place, []answer) (string, error)
}

func scenarios() []scenario {
	both := []string{"api", "worker"}
	return []scenario{
		{"success", both, func(context.Context, *place) (job, error) {
			return charged(newOrder(visa), "succeeded", "")
		}},
		{"declined", both, func(context.Context, *place) (job, error) {
			return charged(newOrder(cardDeclined), "failed", "card_declined")
		}},
		{"refused", both, func(context.Context, *place) (job, error) {
			return charged(newOrder(nobodysCard), "failed", "provider_refused")
		}},
		{"out of stock", both, func(context.Context, *place) (job, error) {
			return charged(newOrder(visa, item{"tshirt", 1_000_000}), "failed", "out_of_stock")
		}},
		{"refund", both, refundOfAPaidCharge},
		{"cancel", both, canceledCharge},
		{"duplicate request", []string{"api"}, func(context.Context, *place) (job, error) {
			j, err := charged(newOrder(visa), "succeeded", "")
			j.twice = true
			return j, err
		}},
		{"duplicate message", []string{"worker"}, redeliveredCharge},
		{"provider event", both, chargeWithAnEvent},
	}
}

// charged is a charge that comes to a status, with a failure's code.
func charged(o order, status, code string) (job, error) {
	body, err := json.Marshal(o)
	return job{
		requests: []request{{key: unique(), body: body}},
		want: func(ctx context.Context, p *place, answers []answer) (string, error) {
			return p.wantCharge(ctx, answers[0], status, code)
		},
	}, err
}

// wantCharge complains where the charge that was accepted did not come to it.
func (p *place) wantCharge(ctx context.Context, accepted answer, status, code string) (string, error) {
	if accepted.Status != http.StatusAccepted {
		return fmt.Sprintf("the charge was answered %d %s", accepted.Status, accepted.Body), nil
	}
	var c charge
	if err := p.get(ctx, accepted.Header.Get("Location"), &c); err != nil {
		return "", err
	}
	got := ""
	if c.Failure != nil {
		got = c.Failure.Code
	}
	if c.Status != status || got != code {
		return fmt.Sprintf("the charge %s is %s %s, should be %s %s", c.ID, c.Status, got, status, code), nil
	}
	return "", nil
}

// paidAhead is how many charges are paid at once for refunds to come.
const paidAhead = 12

// refundOfAPaidCharge asks for a part of a charge that succeeded before.
func refundOfAPaidCharge(ctx context.Context, p *place) (job, error) {
	if len(p.paid) == 0 {
		for range paidAhead {
			id, err := p.accept(ctx, newOrder(visa))
			if err != nil {
				return job{}, err
			}
			p.paid = append(p.paid, id)
		}
		if err := p.finishAll(ctx); err != nil {
			return job{}, err
		}
	}
	id := p.paid[0]
	p.paid = p.paid[1:]
	return job{
		requests: []request{{path: "/v1/charges/" + id + "/refunds", key: unique(), body: []byte(`{"amount":400}`)}},
		want: func(ctx context.Context, p *place, answers []answer) (string, error) {
			if answers[0].Status != http.StatusAccepted {
				return fmt.Sprintf("the refund was answered %d %s", answers[0].Status, answers[0].Body), nil
			}
			var refund struct {
				Status string `json:"status"`
			}
			err := p.get(ctx, answers[0].Header.Get("Location"), &refund)
			if err == nil && refund.Status != "succeeded" {
				return fmt.Sprintf("the refund of %s is %s", id, refund.Status), nil
			}
			return "", err
		},
	}, nil
}

// canceledCharge is canceled before a worker has processed it.
func canceledCharge(ctx context.Context, p *place) (job, error) {
	id, err := p.accept(ctx, newOrder(visa))
	return job{
		requests: []request{{path: "/v1/charges/" + id + "/cancel", key: unique(), body: []byte(`{}`)}},
		want: func(ctx context.Context, p *place, answers []answer) (string, error) {
			if answers[0].Status != http.StatusAccepted {
				return fmt.Sprintf("the cancellation was answered %d %s", answers[0].Status, answers[0].Body), nil
			}
			accepted := answer{Status: http.StatusAccepted, Header: http.Header{"Location": {"/v1/charges/" + id}}}
			return p.wantCharge(ctx, accepted, "failed", "canceled")
		},
	}, err
}

// redeliver moves the group's offset back to before the last n messages.
const redeliver = `
update outbox_offsets f
   set transaction_id = coalesce(before.transaction_id, '0'),
       "offset" = coalesce(before."offset", 0)
  from (select 1) as one
  left join (select o.transaction_id,
                    o."offset"
               from outbox o
              order by o.transaction_id desc, o."offset" desc
             offset $1
              limit 1) before
    on true
returning 1`

// redeliveredCharge has succeeded, and its messages come once more.
func redeliveredCharge(_ context.Context, _ *place) (job, error) {
	j, err := charged(newOrder(visa), "succeeded", "")
	j.before = func(ctx context.Context, p *place) error {
		if err := p.finishAll(ctx); err != nil {
			return err
		}
		// Of the request and of the outcome.
		var moved int
		return p.db.QueryRow(ctx, redeliver, 2).Scan(&moved)
	}
	return j, err
}

// chargeWithAnEvent is a charge about which the provider sends an event before it was
// processed. The event only wakes the worker.
func chargeWithAnEvent(ctx context.Context, p *place) (job, error) {
	id, err := p.accept(ctx, newOrder(visa))
	if err != nil {
		return job{}, err
	}
	event := intentEvent("payment_intent.succeeded", id)
	return job{
		requests: []request{{
			path: "/v1/webhooks/stripe", body: []byte(event),
			header: http.Header{
				"Authorization": nil, "Content-Type": {"application/json"},
				"Stripe-Signature": {signed(p.Secrets.Events, time.Now(), event)},
			},
		}},
		want: func(ctx context.Context, p *place, answers []answer) (string, error) {
			if answers[0].Status != http.StatusOK {
				return fmt.Sprintf("the event was answered %d %s", answers[0].Status, answers[0].Body), nil
			}
			accepted := answer{Status: http.StatusAccepted, Header: http.Header{"Location": {"/v1/charges/" + id}}}
			return p.wantCharge(ctx, accepted, "succeeded", "")
		},
	}, nil
}
