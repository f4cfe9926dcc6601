package main

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

// TestRoute: a request goes to the receiver of charges, a webhook event to each subscriber, and
// every other event to none.
func TestRoute(t *testing.T) {
	t.Parallel()
	for _, kind := range domain.EventTypes() {
		m := message.NewMessage("id", nil)
		m.Metadata.Set(outbox.MetadataType, kind.Name)
		m.Metadata.Set(outbox.MetadataOrderingKey, "ch_1")
		for _, r := range (&fulfillment.Fulfillment{}).Receivers() {
			e, err := routing(slog.New(slog.DiscardHandler), r)(m)
			takes := err == nil
			want := kind.Request && r.Topic == domain.Topic || kind.Webhook != "" && slices.Contains(domain.Subscribers(), r.Topic)
			if takes != want || e.Type != kind.Name || e.OrderingKey != "ch_1" {
				t.Errorf("%s takes %s: %t, as %q in the order of %q", r.Name, kind.Name, takes, e.Type, e.OrderingKey)
			}
		}
	}
}

// A type that this program does not know is logged: it is a newer program's, or foreign.
func TestRoute_logsAMessageThatItsReceiverDoesNotTake(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	route := routing(slog.New(slog.NewTextHandler(&lines, nil)), (&fulfillment.Fulfillment{}).Receivers()[0])
	for id, name := range map[string]string{"known": "charge.requested.v1", "newer": "charge.reviewed.v1", "nameless": ""} {
		m := message.NewMessage(id, nil)
		m.Metadata.Set(outbox.MetadataType, name)
		m.Metadata.Set(outbox.MetadataOrderingKey, "ch_1")
		if _, err := route(m); (err != nil) != (id != "known") {
			t.Errorf("%s: %v", id, err)
		}
	}
	logged := lines.String()
	if n := strings.Count(logged, "message skipped"); n != 2 {
		t.Errorf("%d lines, want 2:\n%s", n, logged)
	}
	for _, said := range []string{"message_id=newer receiver=fulfillment type=charge.reviewed.v1 ordering_key=ch_1", `message_id=nameless receiver=fulfillment type="" ordering_key=ch_1`} {
		if !strings.Contains(logged, said) {
			t.Errorf("nothing is said of %s:\n%s", said, logged)
		}
	}
}

func TestProcessors_onlyNotificationsWaitBehindADeadLetter(t *testing.T) {
	t.Parallel()
	want := map[string]inbox.DeadLetters{
		fulfillment.ChargeReceiver: inbox.Pass, fulfillment.NotificationReceiver: inbox.Block,
		fulfillment.ResendReceiver: inbox.Pass,
	}
	got := map[string]inbox.DeadLetters{}
	for _, r := range processors(nil, nil, fulfillment.Services{}, doorbell.New(nil), nil, nil, settings{}) {
		got[r.Name] = r.processor.Policy.DeadLetters
	}
	testrun.Same(t, "policies", want, got)
}

// Each topic has one receiver, whose free slots bound its pages.
func TestTopics(t *testing.T) {
	t.Parallel()
	topics := map[string]string{}
	for _, r := range (&fulfillment.Fulfillment{}).Receivers() {
		topics[r.Name] = r.Topic
	}
	want := map[string]string{
		fulfillment.ChargeReceiver: domain.Topic, fulfillment.NotificationReceiver: domain.Notification, fulfillment.ResendReceiver: "",
	}
	testrun.Same(t, "topics", want, topics)
}
