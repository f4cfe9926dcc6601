package sandbox

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
)

// createRefund refunds part of a capture, or all that is left of it.
func (s *Sandbox) createRefund(c *call) any {
	id := c.params.Get("payment_intent")
	if i := s.books.get("payment_intent", id); i != nil {
		return s.refund(c, i, c.params.number("amount"), c.params.metadata())
	}
	return noSuch(http.StatusBadRequest, "payment_intent", "payment_intent", id)
}

// refund refunds an amount of an intent, or all that is left where it is 0.
func (s *Sandbox) refund(c *call, i object, amount int64, named map[string]string) any {
	ch := s.books.get("charge", i.text("latest_charge"))
	if refused := refundable(ch, amount); refused != nil {
		return refused.keep()
	}
	amount = cmp.Or(amount, ch.number("amount_captured")-ch.number("amount_refunded"))
	r := s.newObject("refund", "re_", object{
		"amount": amount, "charge": ch["id"], "currency": ch["currency"], "metadata": named,
		"payment_intent": i["id"], "status": statusSucceeded, "reason": c.params.Get("reason"),
	})
	if ch["payment_method"] == "pm_card_refundFail" {
		r["status"], r["failure_reason"] = statusFailed, "expired_or_canceled_card"
	} else {
		ch["amount_refunded"] = ch.number("amount_refunded") + amount
		ch["refunded"] = ch.number("amount_refunded") == ch.number("amount")
		c.put(ch)
		s.emit(c, "charge.refunded", ch)
	}
	c.put(r)
	return r
}

// refundable says why amount (0 for all that is left) of a charge cannot be refunded.
func refundable(ch object, amount int64) *refusal {
	left := ch.number("amount_captured") - ch.number("amount_refunded")
	switch {
	case ch["captured"] != true:
		return invalid("", "payment_intent", "This PaymentIntent does not have a successful charge to refund.")
	case left == 0:
		return invalid("charge_already_refunded", "", "Charge %s has already been refunded.", ch["id"])
	case amount > left:
		return invalid("", "amount", "Refund amount (%d) is greater than unrefunded amount on charge (%d).", amount, left)
	}
	return divisible(amount, ch.text("currency"))
}

// outside is the body of the control calls by which money moves that no request to the provider's API asked for.
type outside struct {
	PaymentIntent string `json:"payment_intent"`
	Amount        int64  `json:"amount"`  // of a refund
	Outcome       string `json:"outcome"` // of a dispute
}

// outside serves such a call about an intent that captured.
func (s *Sandbox) outside(do func(c *call, i object, body outside) any) endpoint {
	return func(c *call) any {
		var body outside
		if e := c.json(&body); e != nil {
			return e
		}
		i := s.books.get("payment_intent", body.PaymentIntent)
		switch {
		case i == nil:
			return noSuch(http.StatusBadRequest, "payment_intent", "payment_intent", body.PaymentIntent)
		case i["status"] != statusSucceeded:
			return unexpected(i, "move the money of")
		}
		return do(c, i, body)
	}
}

// refundOutside refunds as the provider's dashboard does, without metadata of payonce.
func (s *Sandbox) refundOutside(c *call, i object, body outside) any {
	if body.Amount < 1 {
		return invalid("", "amount", "The amount is %d: give minor units of 1 or more.", body.Amount)
	}
	return s.refund(c, i, body.Amount, map[string]string{})
}

const (
	disputeWon  = "won"
	disputeLost = "lost"
	disputeFee  = 1500 // minor units of the charge's currency
)

// dispute opens a dispute of all that an intent captured, once, and with an outcome, won or lost, ends it, also one
// that has ended otherwise. The money moves if the loser has it. Repeating a call does nothing.
func (s *Sandbox) dispute(c *call, i object, body outside) any {
	if !slices.Contains([]string{"", disputeWon, disputeLost}, body.Outcome) {
		return invalid("", "outcome", "The outcome is %q: give won, lost or none.", body.Outcome)
	}
	id := "du_" + i.text("id")
	d := s.books.get("dispute", id)
	if d == nil {
		d = s.newObject("dispute", "", object{
			"id": id, "amount": i["amount"], "charge": i["latest_charge"], "currency": i["currency"],
			"payment_intent": i["id"], "status": "needs_response",
		})
		s.emit(c, "charge.dispute.created", d)
		s.move(c, d, false)
	}
	if body.Outcome != "" && d["status"] != body.Outcome {
		d["status"] = body.Outcome
		s.emit(c, "charge.dispute.closed", d)
		s.move(c, d, body.Outcome == disputeWon)
	}
	c.put(d)
	return d
}

// move returns the amount and the fee of a dispute, or takes them, unless it has: the first balance transaction
// takes, the second returns them, and so on.
func (s *Sandbox) move(c *call, d object, back bool) {
	all, _ := d["balance_transactions"].([]any)
	sign, event := int64(-1), "charge.dispute.funds_withdrawn"
	if back {
		sign, event = 1, "charge.dispute.funds_reinstated"
	}
	if taken := len(all)%2 == 1; taken != back {
		return
	}
	amount := sign * d.number("amount")
	d["balance_transactions"] = append(slices.Clip(all), object{
		"id": fmt.Sprintf("txn_%s_%d", d["id"], len(all)+1), "object": "balance_transaction", "type": "adjustment",
		"source": d["id"], "currency": d["currency"], "amount": amount, "fee": -sign * disputeFee,
		"net": amount + sign*disputeFee, "created": d["created"],
	})
	s.emit(c, event, d)
}
