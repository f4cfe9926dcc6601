package domain

import (
	"fmt"
	"slices"
)

// Notification is the subscriber that sends the merchant the webhook of each webhook event.
const Notification = "notification"

var notification = Step{
	Name:    Notification,
	Events:  []EventType{event[MerchantNotified]()},
	applies: func(e ChargeRequested) bool { return e.Notify },
	pending: Charge.NeedsWebhook,
}

// notifies reports whether the merchant wants webhooks about the charge.
func (c Charge) notifies() bool {
	return slices.Contains([]StepStatus{StepPending, StepDone}, c.StepStatus(Notification))
}

// MerchantNotified says that the merchant's endpoint accepted the webhook about the event EventID,
// which is at Version of this stream. Old streams have no version: there it is the
// outcome of the charge.
type MerchantNotified struct {
	EventID string `json:"event_id" detail:"webhook_id"`
	Type    string `json:"type" detail:"type"`
	Version int    `json:"version,omitempty" detail:"about_version"`
}

func (MerchantNotified) stored() string            { return "merchant.notified.v1" }
func (e MerchantNotified) allowedIn(c Charge) bool { return c.NeedsWebhook(e.about(c)) }
func (e MerchantNotified) apply(c *Charge) {
	version := e.about(*c)
	c.Unnotified = slices.DeleteFunc(c.Unnotified, func(v int) bool { return v == version })
	if version == c.OutcomeVersion {
		c.setStep(Notification, StepDone)
	}
}

// about is the version of the event that the webhook was about.
func (e MerchantNotified) about(c Charge) int {
	if e.Version == 0 {
		return c.OutcomeVersion
	}
	return e.Version
}

// NotifyMerchant records that the merchant accepted the webhook about the event at
// Version, 0 for the charge's outcome.
type NotifyMerchant MerchantNotified

func (n NotifyMerchant) decide(c Charge) ([]Event, error) {
	event := MerchantNotified(n)
	switch version := event.about(c); {
	case c.NeedsWebhook(version):
		return []Event{event}, nil
	case version < 1 || version > c.Version:
		return nil, fmt.Errorf("notify before the outcome: %w", ErrOutOfOrder)
	}
	return nil, nil // it was notified, or has no webhook
}
