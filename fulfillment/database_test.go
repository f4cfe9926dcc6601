package fulfillment_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// The histories of charges in the database.
const (
	toStarted = "charge.requested inventory.reserved payment.started"
	paid      = toStarted + " payment.captured charge.succeeded"
	refunded  = paid + " refund.requested refund.succeeded"
	creates   = "create/0:requires_confirmation "
)

// TestCharge is what one commit stores beside the events: the stock, and the message about the outcome.
func TestCharge(t *testing.T) {
	t.Parallel()
	t.Run("that is paid and refunded", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.accept("ch_1", order())
		f.deliver(creates+"confirm/3:cut", "waits")
		f.expect(toStarted, held, "", "pending")
		f.deliver("retrieve:succeeded", "done")
		f.expect(paid, sold, "charge.succeeded", "done")
		f.request()
		f.deliver("refunds: refund/0:succeeded", "done")
		f.expect(refunded, sold, "charge.succeeded refund.succeeded", "done done")
	})
	t.Run("that is declined", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.accept("ch_1", order())
		f.deliver(creates+"confirm/3:declined cancel:canceled", "done")
		f.expect(toStarted+" payment.declined inventory.released charge.failed", returned, "charge.failed", "done")
	})
	t.Run("whose key has made another charge, which has the payment", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.append(f.accept("ch_2", bare()), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"})
		f.exec(`delete from inbox`)
		f.accept("ch_1", bare())
		f.deliver("create/0:succeeded", "done")
		f.expect("charge.requested payment.declined charge.failed", "mug 5 0 0, tshirt 10 0 0", "charge.failed", "done")
	})
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ lost, then, more, stock, announced string }{
		"a capture after the message was taken over is refused as a whole": {
			"confirm/3:succeeded^takeover", "retrieve:succeeded", " payment.captured charge.succeeded", sold, "charge.succeeded",
		},
		"a failure after the message was taken over is refused as a whole": {
			"confirm/3:declined cancel:canceled^takeover", "retrieve:canceled", " payment.declined inventory.released charge.failed", returned, "charge.failed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.accept("ch_1", order())
			f.deliver(creates+test.lost, "lost")
			f.expect(toStarted, held, "", "running")
			f.deliver(test.then, "done")
			f.expect(toStarted+test.more, test.stock, test.announced, "done")
		})
	}
}

// TestInventory_underContention processes many charges at once, in pairs over the same articles, of which one
// names them the other way round. A deadlock would have its loser wait.
func TestInventory_underContention(t *testing.T) {
	testdb.Long(t, "it races many against each other")
	t.Parallel()
	for name, share := range map[string]bool{"in commits of their own": false, "in group commits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const pairs = 50
			f, p := newFixture(t), newProvider(t)
			services := fulfillment.Services{Provider: newClient(t, p.URL)}
			f.charge = f.handler(services)
			f.supply("cap", 70) // less than the charges want
			f.supply("sock", 1000)
			for i := range pairs {
				items := []domain.Item{{SKU: "cap", Quantity: 1}, {SKU: "sock", Quantity: 2}}
				for n := range 2 {
					first := order()
					first.Items, first.Reference = slices.Clone(items), fmt.Sprintf("ref_%d_%d", i, n)
					if i%4 == 1 {
						first.PaymentMethod = "pm_card_chargeDeclined"
					}
					f.accept(fmt.Sprintf("ch_%d_%d", i, n), first)
					slices.Reverse(items)
				}
			}
			if share {
				declared := slices.Concat(ledger.Writes(), outbox.Writes(), fulfillment.Writes(), inbox.Writes())
				db := testdb.OpenAt(t, f.db.Pool().Config().ConnString(), postgres.Options{
					Role: postgres.RoleWorker, Writes: groupcommit.NewStatements(declared...),
				})
				f.charge = handlerOf(fulfillment.New(db, services, slog.New(slog.DiscardHandler)), fulfillment.ChargeReceiver)
				defer func() {
					if db.Committer().Stats().Batches == 0 {
						t.Error("no commit was shared")
					}
				}()
			}
			for _, err := range f.deliverAll(2 * pairs) {
				if err != nil {
					t.Errorf("a handler returned %v", err)
				}
			}
			f.expectText("cap 0 0, sock 0 0", `
select string_agg(format('%s %s %s', sku, reserved, sold - n * case sku when 'cap' then 1 else 2 end), ', ' order by sku)
  from stock,
       (select count(*) as n from ledger_events where type = 'payment.captured.v1') captures
 where sku in ('cap', 'sock')`)
			f.expectText("100 100", `
select format('%s %s', (select count(*) from ledger_events where type in ('charge.succeeded.v1', 'charge.failed.v1')),
                       (select count(*) from inbox where status = 'done'))`)
			f.expectText(strconv.Itoa(len(p.records(t).Captures)), `select count(*)::text from ledger_events where type = 'payment.captured.v1'`)
		})
	}
}
