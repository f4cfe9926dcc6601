package fulfillment_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/payonce/payonce/fulfillment"
)

// TestCharge_waitsForAStreamThatIsReadTooEarly lets the worker read a server that is
// behind the one that it received the message from: a snapshot of before the refund.
func TestCharge_waitsForAStreamThatIsReadTooEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.provider.behind = newSandbox(t)
	s := w.charged("pm_card_visa")
	behind, err := w.db.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = behind.Rollback(context.WithoutCancel(t.Context())) }()
	var events int // the snapshot is taken by the first statement
	if err := behind.QueryRow(t.Context(), `select count(*) from ledger_events`).Scan(&events); err != nil {
		t.Fatal(err)
	}
	w.request(s, "re_1", 600)

	current := w.charge
	late := fulfillment.New(w.db, fulfillment.Services{Provider: w.client}, slog.New(slog.DiscardHandler))
	late.ReadFrom(behind)
	w.charge = handlerFor(late, fulfillment.ChargeReceiver)
	w.expectKind(w.deliver(), "waits")

	w.charge = current
	w.exec(`update inbox set due_at = now()`)
	w.expectKind(w.deliver(), "done")
	if refund, _ := w.load().Charge.Refund("re_1"); refund.Status != "succeeded" {
		t.Errorf("the refund is %s, want succeeded", refund.Status)
	}
}
