package sandbox

import (
	"cmp"
	"net/http"
)

// createRefund refunds part of a capture, or all that is left of it.
func (s *Sandbox) createRefund(c *call, to *change) (any, error) {
	i, err := s.intentOf(c.params.Get("payment_intent"))
	if err != nil {
		return nil, err
	}
	return s.refund(to, c, i, c.params.number("amount"), c.params.metadata())
}

// intentOf is the intent that a parameter names.
func (s *Sandbox) intentOf(id string) (object, error) {
	if i := s.books.get("payment_intent", id); i != nil {
		return i, nil
	}
	return nil, noSuch(http.StatusBadRequest, "payment_intent", "payment_intent", id)
}

// refund refunds an amount of an intent, or all that is left where it is 0. A nil call means that no
// request to the provider's API asked for it.
func (s *Sandbox) refund(to *change, c *call, i object, amount int64, metadata map[string]string) (any, error) {
	ch := s.books.get("charge", i.text("latest_charge"))
	if refused := refundable(ch, amount); refused != nil {
		refused.executed = true
		return nil, refused
	}
	amount = cmp.Or(amount, ch.number("amount_captured")-ch.number("amount_refunded"))
	r := s.newObject("refund", "re_", object{
		"amount": amount, "charge": ch["id"], "currency": ch["currency"], "metadata": metadata, "payment_intent": i["id"], "status": statusSucceeded,
	})
	if c != nil && c.params.Has("reason") {
		r["reason"] = c.params.Get("reason")
	}
	if ch["payment_method"] == methodRefundFail {
		r["status"], r["failure_reason"] = statusFailed, "expired_or_canceled_card"
	} else {
		ch["amount_refunded"] = ch.number("amount_refunded") + amount
		ch["refunded"] = ch.number("amount_refunded") == ch.number("amount")
		to.put(ch)
		s.emit(to, c, "charge.refunded", ch)
	}
	to.put(r)
	return r, nil
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
