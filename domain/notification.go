package domain

import "slices"

// Notification is the subscriber that sends the merchant the webhook of each webhook event in Charge.Unnotified.
const Notification = "notification"

var notification = Step{
	Name:    Notification,
	Events:  []EventType{{Name: "merchant.notified.v1", Zero: MerchantNotified{}}},
	applies: func(e ChargeRequested) bool { return e.Notify },
	pending: Charge.NeedsWebhook,
}

// MerchantNotified says that the merchant's endpoint accepted the webhook about the event EventID,
// which is at Version of this stream.
type MerchantNotified struct {
	EventID string `json:"event_id" detail:"webhook_id"`
	Type    string `json:"type" detail:"type"`
	Version int    `json:"version" detail:"about_version"`
}

func (e MerchantNotified) allowedIn(c Charge) bool { return c.NeedsWebhook(e.Version) }
func (e MerchantNotified) apply(c *Charge) {
	c.Unnotified = slices.DeleteFunc(c.Unnotified, func(v int) bool { return v == e.Version })
	if e.Version == c.OutcomeVersion {
		c.setStep(Notification, StepDone)
	}
}
