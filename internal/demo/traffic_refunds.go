package demo

import (
	"context"
	"net/http"
	"sync"
)

// refundRecord is what became of one refund, as far as it was seen.
type refundRecord struct {
	refund  Refund
	id      string
	answers []answer // to the three requests, and only definitive ones
	amount  int64    // as the service has it
	status  string
}

// ended says whether the merchant is to be told of it.
func (r refundRecord) ended() bool { return r.status == succeeded || r.status == failed }

// end is the ending: the status, or the type of the problem that refused it.
func (r refundRecord) end() string {
	if r.id == "" && len(r.answers) > 0 {
		return r.answers[0].problem()
	}
	return r.status
}

// refundAll asks for the refunds of a charge that has ended and waits for their
// ends.
func (t *traffic) refundAll(ctx context.Context, r *record) {
	if !r.final.ended() {
		return
	}
	r.refunds = make([]refundRecord, len(r.charge.Refunds))
	var all sync.WaitGroup
	for i, refund := range r.charge.Refunds {
		r.refunds[i].refund = refund
		if r.charge.Rivals {
			all.Go(func() { t.refund(ctx, r.id, &r.refunds[i]) })
		} else {
			t.refund(ctx, r.id, &r.refunds[i])
		}
	}
	all.Wait()
}

// refund asks twice at once and, when the refund has ended, once more.
func (t *traffic) refund(ctx context.Context, charge string, r *refundRecord) {
	path := "/v1/charges/" + charge + "/refunds"
	r.answers = t.send(ctx, 2, path, r.refund.Key, r.refund.Body)
	if len(r.answers) > 0 && r.answers[0].Status == http.StatusAccepted {
		r.id = resource(r.answers[0])
		var now struct {
			Amount int64  `json:"amount"`
			Status string `json:"status"`
		}
		t.await(ctx, path+"/"+r.id, &now, func() bool { return now.Status == succeeded || now.Status == failed })
		r.amount, r.status = now.Amount, now.Status
	}
	r.answers = append(r.answers, t.send(ctx, 1, path, r.refund.Key, r.refund.Body)...)
}
