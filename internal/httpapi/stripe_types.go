package httpapi

import (
	"slices"
	"strings"
)

// otherEvents is the label of an event whose type is not one of EventTypes.
const otherEvents = "other"

var eventLabels = strings.Fields(`
account.application.authorized account.application.deauthorized account.updated balance.available
charge.captured charge.expired charge.failed charge.pending charge.refund.updated charge.refunded charge.succeeded charge.updated
charge.dispute.closed charge.dispute.created charge.dispute.funds_reinstated charge.dispute.funds_withdrawn charge.dispute.updated
checkout.session.async_payment_failed checkout.session.async_payment_succeeded checkout.session.completed checkout.session.expired
customer.created customer.deleted customer.updated customer.subscription.created customer.subscription.deleted
customer.subscription.updated invoice.created invoice.finalized invoice.paid invoice.payment_failed invoice.payment_succeeded
mandate.updated payment_intent.amount_capturable_updated payment_intent.canceled payment_intent.created
payment_intent.partially_funded payment_intent.payment_failed payment_intent.processing payment_intent.requires_action
payment_intent.succeeded payment_link.created payment_link.updated payment_method.attached payment_method.automatically_updated
payment_method.detached payment_method.updated payout.canceled payout.created payout.failed payout.paid payout.reconciliation_completed
payout.updated price.created price.updated product.created product.updated radar.early_fraud_warning.created
radar.early_fraud_warning.updated refund.created refund.failed refund.updated review.closed review.opened setup_intent.canceled
setup_intent.created setup_intent.requires_action setup_intent.setup_failed setup_intent.succeeded transfer.created transfer.reversed
transfer.updated ` + otherEvents)

// EventTypes are the labels under which events of the provider are counted: types of
// Stripe's that an account which takes payments sends, and "other".
func EventTypes() []string { return eventLabels }

// labelOf bounds the labels, whatever an event calls itself.
func labelOf(eventType string) string {
	if slices.Contains(eventLabels, eventType) {
		return eventType
	}
	return otherEvents
}
