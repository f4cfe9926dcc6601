package sandbox

import (
	"encoding/json"
	"fmt"
	"net/http"
)

const (
	statusNeedsResponse = "needs_response"
	statusWon           = "won"
	statusLost          = "lost"

	disputeFee = 1500 // minor units of the charge's currency
)

// disputed is a dispute of a captured intent. Amount and fee are taken by its first movement, given
// back by the second, and so on.
type disputed struct {
	ID            string
	PaymentIntent string
	Charge        string
	Amount        int64
	Fee           int64
	Currency      string
	Status        string
	Movements     int
	Created       int64
}

// MarshalJSON writes Stripe's dispute.
func (d *disputed) MarshalJSON() ([]byte, error) {
	transactions := []any{}
	for n := range d.Movements {
		sign := int64(-1)
		if n%2 == 1 {
			sign = 1
		}
		transactions = append(transactions, members{
			"id": fmt.Sprintf("txn_%s_%d", d.ID, n+1), "object": "balance_transaction", "type": "adjustment",
			"source": d.ID, "currency": d.Currency, "amount": sign * d.Amount, "fee": -sign * d.Fee,
			"net": sign * (d.Amount + d.Fee), "created": d.Created,
		})
	}
	return json.Marshal(members{
		"id": d.ID, "object": "dispute", "amount": d.Amount, "balance_transactions": transactions, "charge": d.Charge,
		"created": d.Created, "currency": d.Currency, "evidence": members{}, "is_charge_refundable": true,
		"livemode": false, "metadata": members{}, "payment_intent": d.PaymentIntent, "reason": "fraudulent", "status": d.Status,
	})
}

// dispute opens a dispute of all that an intent captured, once, and with an outcome, won or
// lost, ends it; another outcome ends it otherwise. Repeating a call does nothing.
func (s *Sandbox) dispute(r *http.Request) (answer, error) {
	var body struct {
		PaymentIntent string `json:"payment_intent"`
		Outcome       string `json:"outcome"`
	}
	if err := readControl(r, &body); err != nil {
		return answer{}, err
	}
	if body.Outcome != "" && body.Outcome != statusWon && body.Outcome != statusLost {
		return answer{}, refused(http.StatusBadRequest, "outcome is %q: give won, lost or none", body.Outcome)
	}
	return s.outside(body.PaymentIntent, func(to *change, i *intent) answer {
		known, found := s.books.disputes.find(func(d *disputed) bool { return d.PaymentIntent == i.ID })
		d := disputed{
			ID: newID("du_"), PaymentIntent: i.ID, Charge: *i.LatestCharge, Amount: i.Amount, Fee: disputeFee,
			Currency: i.Currency, Status: statusNeedsResponse, Movements: 1, Created: s.options.Now().Unix(),
		}
		if found {
			d = *known
		} else {
			s.emit(to, nil, "charge.dispute.created", &d)
			s.emit(to, nil, "charge.dispute.funds_withdrawn", &d)
		}
		if body.Outcome != "" && d.Status != body.Outcome {
			kind := d.end(body.Outcome)
			s.emit(to, nil, "charge.dispute.closed", &d)
			if kind != "" {
				s.emit(to, nil, kind, &d)
			}
		}
		to.Disputes = append(to.Disputes, (*disputeFields)(&d))
		return object(http.StatusOK, &d)
	})
}

// end ends a dispute, also one that has ended otherwise, and returns the event of the money that moves
// with it, "" if none does.
func (d *disputed) end(outcome string) (event string) {
	taken := d.Movements%2 == 1
	switch d.Status = outcome; {
	case outcome == statusWon && taken:
		event = "charge.dispute.funds_reinstated"
	case outcome == statusLost && !taken:
		event = "charge.dispute.funds_withdrawn"
	default:
		return ""
	}
	d.Movements++
	return event
}

// refundOutside refunds as the provider's dashboard does: without metadata of payonce.
// Repeating a call with the same amount does nothing.
func (s *Sandbox) refundOutside(r *http.Request) (answer, error) {
	var body struct {
		PaymentIntent string `json:"payment_intent"`
		Amount        int64  `json:"amount"`
	}
	if err := readControl(r, &body); err != nil {
		return answer{}, err
	}
	if body.Amount < 1 {
		return answer{}, refused(http.StatusBadRequest, "amount is %d: give minor units of 1 or more", body.Amount)
	}
	return s.outside(body.PaymentIntent, func(to *change, i *intent) answer {
		known, found := s.books.refunds.find(func(r *refund) bool {
			return r.PaymentIntent == i.ID && r.Amount == body.Amount && r.reference() == r.ID
		})
		if found {
			return object(http.StatusOK, known)
		}
		return s.refundIntent(to, nil, i, &refund{Amount: body.Amount, Metadata: map[string]string{}})
	})
}

// outside does what no request to the provider's API asked for.
func (s *Sandbox) outside(id string, do func(*change, *intent) answer) (answer, error) {
	return s.decide(func(to *change) (answer, error) {
		i, err := s.books.intentAt(id, noSuch(http.StatusBadRequest, "payment_intent", "payment_intent", id))
		if err != nil {
			return answer{}, err
		}
		if i.Status != statusSucceeded {
			return answer{}, refused(http.StatusConflict, "payment intent %s is %s: only one that succeeded has money to move", i.ID, i.Status)
		}
		return do(to, i), nil
	})
}

func filterDisputes(p *params) func(*disputed) bool {
	matches := p.matches()
	return func(d *disputed) bool { return matches(d.Charge, d.PaymentIntent) }
}
