package demo

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"
)

// atOnce is how many charges may be under way: a demo, not a load test.
const atOnce = 64

// traffic makes the charges of a plan and records what it was answered.
type traffic struct {
	client *client
	tally  *tally
}

func newTraffic(house house, tally *tally) *traffic {
	return &traffic{client: newClient(house, tally), tally: tally}
}

// record is what became of one charge, as far as it was seen.
type record struct {
	charge  Charge
	id      string
	answers []answer // to the three requests, and only definitive ones
	reuse   []answer // to the other body under the same key
	cancel  []answer // to the three requests to cancel it
	final   state
	refunds []refundRecord
	events  []event
	// later are the events after the provider has sent all of its webhooks again.
	later []event
	// shown is the charge as GET shows it in the end.
	shown json.RawMessage
}

// state is a charge as GET shows it.
type state struct {
	ID             string   `json:"id"`
	Status         string   `json:"status"`
	AmountRefunded int64    `json:"amount_refunded"`
	Failure        *failure `json:"failure"`
}

type failure struct {
	Code string `json:"code"`
}

// The states of a captured charge of which money went back.
const (
	partiallyRefunded = "partially_refunded"
	refunded          = "refunded"
)

// ended says whether the charge's first decision is final.
func (s state) ended() bool { return s.captured() || s.Status == failed }

func (s state) captured() bool {
	return s.Status == succeeded || s.Status == partiallyRefunded || s.Status == refunded
}

// end is the ending: succeeded, or the failure's code, or the status where it is
// neither.
func (s state) end() string {
	switch {
	case s.Status == failed && s.Failure != nil:
		return s.Failure.Code
	case s.captured():
		return succeeded
	}
	return s.Status
}

type event struct {
	Version int    `json:"version"`
	Type    string `json:"type"`
}

// carryAll makes every charge at its time and returns when all have come to
// their end, or ctx has. The records are in the plan's order.
func (t *traffic) carryAll(ctx context.Context, plan Plan) []record {
	records := make([]record, len(plan.Charges))
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	var before time.Duration
	for i, charge := range plan.Charges {
		records[i].charge = charge
		if wait(ctx, charge.At-before) != nil {
			continue
		}
		before = charge.At
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			t.carry(ctx, &records[i])
		})
	}
	all.Wait()
	return records
}

// carry makes one charge: a part of its requests at once, the others when it has
// ended. It leaves off where ctx ends.
func (t *traffic) carry(ctx context.Context, r *record) {
	const path = "/v1/charges"
	r.answers = t.send(ctx, r.charge.Together, path, r.charge.Key, r.charge.Body)
	if len(r.answers) == 0 || r.answers[0].Status != http.StatusAccepted {
		return
	}
	r.id = resource(r.answers[0])
	t.tally.accepted.Add(1)
	if r.charge.Reuse {
		r.reuse = t.send(ctx, 1, path, r.charge.Key, r.charge.other())
		t.tally.reused.Add(int64(len(r.reuse)))
	}
	if r.charge.Cancel && wait(ctx, r.charge.Moment) == nil {
		r.cancel = t.cancel(ctx, 2, r)
	}
	t.await(ctx, path+"/"+r.id, &r.final, func() bool { return r.final.ended() })
	if r.final.ended() {
		t.tally.ended.Add(1)
	}
	if r.charge.Cancel {
		r.cancel = append(r.cancel, t.cancel(ctx, 1, r)...)
	}
	t.refundAll(ctx, r)
	late := t.send(ctx, 3-r.charge.Together, path, r.charge.Key, r.charge.Body)
	r.answers = append(r.answers, late...)
	t.settle(ctx, r)
}

// cancel asks n times at once, without a body, for the charge to be canceled.
func (t *traffic) cancel(ctx context.Context, n int, r *record) []answer {
	return t.send(ctx, n, "/v1/charges/"+r.id+"/cancel", r.charge.Key+"-cancel", nil)
}

// settle waits until the merchant was told of every ending, and keeps what the
// charge has come to and its stream of events.
func (t *traffic) settle(ctx context.Context, r *record) {
	t.await(ctx, "/v1/charges/"+r.id, &r.final, func() bool { return true })
	r.events = t.events(ctx, r.id, r.endings())
}

// events is a charge's stream when the merchant has been told of that many
// endings.
func (t *traffic) events(ctx context.Context, id string, endings int) []event {
	var stream struct {
		Data []event `json:"data"`
	}
	t.await(ctx, "/v1/charges/"+id+"/events", &stream, func() bool {
		return count(stream.Data, "merchant.notified") >= endings
	})
	return stream.Data
}

// lookAgain keeps what the streams have become since the charges settled.
func (t *traffic) lookAgain(ctx context.Context, records []record) {
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range records {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if r := &records[i]; r.id != "" {
				r.later = t.events(ctx, r.id, 0)
			}
		})
	}
	all.Wait()
}

// endings is how often the merchant is to be told of something.
func (r record) endings() int {
	n := 0
	if r.final.ended() {
		n++
	}
	for _, refund := range r.refunds {
		if refund.ended() {
			n++
		}
	}
	return n
}

func count(events []event, name string) int {
	n := 0
	for _, event := range events {
		if strings.HasPrefix(event.Type, name+".v") {
			n++
		}
	}
	return n
}

// send sends the same request n times at once and returns the definitive
// answers.
func (t *traffic) send(ctx context.Context, n int, path, key string, body []byte) []answer {
	answers := make([]*answer, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if got, err := t.client.post(ctx, path, key, body); err == nil {
				answers[i] = &got
			}
		})
	}
	all.Wait()
	var definitive []answer
	for _, got := range answers {
		if got != nil {
			definitive = append(definitive, *got)
		}
	}
	return definitive
}

// await reads a resource again and again until it is as wanted or ctx ends.
func (t *traffic) await(ctx context.Context, path string, into any, wanted func() bool) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		if t.client.get(ctx, path, into) != nil || wanted() || wait(ctx, pause) != nil {
			return
		}
	}
}

// resource is the id of what an answer made.
func resource(a answer) string {
	var body struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal([]byte(a.Body), &body)
	return body.ID
}
