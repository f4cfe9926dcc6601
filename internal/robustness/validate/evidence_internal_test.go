package validate

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/robustness/traffic"
)

// flawless is the evidence of a run without a violation.
func flawless() *Evidence {
	e := &Evidence{
		Plan:     traffic.NewPlan(7, 80, "test"),
		Before:   traffic.Books{DuplicatesSuppressed: 3},
		Books:    traffic.Books{DuplicatesSuppressed: 20, Requests: 500},
		Repeated: traffic.Repeated{Events: 100, Sent: 200, Delivered: 200},
		Chaos:    Chaos{Killed: "killed", WorkerKills: 12, KillsInFlight: 12, APIKills: 1, Restarted: time.Second, Programs: 5},
	}
	left := e.Plan.Stock[traffic.ScarceSKU]
	for i, charge := range e.Plan.Charges {
		outcome := charge.Outcomes[0]
		if charge.IsScarce() && left == 0 {
			outcome = charge.Outcomes[1]
		} else if charge.IsScarce() {
			left--
		}
		r := e.add(charge, fmt.Sprintf("ch_%d", i), outcome)
		r.Shown = traffic.Shown{ID: r.ID, CreatedAt: time.Unix(int64(i), 0), Body: r.Final.Status}
		e.Records = append(e.Records, r)
		e.Listed = slices.Insert(e.Listed, 0, r.Shown)
	}
	return e
}

// add is a charge with this outcome, and its traces in the provider's records.
func (e *Evidence) add(charge traffic.Charge, id, outcome string) traffic.Record {
	r := traffic.Record{Charge: charge, ID: id, Answers: thrice(accepted("/v1/charges/"+id, id)), Final: traffic.State{ID: id, Status: traffic.Succeeded}}
	types := []string{"charge.requested", "payment.captured", "charge.succeeded", "merchant.notified"}
	if outcome == traffic.Succeeded {
		e.Books.Captures = append(e.Books.Captures, traffic.Money{Reference: id, Amount: charge.Amount, Currency: strings.ToLower(charge.Currency)})
		e.notify(id, "charge.succeeded", 2)
	} else {
		r.Final.Status, r.Final.Failure = traffic.Failed, &traffic.Failure{Code: outcome}
		types = []string{"charge.requested", "charge.failed", "merchant.notified"}
		e.notify(id, "charge.failed", 1)
	}
	if charge.Cancel {
		r.Cancel = thrice(refused(http.StatusConflict, "/problems/conflict"))
	}
	if charge.Reuse {
		r.Reuse = []traffic.Answer{refused(http.StatusUnprocessableEntity, "/problems/idempotency-key-reused")}
	}
	for _, planned := range charge.Refunds {
		refund := e.refund(planned, &r)
		r.Refunds = append(r.Refunds, refund)
		if refund.Ended() {
			types = append(types, "refund.requested", "refund."+refund.Status, "merchant.notified")
		}
	}
	for _, name := range map[string][]string{
		traffic.DisputeWon: {"dispute_opened", "dispute_withdrawn", "dispute_reinstated", "dispute_closed"}, traffic.DisputeLost: {"dispute_opened", "dispute_withdrawn", "dispute_closed"},
	}[charge.Disputed] {
		types = append(types, "charge."+name, "merchant.notified")
	}
	for i, name := range types {
		r.Events = append(r.Events, traffic.Event{Version: i + 1, Type: name + ".v1"})
	}
	r.Later = slices.Clone(r.Events)
	return r
}

// refund is a refund as it should end, and its traces in the provider's records.
func (e *Evidence) refund(planned traffic.Refund, r *traffic.Record) traffic.RefundRecord {
	outcome := planned.Outcomes[0]
	if planned.Amount > r.Charge.Amount-r.Final.AmountRefunded {
		outcome = planned.Outcomes[len(planned.Outcomes)-1] // the later of two rivals
	}
	if outcome != traffic.Succeeded && outcome != traffic.Failed {
		return traffic.RefundRecord{Refund: planned, Answers: thrice(refused(http.StatusUnprocessableEntity, outcome))}
	}
	id := "re_" + planned.Key
	if outcome == traffic.Succeeded {
		e.Books.Refunds = append(e.Books.Refunds, traffic.Money{Reference: id, Amount: planned.Amount})
		r.Final.AmountRefunded += planned.Amount
		r.Final.Status = traffic.PartiallyRefunded
		if r.Final.AmountRefunded == r.Charge.Amount {
			r.Final.Status = traffic.Refunded
		}
	}
	e.notify(id, "refund."+outcome, 1)
	return traffic.RefundRecord{
		Refund: planned, ID: id, Answers: thrice(accepted("/v1/charges/"+r.ID+"/refunds/"+id, id)), Amount: planned.Amount, Status: outcome,
	}
}

func (e *Evidence) notify(reference, kind string, deliveries int) {
	e.Books.Notifications = append(e.Books.Notifications, traffic.Notification{Reference: reference, Type: kind, Deliveries: deliveries, Effects: 1})
}

func (e *Evidence) forgetNotified(id string) {
	e.Books.Notifications = slices.DeleteFunc(e.Books.Notifications, func(n traffic.Notification) bool { return n.Reference == id })
}

func thrice(a traffic.Answer) []traffic.Answer { return []traffic.Answer{a, a, a} }

func accepted(location, id string) traffic.Answer {
	return traffic.Answer{Status: http.StatusAccepted, Location: location, Body: fmt.Sprintf(`{"id":%q,"status":"pending"}`, id)}
}

func refused(status int, problem string) traffic.Answer {
	return traffic.Answer{Status: status, Body: fmt.Sprintf(`{"type":%q}`, problem)}
}

// find is the first record that is as wanted.
func (e *Evidence) find(wanted func(traffic.Record) bool) *traffic.Record {
	return &e.Records[slices.IndexFunc(e.Records, wanted)]
}

func (e *Evidence) ended(outcome string) *traffic.Record {
	return e.find(func(r traffic.Record) bool { return r.Final.Outcome() == outcome })
}

func (e *Evidence) refundThat(outcome string) *traffic.RefundRecord {
	is := func(refund traffic.RefundRecord) bool { return refund.Outcome() == outcome }
	r := e.find(func(r traffic.Record) bool { return slices.ContainsFunc(r.Refunds, is) })
	return &r.Refunds[slices.IndexFunc(r.Refunds, is)]
}
