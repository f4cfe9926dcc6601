package sandbox

import (
	"encoding/json"
	"strings"
)

// shaped adds null for those of the other members of Stripe's object that are not set.
func shaped(members map[string]any, others string) map[string]any {
	for name := range strings.FieldsSeq(others) {
		if _, set := members[name]; !set {
			members[name] = nil
		}
	}
	return members
}

// The members of Stripe's objects that are null here, in the version that apiVersion names.
const (
	nullOfIntent = `application application_fee_amount automatic_payment_methods cancellation_reason customer customer_account
		description excluded_payment_method_types last_payment_error latest_charge next_action on_behalf_of payment_method
		payment_method_configuration_details payment_method_options processing receipt_email review setup_future_usage shipping
		statement_descriptor statement_descriptor_suffix transfer_data transfer_group`
	nullOfCharge = `application application_fee application_fee_amount balance_transaction calculated_statement_descriptor customer
		description failure_balance_transaction failure_code failure_message on_behalf_of outcome receipt_email receipt_number
		receipt_url review shipping source_transfer statement_descriptor statement_descriptor_suffix transfer_data transfer_group`
	nullOfRefund = `balance_transaction customer customer_account payment_method reason receipt_number source_transfer_reversal
		transfer_reversal`
)

// noBilling are the billing details of a test card.
func noBilling() map[string]any {
	address := shaped(map[string]any{}, "city country line1 line2 postal_code state")
	return shaped(map[string]any{"address": address}, "email name phone tax_id")
}

// card is a test card as Stripe's objects show it.
func card() map[string]any {
	return shaped(map[string]any{
		"brand": "visa", "country": "US", "exp_month": 12, "exp_year": 2034, "funding": "credit", "last4": "4242", "network": "visa",
	}, "checks fingerprint installments mandate three_d_secure wallet")
}

// charge is the last attempt of an intent as Stripe's charge. The earlier ones are not kept.
func (i *intent) charge() map[string]any {
	status, captured := "failed", i.Status == statusSucceeded
	switch i.Status {
	case statusSucceeded:
		status = "succeeded"
	case statusProcessing:
		status = "pending"
	}
	members := map[string]any{
		"id": *i.LatestCharge, "object": "charge", "amount": i.Amount, "amount_captured": 0,
		"amount_refunded": i.AmountRefunded, "billing_details": noBilling(), "captured": captured, "created": i.Created,
		"currency": i.Currency, "description": i.Description, "disputed": false, "fraud_details": struct{}{},
		"livemode": false, "metadata": i.Metadata, "paid": status != "failed", "payment_intent": i.ID,
		"payment_method": i.PaymentMethod, "payment_method_details": map[string]any{"type": "card", "card": card()},
		"refunded": i.AmountRefunded == i.Amount, "status": status,
	}
	if captured {
		members["amount_captured"] = i.Amount
	}
	if e := i.LastPaymentError; e != nil {
		members["failure_code"], members["failure_message"] = e.Code, e.Message
	}
	return shaped(members, nullOfCharge)
}

// shownCharge is an intent that is shown as its charge.
type shownCharge struct{ intent }

// MarshalJSON writes Stripe's charge.
func (c *shownCharge) MarshalJSON() ([]byte, error) { return json.Marshal(c.charge()) }

// storedEvent is a row of events.
type storedEvent struct{ Body string }

// MarshalJSON writes Stripe's event as it was sent.
func (e *storedEvent) MarshalJSON() ([]byte, error) { return []byte(e.Body), nil }

const selectEvents = `
select body
from events
`

const pageOfEvents = `
where position < $1
  and ($3 = '' or type = $3)
order by position desc
limit $2`

func filterEvents(p *params) []any { return []any{p.text("type")} }
