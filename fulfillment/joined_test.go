package fulfillment_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// TestStepsThatShareACommit: sixteen charges at a time, committed together, take the
// same two articles, of which there are enough for ten. Ten are sold and the others
// refused, and no message is lost.
func TestStepsThatShareACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.provider.behind = newSandbox(t)
	config := w.db.Pool().Config()
	db, err := postgres.Open(t.Context(), config.ConnString(), postgres.Options{
		Role: postgres.RoleWorker, Writes: groupcommit.NewOrder(slices.Concat(ledger.Writes(), outbox.Writes(), fulfillment.Writes(), inbox.Writes())...), AllowPlaintext: true, AllowUnsafeDurability: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	w.supply("cup", 10)
	w.supply("saucer", 10)
	const charges = 16
	for i := range charges {
		first := order()
		first.OrderID = fmt.Sprint("order ", i)
		first.Items = []domain.Item{{SKU: "saucer", Quantity: 1}, {SKU: "cup", Quantity: 1}}
		w.accept(fmt.Sprint("ch_", i), first)
	}
	handle := handlerFor(fulfillment.New(db, fulfillment.Services{Provider: w.client}, slog.New(slog.NewTextHandler(w.log, nil))), fulfillment.ChargeReceiver)
	for i, err := range w.deliverAll(fulfillment.ChargeReceiver, handle, charges) {
		if err != nil {
			t.Errorf("delivery %d: %v", i, err)
		}
	}
	for sql, want := range map[string]string{
		`select string_agg(available || ' ' || reserved || ' ' || sold, ', ') from stock where sku in ('cup', 'saucer')`: "0 0 10, 0 0 10",
		`select count(*)::text from inbox where status = 'done' and receiver = 'fulfillment'`:                            "16",
		`select count(*)::text from ledger_events where type = 'charge.succeeded.v1'`:                                    "10",
		`select count(*)::text from ledger_events where type = 'charge.failed.v1'`:                                       "6",
		`select count(*)::text from reservations where status = 'sold'`:                                                  "20",
	} {
		if got := w.text(sql); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
	if b := booksOf(t, w.provider.behind); len(b.Captures) != 10 {
		t.Errorf("the provider has %d captures, want 10", len(b.Captures))
	}
	if db.Shared().Units == 0 {
		t.Error("no step had company")
	}
}
