package main

import (
	"bytes"
	"log/slog"
	"path/filepath"
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

// takers are the receivers of the message about each event; "" where no step follows the
// event.
func takers() map[string]string {
	const outcome = fulfillment.NotificationReceiver
	return map[string]string{
		"charge.requested.v1":        fulfillment.ChargeReceiver,
		"charge.cancel_requested.v1": fulfillment.ChargeReceiver,
		"refund.requested.v1":        fulfillment.ChargeReceiver,

		"charge.succeeded.v1": outcome,
		"charge.failed.v1":    outcome,
		"refund.succeeded.v1": outcome,
		"refund.failed.v1":    outcome,
		"refund.reversed.v1":  outcome,
		"refund.observed.v1":  outcome,

		"charge.disputed.v1":           outcome,
		"charge.dispute_withdrawn.v1":  outcome,
		"charge.dispute_reinstated.v1": outcome,
		"charge.dispute_closed.v1":     outcome,

		"payment.action_required.v1": outcome,

		"inventory.reserved.v1":     "",
		"inventory.rejected.v1":     "",
		"inventory.released.v1":     "",
		"payment.started.v1":        "",
		"payment.attempt_failed.v1": "",
		"payment.captured.v1":       "",
		"payment.declined.v1":       "",
		"refund.attempt_failed.v1":  "",
		"merchant.notified.v1":      "",
	}
}

func TestRoute(t *testing.T) {
	t.Parallel()
	// The domain keeps a stored event of every type.
	files, err := filepath.Glob("../../domain/testdata/events/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stored events: %v", err)
	}
	want := takers()
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		receiver, decided := want[name]
		if !decided {
			t.Errorf("no receiver is decided for %s", name)
			continue
		}
		m := message.NewMessage("id", nil)
		m.Metadata.Set(outbox.MetadataType, name)
		m.Metadata.Set(outbox.MetadataOrderingKey, "ch_1")
		for _, r := range (&fulfillment.Fulfillment{}).Receivers() {
			e, err := routing(slog.New(slog.DiscardHandler), r)(m)
			takes := err == nil
			if takes != slices.Contains(strings.Fields(receiver), r.Name) || takes && r.Topic == "" {
				t.Errorf("%s takes %s: %v", r.Name, name, takes)
			}
			if e.Type != name || e.OrderingKey != "ch_1" {
				t.Errorf("%s is received as %q in the order of %q", name, e.Type, e.OrderingKey)
			}
		}
	}
	if len(files) != len(want) {
		t.Errorf("there are %d stored types and %d decisions", len(files), len(want))
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
	for _, r := range processors(nil, nil, fulfillment.Services{}, doorbell.New(nil, doorbell.Leads), nil, nil, settings{}) {
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
