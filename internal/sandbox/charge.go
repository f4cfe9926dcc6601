package sandbox

import (
	"encoding/json"
	"strings"
)

// shaped adds null for those of the other members of Stripe's object that are not set.
func shaped(of members, others string) members {
	for name := range strings.FieldsSeq(others) {
		if _, set := of[name]; !set {
			of[name] = nil
		}
	}
	return of
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
func noBilling() members {
	address := shaped(members{}, "city country line1 line2 postal_code state")
	return shaped(members{"address": address}, "email name phone tax_id")
}

// card is a test card as Stripe's objects show it.
func card() members {
	return shaped(members{
		"brand": "visa", "country": "US", "exp_month": 12, "exp_year": 2034, "funding": "credit", "last4": "4242", "network": "visa",
	}, "checks fingerprint installments mandate three_d_secure wallet")
}

// charge is the last attempt of an intent as Stripe's charge. The earlier ones are not kept.
func (i *intent) charge() members {
	status, captured := "failed", i.Status == statusSucceeded
	switch i.Status {
	case statusSucceeded:
		status = "succeeded"
	case statusProcessing:
		status = "pending"
	}
	shown := members{
		"id": *i.LatestCharge, "object": "charge", "amount": i.Amount, "amount_captured": 0,
		"amount_refunded": i.AmountRefunded, "billing_details": noBilling(), "captured": captured, "created": i.Created,
		"currency": i.Currency, "customer": i.Customer, "description": i.Description, "disputed": false, "fraud_details": struct{}{},
		"livemode": false, "metadata": i.Metadata, "paid": status != "failed", "payment_intent": i.ID,
		"payment_method": i.PaymentMethod, "payment_method_details": members{"type": "card", "card": card()},
		"refunded": i.AmountRefunded == i.Amount, "status": status,
	}
	if captured {
		shown["amount_captured"] = i.Amount
	}
	if e := i.LastPaymentError; e != nil {
		shown["failure_code"], shown["failure_message"] = e.Code, e.Message
	}
	return shaped(shown, nullOfCharge)
}

// shownCharge is an intent that is shown as its charge.
type shownCharge struct{ intent }

// MarshalJSON writes Stripe's charge.
func (c *shownCharge) MarshalJSON() ([]byte, error) { return json.Marshal(c.charge()) }

// charge finds a charge by its id.
func (b *books) charge(id string) (*shownCharge, bool) {
	i, found := b.intents.find(func(i *intent) bool { return i.LatestCharge != nil && *i.LatestCharge == id })
	if !found {
		return nil, false
	}
	return &shownCharge{*i}, true
}
