package sandbox

import (
	"fmt"
	"slices"
)

// outside is the body of the control calls by which money moves that no request to the provider's API asked for.
type outside struct {
	PaymentIntent string `json:"payment_intent"`
	Amount        int64  `json:"amount"`  // of a refund
	Outcome       string `json:"outcome"` // of a dispute
}

// outside serves such a call about an intent that captured.
func (s *Sandbox) outside(do func(to *change, i object, body outside) (any, error)) endpoint {
	return func(c *call, to *change) (any, error) {
		var body outside
		if err := c.json(&body); err != nil {
			return nil, err
		}
		i, err := s.intentOf(body.PaymentIntent)
		if err == nil && i["status"] != statusSucceeded {
			err = unexpected(i, "move the money of")
		}
		if err != nil {
			return nil, err
		}
		return do(to, i, body)
	}
}

// refundOutside refunds as the provider's dashboard does, without metadata of payonce. Repeating a call with
// the same amount does nothing.
func (s *Sandbox) refundOutside(to *change, i object, body outside) (any, error) {
	if body.Amount < 1 {
		return nil, invalid("", "amount", "The amount is %d: give minor units of 1 or more.", body.Amount)
	}
	if known := s.books.find("refund", func(r object) bool {
		return r["payment_intent"] == i["id"] && r.number("amount") == body.Amount && reference(r) == r["id"]
	}); known != nil {
		return known, nil
	}
	return s.refund(to, nil, i, body.Amount, map[string]string{})
}

const (
	disputeWon  = "won"
	disputeLost = "lost"
	disputeFee  = 1500 // minor units of the charge's currency
)

// dispute opens a dispute of all that an intent captured, once, and with an outcome, won or lost, ends it;
// another outcome ends it otherwise. Repeating a call does nothing.
func (s *Sandbox) dispute(to *change, i object, body outside) (any, error) {
	if !slices.Contains([]string{"", disputeWon, disputeLost}, body.Outcome) {
		return nil, invalid("", "outcome", "The outcome is %q: give won, lost or none.", body.Outcome)
	}
	d := s.books.find("dispute", func(d object) bool { return d["payment_intent"] == i["id"] })
	if d == nil {
		d = s.newObject("dispute", "du_", object{
			"amount": i["amount"], "charge": i["latest_charge"], "currency": i["currency"], "payment_intent": i["id"], "status": "needs_response",
		})
		move(d, -1)
		s.emit(to, nil, "charge.dispute.created", d)
		s.emit(to, nil, "charge.dispute.funds_withdrawn", d)
	}
	if body.Outcome != "" && d["status"] != body.Outcome {
		s.endDispute(to, d, body.Outcome)
	}
	to.put(d)
	return d, nil
}

// endDispute ends a dispute, also one that has ended otherwise. The money moves if the loser has it.
func (s *Sandbox) endDispute(to *change, d object, outcome string) {
	kind := ""
	switch taken := len(movements(d))%2 == 1; {
	case outcome == disputeWon && taken:
		move(d, 1)
		kind = "charge.dispute.funds_reinstated"
	case outcome == disputeLost && !taken:
		move(d, -1)
		kind = "charge.dispute.funds_withdrawn"
	}
	d["status"] = outcome
	s.emit(to, nil, "charge.dispute.closed", d)
	if kind != "" {
		s.emit(to, nil, kind, d)
	}
}

// movements are the balance transactions of a dispute: the first one took amount and fee, the second gave
// them back, and so on.
func movements(d object) []any {
	all, _ := d["balance_transactions"].([]any)
	return all
}

// move moves the money: -1 takes it, 1 gives it back.
func move(d object, sign int64) {
	amount, all := d.number("amount"), movements(d)
	d["balance_transactions"] = append(slices.Clip(all), object{
		"id": fmt.Sprintf("txn_%s_%d", d["id"], len(all)+1), "object": "balance_transaction", "type": "adjustment", "source": d["id"],
		"currency": d["currency"], "amount": sign * amount, "fee": -sign * disputeFee, "net": sign * (amount + disputeFee), "created": d["created"],
	})
}
