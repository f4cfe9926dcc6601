package worker_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/app/worker"
	"github.com/payonce/payonce/outbox"
)

// receivers is who takes the message about an event; "" is nobody, because the
// event is the end of something that no step follows.
func receivers() map[string]string {
	return map[string]string{
		domain.TypeChargeRequested:       fulfillment.ChargeReceiver,
		domain.TypeChargeCancelRequested: fulfillment.ChargeReceiver,
		domain.TypeRefundRequested:       fulfillment.ChargeReceiver,

		domain.TypeChargeSucceeded: fulfillment.NotificationReceiver,
		domain.TypeChargeFailed:    fulfillment.NotificationReceiver,
		domain.TypeRefundSucceeded: fulfillment.NotificationReceiver,
		domain.TypeRefundFailed:    fulfillment.NotificationReceiver,
		domain.TypeRefundReversed:  fulfillment.NotificationReceiver,

		domain.TypeInventoryReserved:    "",
		domain.TypeInventoryRejected:    "",
		domain.TypeInventoryReleased:    "",
		domain.TypePaymentStarted:       "",
		domain.TypePaymentAttemptFailed: "",
		domain.TypePaymentCaptured:      "",
		domain.TypePaymentDeclined:      "",
		domain.TypeRefundAttemptFailed:  "",
		domain.TypeMerchantNotified:     "",
	}
}

func TestRoute(t *testing.T) {
	t.Parallel()
	// The domain keeps a stored event of every type.
	files, err := filepath.Glob("../../../domain/testdata/events/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stored events: %v", err)
	}
	want := receivers()
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		receiver, decided := want[name]
		if !decided {
			t.Errorf("nobody has decided who takes %s", name)
			continue
		}
		m := message.NewMessage("id", nil)
		m.Metadata.Set(outbox.MetadataType, name)
		m.Metadata.Set(outbox.MetadataOrderingKey, "ch_1")
		e := worker.Route(m)
		if diff := cmp.Diff(receiver, strings.Join(e.Receivers, " ")); diff != "" {
			t.Errorf("who takes %s (-want +got):\n%s", name, diff)
		}
		if e.Type != name || e.OrderingKey != "ch_1" {
			t.Errorf("%s is received as %q in the order of %q", name, e.Type, e.OrderingKey)
		}
	}
	if len(files) != len(want) {
		t.Errorf("there are %d stored types and %d decisions", len(files), len(want))
	}
}

func TestParkedMessagesHoldUpNotificationsAlone(t *testing.T) {
	t.Parallel()
	want := map[string]inbox.Parked{
		fulfillment.ChargeReceiver: inbox.Pass, fulfillment.NotificationReceiver: inbox.Block,
		fulfillment.ResendReceiver: inbox.Pass,
	}
	if diff := cmp.Diff(want, worker.Parked()); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
}

// TestHandingOver: messages are handed to those whom they may reach, and these are
// woken.
func TestHandingOver(t *testing.T) {
	t.Parallel()
	reached := map[string]bool{}
	for _, receiver := range receivers() {
		reached[receiver] = true
	}
	processors := worker.Processors()
	handover := worker.HandingOver(processors)
	handover.Ended()
	handover.Ended() // however often
	for _, p := range processors {
		if reached[p.Receiver] != (p.Wake != nil) {
			t.Errorf("%s is woken: %v", p.Receiver, p.Wake != nil)
		}
	}
}
