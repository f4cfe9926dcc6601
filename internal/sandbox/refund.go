package sandbox

import (
	"cmp"
	"encoding/json"
	"net/http"
)

// refund is a refund of a captured intent.
type refund struct {
	ID            string
	Amount        int64
	Charge        string
	Created       int64
	Currency      string
	FailureReason *string
	Metadata      map[string]string
	PaymentIntent string
	Reason        *string
	Status        string
}

// MarshalJSON writes Stripe's refund.
func (r *refund) MarshalJSON() ([]byte, error) {
	shown := members{
		"id": r.ID, "object": "refund", "amount": r.Amount, "charge": r.Charge, "created": r.Created, "currency": r.Currency,
		"destination_details": members{"type": "card", "card": members{"type": "refund"}},
		"metadata":            r.Metadata, "payment_intent": r.PaymentIntent, "reason": r.Reason, "status": r.Status,
	}
	if r.FailureReason != nil {
		shown["failure_reason"] = r.FailureReason
	}
	return json.Marshal(shaped(shown, nullOfRefund))
}

// createRefund refunds part of a capture, or all that is left of it.
func (s *Sandbox) createRefund(c *call, to *change) (answer, error) {
	p := c.params
	target, charge := p.text("payment_intent"), p.text("charge")
	amount := p.amount("amount")
	reason := p.word("reason", "", "duplicate", "fraudulent", "requested_by_customer")
	metadata := p.metadata()
	switch {
	case target == "" && charge == "":
		p.refuse(missing("payment_intent"))
	case target != "" && charge != "":
		p.refuse(invalid("", "charge", "Give either payment_intent or charge."))
	}
	if err := p.done(); err != nil {
		return answer{}, err
	}
	i, err := s.books.refunded(target, charge)
	if err != nil {
		return answer{}, err
	}
	r := &refund{Amount: amount, Metadata: metadata}
	if reason != "" {
		r.Reason = &reason
	}
	return s.refundIntent(to, c, i, r), nil
}

// refundIntent refunds r.Amount of an intent, or all that is left where it is 0.
func (s *Sandbox) refundIntent(to *change, c *call, i *intent, r *refund) answer {
	left := i.Amount - i.AmountRefunded
	if refusal := refundable(i, r.Amount, left); refusal != nil {
		return refusal.answer()
	}
	r.ID, r.PaymentIntent, r.Charge, r.Currency = newID("re_"), i.ID, *i.LatestCharge, i.Currency
	r.Amount, r.Status, r.Created = cmp.Or(r.Amount, left), statusSucceeded, s.options.Now().Unix()
	if *i.PaymentMethod == methodRefundFail {
		reason := "expired_or_canceled_card"
		r.Status, r.FailureReason = "failed", &reason
	}
	to.Refunds = append(to.Refunds, (*refundFields)(r))
	if r.Status == statusSucceeded {
		i.AmountRefunded += r.Amount
		to.put(i)
		s.emit(to, c, "charge.refunded", i.charge())
	}
	return object(http.StatusOK, r)
}

// refundable says why amount (0 for all that is left) cannot be refunded.
func refundable(i *intent, amount, left int64) *apiError {
	switch {
	case i.Status != statusSucceeded:
		return invalid("", "payment_intent", "This PaymentIntent (%s) does not have a successful charge to refund.", i.ID)
	case left == 0:
		return invalid("charge_already_refunded", "", "Charge %s has already been refunded.", *i.LatestCharge)
	case amount > left:
		return invalid("", "amount", "Refund amount (%d) is greater than unrefunded amount on charge (%d).", amount, left)
	}
	return indivisible(amount, i.Currency)
}

// refunded is the intent that a refund names, itself or by its charge.
func (b *books) refunded(target, charge string) (*intent, error) {
	if target != "" {
		return b.intentAt(target, noSuch(http.StatusBadRequest, "payment_intent", "payment_intent", target))
	}
	of, found := b.charge(charge)
	if !found {
		return nil, noSuch(http.StatusBadRequest, "charge", "charge", charge)
	}
	return &of.intent, nil
}

// reference is the name of a refund in GET /books.
func (r *refund) reference() string {
	if id, named := r.Metadata["refund_id"]; named {
		return id
	}
	return r.ID
}

func filterRefunds(p *params) func(*refund) bool {
	matches := p.matches()
	return func(r *refund) bool { return matches(r.Charge, r.PaymentIntent) }
}

// matches reads the filters by charge and by payment intent.
func (p *params) matches() func(charge, target string) bool {
	ofCharge, ofIntent := p.text("charge"), p.text("payment_intent")
	return func(charge, target string) bool {
		return (ofCharge == "" || ofCharge == charge) && (ofIntent == "" || ofIntent == target)
	}
}
