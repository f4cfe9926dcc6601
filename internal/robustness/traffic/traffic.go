package traffic

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// maxInFlight is how many charges may be in flight.
const maxInFlight = 64

// Record is what was observed of one charge.
type Record struct {
	Charge  Charge
	ID      string
	Answers []Answer // definitive ones to the three requests
	Reuse   []Answer // to the other body under the same key
	Cancel  []Answer // to the three requests to cancel it
	Final   State
	Refunds []RefundRecord
	Events  []Event
	// Later are the events after the provider has repeated its webhooks.
	Later []Event
	// Shown is the charge as GET shows it at the end.
	Shown Shown
}

// RefundRecord is what was observed of one refund.
type RefundRecord struct {
	Refund  Refund
	ID      string
	Answers []Answer // definitive ones to the three requests
	Amount  int64    // as the service shows it
	Status  string
}

// State is a charge as GET shows it.
type State struct {
	ID             string   `json:"id"`
	Status         string   `json:"status"`
	AmountRefunded int64    `json:"amount_refunded"`
	Failure        *Failure `json:"failure"`
}

// Failure is why a charge failed.
type Failure struct {
	Code string `json:"code"`
}

// Event is an event of a charge's stream.
type Event struct {
	Version int    `json:"version"`
	Type    string `json:"type"`
	Data    struct {
		PaymentIntent string `json:"payment_intent"`
		Reference     string `json:"reference"`
	} `json:"data"`
}

// The states of a captured charge that was refunded.
const (
	PartiallyRefunded = "partially_refunded"
	Refunded          = "refunded"
)

// Ended reports whether the charge has its outcome.
func (s State) Ended() bool { return s.Captured() || s.Status == Failed }

// Captured reports whether the charge succeeded, refunded or not.
func (s State) Captured() bool {
	return s.Status == Succeeded || s.Status == PartiallyRefunded || s.Status == Refunded
}

// Outcome is Succeeded, or the code of the failure, or else the status.
func (s State) Outcome() string {
	switch {
	case s.Status == Failed && s.Failure != nil:
		return s.Failure.Code
	case s.Captured():
		return Succeeded
	}
	return s.Status
}

// Ended reports whether the refund has an outcome of which the merchant is notified.
func (r RefundRecord) Ended() bool { return r.Status == Succeeded || r.Status == Failed }

// Outcome is the status, or the type of the problem that refused it.
func (r RefundRecord) Outcome() string {
	if r.ID == "" && len(r.Answers) > 0 {
		return r.Answers[0].Problem()
	}
	return r.Status
}

// Outcomes is how many outcomes the merchant is notified of.
func (r Record) Outcomes() (n int) {
	if r.Final.Ended() {
		n++
	}
	for _, refund := range r.Refunds {
		if refund.Ended() {
			n++
		}
	}
	switch r.Charge.Disputed {
	case DisputeWon:
		n += 4 // opened, withdrawn, reinstated, closed
	case DisputeLost:
		n += 3
	}
	return n
}

// CountEvents counts the events of a type, such as "charge.failed".
func CountEvents(events []Event, name string) (n int) {
	for _, event := range events {
		if strings.HasPrefix(event.Type, name+".v") {
			n++
		}
	}
	return n
}

// Run sends every charge at its time and returns when all have ended, or ctx has.
// The records are in the plan's order.
func (t *Traffic) Run(ctx context.Context, plan Plan) []Record {
	records := make([]Record, len(plan.Charges))
	var before time.Duration
	each(records, func(i int) bool {
		records[i].Charge = plan.Charges[i]
		at := plan.Charges[i].At
		ok := Wait(ctx, at-before) == nil
		before = at
		return ok
	}, func(r *Record) { t.process(ctx, r) })
	return records
}

// each calls do for every record, for maxInFlight of them at a time, unless start
// returns false.
func each(records []Record, start func(i int) bool, do func(*Record)) {
	var all errgroup.Group
	all.SetLimit(maxInFlight)
	for i := range records {
		if start(i) {
			all.Go(func() error { do(&records[i]); return nil })
		}
	}
	_ = all.Wait()
}

// process sends one charge: some of its requests at once, the others when it has
// ended. It stops where ctx ends.
func (t *Traffic) process(ctx context.Context, r *Record) {
	const path = "/v1/charges"
	r.Answers = t.PostAll(ctx, r.Charge.Together, path, r.Charge.Key, r.Charge.Body)
	if len(r.Answers) == 0 || r.Answers[0].Status != http.StatusAccepted {
		return
	}
	r.ID = r.Answers[0].member("id")
	own := path + "/" + r.ID
	cancel := func(n int) {
		if r.Charge.Cancel {
			r.Cancel = append(r.Cancel, t.PostAll(ctx, n, own+"/cancel", r.Charge.Key+"-cancel", nil)...)
		}
	}
	t.tally.Accepted.Add(1)
	if r.Charge.Reuse {
		r.Reuse = t.PostAll(ctx, 1, path, r.Charge.Key, r.Charge.otherBody())
		t.tally.Reused.Add(int64(len(r.Reuse)))
	}
	if Wait(ctx, r.Charge.CancelAfter) == nil {
		cancel(2)
	}
	if t.await(ctx, own, &r.Final, func() bool { return r.Final.Ended() }) == nil {
		t.tally.Ended.Add(1)
	}
	cancel(1)
	t.refundAll(ctx, r)
	if r.Charge.Disputed != "" && r.Final.Captured() {
		_ = Sandbox(t.target.Sandbox).Dispute(ctx, t.intent(ctx, r.ID), r.Charge.Disputed)
	}
	r.Answers = append(r.Answers, t.PostAll(ctx, 3-r.Charge.Together, path, r.Charge.Key, r.Charge.Body)...)
	_ = t.read(ctx, own, &r.Final)
	r.Events = t.events(ctx, r.ID, r.Outcomes())
}

// refundAll requests the refunds of a charge that has ended and waits for their
// outcomes.
func (t *Traffic) refundAll(ctx context.Context, r *Record) {
	if !r.Final.Ended() {
		return
	}
	r.Refunds = make([]RefundRecord, len(r.Charge.Refunds))
	var all sync.WaitGroup
	for i, refund := range r.Charge.Refunds {
		r.Refunds[i].Refund = refund
		if r.Charge.Rivals {
			all.Go(func() { t.refund(ctx, r.ID, &r.Refunds[i]) })
		} else {
			t.refund(ctx, r.ID, &r.Refunds[i])
		}
	}
	all.Wait()
}

// intent is the payment intent of a charge.
func (t *Traffic) intent(ctx context.Context, charge string) string {
	for _, e := range t.events(ctx, charge, 0) {
		if e.Data.PaymentIntent != "" {
			return e.Data.PaymentIntent
		}
	}
	return ""
}

// refundOutside refunds in the provider's dashboard, and waits until the service shows it.
func (t *Traffic) refundOutside(ctx context.Context, charge string, r *RefundRecord) {
	if Sandbox(t.target.Sandbox).Refund(ctx, t.intent(ctx, charge), r.Refund.Amount) != nil {
		return
	}
	var now struct {
		Data []struct {
			ID     string `json:"id"`
			Amount int64  `json:"amount"`
			Status string `json:"status"`
		} `json:"data"`
	}
	if t.await(ctx, "/v1/charges/"+charge+"/refunds", &now, func() bool { return len(now.Data) > 0 }) == nil {
		r.ID, r.Amount, r.Status = now.Data[0].ID, now.Data[0].Amount, now.Data[0].Status
	}
}

// refund sends two requests at once and, when the refund has ended, the third.
func (t *Traffic) refund(ctx context.Context, charge string, r *RefundRecord) {
	if r.Refund.Outside {
		t.refundOutside(ctx, charge, r)
		return
	}
	path := "/v1/charges/" + charge + "/refunds"
	r.Answers = t.PostAll(ctx, 2, path, r.Refund.Key, r.Refund.Body)
	if len(r.Answers) > 0 && r.Answers[0].Status == http.StatusAccepted {
		r.ID = r.Answers[0].member("id")
		var now struct {
			Amount int64  `json:"amount"`
			Status string `json:"status"`
		}
		_ = t.await(ctx, path+"/"+r.ID, &now, func() bool { return now.Status == Succeeded || now.Status == Failed })
		r.Amount, r.Status = now.Amount, now.Status
	}
	r.Answers = append(r.Answers, t.PostAll(ctx, 1, path, r.Refund.Key, r.Refund.Body)...)
}

// events is a charge's stream when the merchant was notified of that many outcomes.
func (t *Traffic) events(ctx context.Context, id string, outcomes int) []Event {
	var stream struct {
		Data []Event `json:"data"`
	}
	_ = t.await(ctx, "/v1/charges/"+id+"/events", &stream, func() bool {
		return CountEvents(stream.Data, "merchant.notified") >= outcomes
	})
	return stream.Data
}

// Reread reads the streams and the charges once more, when all is quiet.
func (t *Traffic) Reread(ctx context.Context, records []Record) {
	each(records, func(i int) bool { return records[i].ID != "" }, func(r *Record) {
		r.Later = t.events(ctx, r.ID, 0)
		_ = t.read(ctx, "/v1/charges/"+r.ID, &r.Shown)
	})
}

// List pages through the list of charges, which shows everything committed. It repeats a list that failed
// for some seconds.
func (t *Traffic) List(ctx context.Context) (listed []Shown) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		whole, err := t.listOnce(ctx)
		if err == nil || Wait(ctx, readPause) != nil {
			return whole
		}
	}
}

func (t *Traffic) listOnce(ctx context.Context) (charges []Shown, err error) {
	for after := ""; ; {
		var page struct {
			Data []Shown `json:"data"`
			More bool    `json:"has_more"`
			Next string  `json:"next"`
		}
		if err := t.read(ctx, "/v1/charges?limit=50&starting_after="+after, &page); err != nil {
			return nil, err
		}
		charges = append(charges, page.Data...)
		if !page.More {
			return charges, nil
		}
		after = page.Next
	}
}

// Shown is a charge as the service shows it.
type Shown struct {
	ID        string
	CreatedAt time.Time
	Body      string // JSON
}

// UnmarshalJSON keeps the text.
func (s *Shown) UnmarshalJSON(body []byte) error {
	var head struct {
		ID        string    `json:"id"`
		CreatedAt time.Time `json:"created_at"`
	}
	err := json.Unmarshal(body, &head)
	*s = Shown{head.ID, head.CreatedAt, string(body)}
	return err
}
