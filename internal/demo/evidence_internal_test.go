package demo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// flawless is the evidence of a run in which all went well.
func flawless() evidence {
	plan := newPlan(7, 80, "test")
	seen := evidence{
		plan:     plan,
		programs: 5,
		before:   books{DuplicatesSuppressed: 3},
		tally:    &tally{},
		strikes:  strikes{blow: "killed", workerKills: 12, killsUnderWay: 12, apiKills: 1, restarted: time.Second},
	}
	seen.books = books{DuplicatesSuppressed: 20, Requests: 500}
	seen.repeated = repeated{Events: 100, Deliveries: 200, Sent: 200, Delivered: 200}
	left := plan.Stock[poster]
	for i, charge := range plan.Charges {
		end := charge.Ends[0]
		if charge.isScarce() {
			if left == 0 {
				end = charge.Ends[1]
			} else {
				left--
			}
		}
		r := seen.books.perform(charge, fmt.Sprintf("ch_%d", i), end)
		r.shown = json.RawMessage(fmt.Sprintf(`{"id":%q,"created_at":%q}`, r.id, time.Unix(int64(i), 0).Format(time.RFC3339)))
		seen.records = append(seen.records, r)
		seen.listed = slices.Insert(seen.listed, 0, r.shown)
	}
	return seen
}

// perform is a charge that went well, and its traces in the books.
func (b *books) perform(charge Charge, id, end string) record {
	first := accepted("/v1/charges/"+id, id)
	r := record{charge: charge, id: id, answers: []answer{first, first, first}, final: state{ID: id, Status: succeeded}}
	types := []string{"charge.requested.v1"}
	if end == succeeded {
		types = append(types, "payment.captured.v1", "charge.succeeded.v1", "merchant.notified.v1")
		b.Captures = append(b.Captures, capture{Reference: id, Amount: charge.Amount, Currency: strings.ToLower(charge.Currency)})
		b.Notifications = append(b.Notifications, notification{Reference: id, Type: "charge.succeeded", Deliveries: 2, Effects: 1})
	} else {
		r.final.Status = failed
		r.final.Failure = &failure{Code: end}
		types = append(types, "charge.failed.v1", "merchant.notified.v1")
		b.Notifications = append(b.Notifications, notification{Reference: id, Type: "charge.failed", Deliveries: 1, Effects: 1})
	}
	if charge.Cancel {
		late := answer{Status: http.StatusConflict, Body: `{"type":"/problems/conflict"}`}
		r.cancel = []answer{late, late, late}
	}
	for _, refund := range charge.Refunds {
		done := b.giveBack(refund, &r)
		r.refunds = append(r.refunds, done)
		if done.ended() {
			types = append(types, "refund.requested.v1", "refund."+done.status+".v1", "merchant.notified.v1")
		}
	}
	if charge.Reuse {
		r.reuse = []answer{{Status: http.StatusUnprocessableEntity, Body: `{"type":"/problems/idempotency-key-reused"}`}}
	}
	for i, name := range types {
		r.events = append(r.events, event{Version: i + 1, Type: name})
	}
	r.later = slices.Clone(r.events)
	return r
}

// forget takes a charge's traces out of the books.
func (b *books) forget(id string) {
	b.Captures = slices.DeleteFunc(b.Captures, func(c capture) bool { return c.Reference == id })
	b.forgetTold(id)
}

func (b *books) forgetTold(id string) {
	b.Notifications = slices.DeleteFunc(b.Notifications, func(n notification) bool { return n.Reference == id })
}

// giveBack is a refund of a charge that went well, and its traces in the books.
func (b *books) giveBack(planned Refund, r *record) refundRecord {
	end := planned.Ends[0]
	if planned.Amount > r.charge.Amount-r.final.AmountRefunded {
		end = planned.Ends[len(planned.Ends)-1] // the slower of two rivals
	}
	if end != succeeded && end != failed {
		refusal := answer{Status: http.StatusUnprocessableEntity, Body: fmt.Sprintf(`{"type":%q}`, end)}
		return refundRecord{refund: planned, answers: []answer{refusal, refusal, refusal}}
	}
	id := "re_" + planned.Key
	first := accepted("/v1/charges/"+r.id+"/refunds/"+id, id)
	if end == succeeded {
		b.Refunds = append(b.Refunds, refund{Reference: id, Amount: planned.Amount})
		r.final.AmountRefunded += planned.Amount
		r.final.Status = partiallyRefunded
		if r.final.AmountRefunded == r.charge.Amount {
			r.final.Status = refunded
		}
	}
	b.Notifications = append(b.Notifications, notification{Reference: id, Type: "refund." + end, Deliveries: 1, Effects: 1})
	return refundRecord{refund: planned, id: id, answers: []answer{first, first, first}, amount: planned.Amount, status: end}
}

func ending(e *evidence, end string) *record {
	return find(e, func(r record) bool { return r.final.end() == end })
}

// refundThat is the first refund that ended so.
func refundThat(e *evidence, end string) *refundRecord {
	r := find(e, func(r record) bool {
		return slices.ContainsFunc(r.refunds, func(refund refundRecord) bool { return refund.end() == end })
	})
	i := slices.IndexFunc(r.refunds, func(refund refundRecord) bool { return refund.end() == end })
	return &r.refunds[i]
}

func toBeCanceled(e *evidence) *record {
	return find(e, func(r record) bool { return r.charge.Cancel })
}

func reused(e *evidence) *record {
	return find(e, func(r record) bool { return len(r.reuse) > 0 })
}

func find(e *evidence, wanted func(record) bool) *record {
	for i := range e.records {
		if wanted(e.records[i]) {
			return &e.records[i]
		}
	}
	panic("the plan has no such charge")
}
