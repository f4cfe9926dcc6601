package fulfillment_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

func TestInventory(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		items []domain.Item
		code  domain.FailureCode
	}{
		"an article out of stock fails the charge and holds nothing of the others": {
			[]domain.Item{{SKU: "tshirt", Quantity: 1}, {SKU: "mug", Quantity: 6}}, domain.OutOfStock,
		},
		"an unknown article fails the charge and holds nothing of the others": {
			[]domain.Item{{SKU: "mug", Quantity: 1}, {SKU: "socks", Quantity: 1}}, domain.UnknownSKU,
		},
		"an article of another merchant is unknown": {
			[]domain.Item{{SKU: "umbrella", Quantity: 1}}, domain.UnknownSKU,
		},
	} {
		refused := func(t *testing.T, unseen bool) {
			t.Helper()
			w := newWorld(t)
			if unseen {
				f := fulfillment.New(w.db, fulfillment.Services{}, slog.New(slog.DiscardHandler))
				f.ReadFrom(&stocked{Querier: w.db})
				w.charge = handlerFor(f, fulfillment.ChargeReceiver)
			}
			w.exec(`insert into merchants (merchant_id) values ('globex')`)
			w.exec(`insert into stock (merchant_id, sku, supplied, available) values ('globex', 'umbrella', 1, 1)`)
			first := order()
			first.Items = tc.items
			w.accept("ch_1", first)
			w.expectKind(w.deliver(), "done")
			w.expect(sight{
				Events:  "charge.requested inventory.rejected charge.failed",
				Failure: tc.code, Stock: untouched + ", umbrella 1 0 0", Outbox: "charge.failed", Message: "done",
			}, "")
			// What is rolled back leaves a gap.
			if gap := w.text(`select (max(position) > count(*))::text from ledger_events`) == "true"; gap != unseen {
				t.Errorf("a commit was refused: %v, want %v", gap, unseen)
			}
		}
		t.Run(name, func(t *testing.T) { t.Parallel(); refused(t, false) })
		t.Run(name+", also one that was gone a moment later", func(t *testing.T) { t.Parallel(); refused(t, true) })
	}

	t.Run("the last pieces can be sold", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		first := order()
		first.Items = []domain.Item{{SKU: "mug", Quantity: 5}}
		w.accept("ch_1", first)
		w.provider.on("create", shows("requires_confirmation"))
		w.provider.on("confirm", shows("succeeded"))
		w.expectKind(w.deliver(), "done")
		want := succeeded(toStarted)
		want.Stock, want.Holds = "mug 0 0 5, tshirt 10 0 0", "sold"
		w.expect(want, "create confirm")
	})

	t.Run("supplying again resets nothing", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.supply("mug", 50)
		w.supply("socks", 3)
		if diff := cmp.Diff("mug 4 1 0, socks 3 0 0, tshirt 8 2 0", w.stock()); diff != "" {
			t.Errorf("the stock (-want +got):\n%s", diff)
		}
	})
}

// stocked is a database in which the first read of the stock finds plenty of every article.
type stocked struct {
	postgres.Querier

	read bool
}

func (s *stocked) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "s.available") && !s.read {
		s.read = true
		sql = `select asked.*, 1000::bigint from unnest($1::text[], $2::text[]) asked`
	}
	return s.Querier.Query(ctx, sql, args...)
}

// The charges come in pairs over the same articles, one naming them the other
// way round. PostgreSQL would end a deadlock after a second, and commit would
// send the loser's batch again, so that only its own count shows it.
func TestInventory_opposite_orders_do_not_deadlock(t *testing.T) {
	testdb.Long(t, "it races many against each other")
	t.Parallel()
	const pairs = 50
	w := newWorld(t)
	before := w.deadlocks() // of earlier tests in the same database
	w.supply("cap", 80)     // less than the charges want
	w.supply("sock", 1000)
	for i := range pairs {
		for n, items := range [][]domain.Item{
			{{SKU: "cap", Quantity: 1}, {SKU: "sock", Quantity: 2}},
			{{SKU: "sock", Quantity: 2}, {SKU: "cap", Quantity: 1}},
		} {
			first := order()
			first.Items = items
			if i%2 == 1 {
				first.PaymentMethod = "pm_card_chargeDeclined"
			}
			w.accept(fmt.Sprintf("ch_%d_%d", i, n), first)
		}
	}
	w.provider.behind = newSandbox(t)
	for _, err := range w.deliverAll(fulfillment.ChargeReceiver, w.charge, 2*pairs) {
		w.expectKind(err, "done")
	}
	if got := w.text(`
select string_agg(format('%s %s %s', sku, reserved, sold - n * case sku when 'cap' then 1 else 2 end), ', ' order by sku)
  from stock,
       (select count(*) as n from ledger_events where type = 'payment.captured.v1') captures
 where sku in ('cap', 'sock')`); got != "cap 0 0, sock 0 0" {
		t.Errorf("reserved, and sold beyond what was captured, are %q", got)
	}
	if got := w.text(`select count(*)::text from ledger_events where type in ('charge.succeeded.v1', 'charge.failed.v1')`); got != "100" {
		t.Errorf("%s charges have an outcome, want 100", got)
	}
	if n := w.deadlocks() - before; n != 0 {
		t.Errorf("PostgreSQL ended %d deadlocks", n)
	}
}

// deadlocks returns how many deadlocks the server has ended in this database. A
// session reports its own at the latest when it ends.
func (w *world) deadlocks() (n int64) {
	w.Helper()
	w.db.Pool().Reset()
	await.Row(w, w.db, `
select count(*) = 1
  from pg_stat_activity
 where datname = current_database()
   and backend_type = 'client backend'`)
	err := w.db.QueryRow(w.Context(), `select deadlocks from pg_stat_database where datname = current_database()`).Scan(&n)
	if err != nil {
		w.Fatal(err)
	}
	return n
}
