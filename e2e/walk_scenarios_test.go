package e2e_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// scenario is one of the ways through the service, with what must come of it.
type scenario struct {
	name     string
	programs []string // those that have points in it
	// prepare does what lies before, with nothing armed.
	prepare func(context.Context, *testbed) (job, error)
}

// job is what a run of a scenario has to do: one request, until it is answered.
type job struct {
	request request
	answer  int // its status
	// path is where the outcome is shown; the answer's Location where empty.
	path         string
	status, code string // of the outcome, and of its failure
}

// start is the scenario of the points that come with a program's start: no other one has them.
const start = "start"

func scenarios() []scenario {
	both := []string{"api", "worker"}
	success := func(context.Context, *testbed) (job, error) { return charged(newOrder(visa), "succeeded", "") }
	return []scenario{
		{start, both, success},
		{"success", both, success},
		{"declined", both, func(context.Context, *testbed) (job, error) {
			return charged(newOrder(cardDeclined), "failed", "card_declined")
		}},
		{"refused", both, func(context.Context, *testbed) (job, error) {
			return charged(newOrder(nobodysCard), "failed", "provider_refused")
		}},
		{"out of stock", both, func(context.Context, *testbed) (job, error) {
			return charged(newOrder(visa, item{"tshirt", 1_000_000}), "failed", "out_of_stock")
		}},
		{"refund", both, refundOfAPaidCharge},
		{"dashboard refund", both, outside("charge.refunded", "partially_refunded", func(ctx context.Context, p *testbed, intent string) error {
			return p.sandbox().Refund(ctx, intent, 400)
		})},
		{"dispute", both, outside("charge.dispute.closed", "succeeded", func(ctx context.Context, p *testbed, intent string) error {
			return p.sandbox().Dispute(ctx, intent, "lost")
		})},
		{"one charge per order", both, heldOrder},
		{"cancel", both, canceledCharge},
		{"provider event", both, outside("payment_intent.succeeded", "succeeded", func(context.Context, *testbed, string) error {
			return nil // the event only wakes the worker
		})},
		{"action timed out", []string{"worker"}, func(context.Context, *testbed) (job, error) {
			return charged(newAction(), "failed", "authentication_timeout")
		}},
		{"authenticated", []string{"worker"}, authenticatedCharge},
	}
}

// charged is a charge that comes to a status, with a failure's code.
func charged(o order, status, code string) (job, error) {
	body, err := json.Marshal(o)
	return job{request: request{Key: unique(), Body: body}, answer: http.StatusAccepted, status: status, code: code}, err
}

// paidAhead is how many charges are paid at once for refunds to come.
const paidAhead = 12

// takePaid returns a charge that succeeded before.
func (p *testbed) takePaid(ctx context.Context) (string, error) {
	if len(p.paid) == 0 {
		for range paidAhead {
			c, err := p.client.accept(ctx, newOrder(visa))
			if err != nil {
				return "", err
			}
			p.paid = append(p.paid, c.ID)
		}
		if err := p.finishAll(ctx); err != nil {
			return "", err
		}
	}
	id := p.paid[0]
	p.paid = p.paid[1:]
	return id, nil
}

// refundOfAPaidCharge asks for a part of a charge.
func refundOfAPaidCharge(ctx context.Context, p *testbed) (job, error) {
	id, err := p.takePaid(ctx)
	return job{request: refundRequest(id, 400), answer: http.StatusAccepted, status: "succeeded"}, err
}

// outside is a paid charge whose money moves outside the service. The provider's event about
// it says no more than that there is something new.
func outside(event, status string, moves func(context.Context, *testbed, string) error) func(context.Context, *testbed) (job, error) {
	return func(ctx context.Context, p *testbed) (job, error) {
		id, err := p.takePaid(ctx)
		if err != nil {
			return job{}, err
		}
		j, intent, err := p.told(ctx, event, id, status)
		if err != nil {
			return job{}, err
		}
		return j, moves(ctx, p, intent)
	}
}

// told is an event of the provider about the payment intent of a charge, which comes to a status.
func (p *testbed) told(ctx context.Context, event, id, status string) (j job, intent string, err error) {
	const started = `select data ->> 'payment_intent' from ledger_events where stream_id = $1 and type = 'payment.started.v1'`
	err = p.tables.QueryRow(ctx, started, id).Scan(&intent)
	return job{
		request: signedEvent(p.Secrets.Events, event, intent),
		answer:  http.StatusOK, path: "/v1/charges/" + id, status: status,
	}, intent, err
}

// canceledCharge is canceled before a worker has processed it.
func canceledCharge(ctx context.Context, p *testbed) (job, error) {
	c, err := p.client.accept(ctx, newOrder(visa))
	return job{
		request: request{Path: "/v1/charges/" + c.ID + "/cancel", Key: unique(), Body: []byte(`{}`)},
		answer:  http.StatusAccepted, status: "failed", code: "canceled",
	}, err
}

// setOneChargePerOrder is false again when the next run begins.
const setOneChargePerOrder = `update merchants set one_charge_per_order = $1`

// heldOrder is declined, so its order is held and freed.
func heldOrder(ctx context.Context, p *testbed) (job, error) {
	if _, err := p.tables.Exec(ctx, setOneChargePerOrder, true); err != nil {
		return job{}, err
	}
	return charged(newOrder(cardDeclined), "failed", "card_declined")
}

// isActing reports whether a charge waits for its customer, and nothing else is left to do.
const isActing = `
select exists (select from inbox where ordering_key = $1 and receiver = 'fulfillment' and status = 'pending' and waits > 0)
   and exists (select from ledger_events where stream_id = $1 and type = 'merchant.notified.v1')`

// authenticatedCharge has waited for its customer, who has authenticated since. The provider's
// event wakes it.
func authenticatedCharge(ctx context.Context, p *testbed) (job, error) {
	c, err := p.client.accept(ctx, newAction())
	if err != nil {
		return job{}, err
	}
	helper, err := p.helper(ctx, map[string]string{"ACTION_TIMEOUT": "1h"})
	if err != nil {
		return job{}, err
	}
	acting := testrun.Within(walkStall, func() (acting bool) {
		return p.tables.QueryRow(ctx, isActing, c.ID).Scan(&acting) == nil && acting
	})
	if err := helper.Kill(); err != nil || !acting {
		return job{}, errors.Join(err, errors.New("the charge waits for its customer: "+strconv.FormatBool(acting)))
	}
	if err = p.client.get(ctx, "/v1/charges/"+c.ID, &c); err != nil {
		return job{}, err
	}
	if err := authenticate(ctx, c, "succeeded"); err != nil {
		return job{}, err
	}
	j, _, err := p.told(ctx, "payment_intent.succeeded", c.ID, "succeeded")
	return j, err
}

// authenticate does what the customer of a charge does on the provider's page.
func authenticate(ctx context.Context, c charge, outcome string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Next.URL+"?outcome="+outcome, nil)
	if err != nil {
		return err
	}
	got, err := harness.Exchange(http.DefaultClient, r)
	if err == nil && got.Status != http.StatusOK {
		err = fmt.Errorf("%s was answered %d %s", r.URL, got.Status, got.Body)
	}
	return err
}

// signedEvent is a request of the provider with an event about a payment intent.
func signedEvent(secret, kind, intent string) request {
	event := fmt.Sprintf(`{"id":"evt_%s","object":"event","type":%q,"data":{"object":{"id":"obj_1","payment_intent":%q}}}`, intent, kind, intent)
	seconds := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(seconds + "." + event))
	signature := "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
	header := http.Header{"Authorization": nil, "Content-Type": {"application/json"}, "Stripe-Signature": {signature}}
	return request{Path: "/v1/webhooks/stripe", Body: []byte(event), Header: header}
}
