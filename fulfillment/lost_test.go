package fulfillment_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/testdb"
)

// scan reads the provider's list, as a worker's loop does.
func (f *fixture) scan() {
	f.t.Helper()
	testdb.Must(f.t, restore.Recover(f.t.Context(), slog.New(slog.DiscardHandler), f.worker, f.client.Intents))
	f.provider.take()
}

// TestLostPayment: a database has lost a charge, the provider has forgotten its keys, and the
// client sends its key again. The new charge creates nothing before the provider's list is read,
// and then takes the payment before any other step.
func TestLostPayment(t *testing.T) {
	testdb.Long(t, "it makes two databases for each of many cases")
	t.Parallel()
	again := order()
	again.Reference = "ref_1"
	dearer, declined, late := again, again, again
	dearer.Amount, declined.PaymentMethod, late.ExpiresAt = 2999, "pm_card_chargeDeclined", time.Now().Add(-time.Second).Truncate(time.Millisecond)
	none := func(*fixture) {}
	soldOut := func(g *fixture) { g.exec(`update stock set supplied = 0, available = 0`) }
	lostIntent := `(select payment_intent from lost_payments limit 1)`
	unconfirmed := func(f *fixture) { f.provider.on("confirm", cut) }
	for name, test := range map[string]struct {
		lost     func(f *fixture) // before the charge that is lost
		since    func(f *fixture) // at the provider, after it
		again    domain.ChargeRequested
		here     func(g *fixture) // before the list is read
		scanned  func(g *fixture) // after it
		calls    string           // of the delivery
		captures int
		status   domain.Status // at last
		code     domain.FailureCode
	}{
		"it was captured":                            {none, none, again, none, none, "retrieve", 1, domain.Succeeded, ""},
		"it was captured, and is canceled here":      {none, none, again, (*fixture).cancelAgain, none, "cancel", 1, domain.Succeeded, ""},
		"it was captured, and the stock is gone":     {none, none, again, soldOut, none, "cancel", 1, domain.Succeeded, ""},
		"it was captured, and the deadline passed":   {none, none, late, none, none, "cancel", 1, domain.Succeeded, ""},
		"it was captured and refunded in part":       {none, func(f *fixture) { f.outside("/refund", 600) }, again, none, none, "retrieve", 1, domain.PartiallyRefunded, ""},
		"it was not confirmed":                       {unconfirmed, none, again, none, none, "retrieve confirm", 1, domain.Succeeded, ""},
		"it was not confirmed, and is canceled here": {unconfirmed, none, again, (*fixture).cancelAgain, none, "cancel", 0, domain.Failed, domain.Canceled},
		"it was not confirmed, and the stock is gone": {
			unconfirmed, none, again, soldOut, none, "cancel", 0, domain.Failed, domain.OutOfStock,
		},
		"it was declined":               {none, none, declined, none, none, "retrieve", 0, domain.Failed, domain.CardDeclined},
		"another amount":                {none, none, dearer, none, none, "", 1, domain.Failed, domain.ProviderRefused},
		"an operator has given it back": {none, none, again, none, func(g *fixture) { g.exec(`insert into adoptions (payment_intent) values (` + lostIntent + `)`) }, "", 1, domain.Failed, domain.ProviderRefused},
		"the second creation was captured": {
			func(f *fixture) { f.provider.on("create", f.provider.under(failsAfter, f.provider.sandbox.ServeHTTP)) },
			none, again, none, none, "cancel cancel retrieve", 1, domain.Succeeded, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, g := newFixture(t), newFixture(t)
			f.useSandbox()
			test.lost(f)
			first := test.again
			first.Amount, first.ExpiresAt = again.Amount, time.Time{}
			f.accept("ch_1", first)
			if _ = f.deliver(); len(f.provider.keys("confirm")) == 0 { // the creation failed
				f.expectEnd(f.deliver(), "done")
			}
			test.since(f)
			g.provider, g.client = f.provider, f.client
			g.charge = g.handler(fulfillment.Services{Provider: f.client, ActionTimeout: time.Hour}, fulfillment.ChargeReceiver)
			g.provider.control(t, http.MethodPut, "/faults", forgetsKeys)
			g.exec(`insert into recoveries (id, history, since, reason) values (2, database_history(), 'epoch', 'history')`)
			g.accept("ch_2", test.again)
			test.here(g)
			g.provider.take()
			g.expectEnd(g.deliver(), "waits")
			if got := g.provider.take(); got != "" {
				t.Errorf("the provider was called to %q before its list was read", got)
			}
			g.scan()
			test.scanned(g)
			g.expectEnd(g.deliver(), "done")
			if got := g.provider.take(); got != test.calls {
				t.Errorf("the provider was called to %q, want %q", got, test.calls)
			}
			g.deliverAll(fulfillment.ChargeReceiver, g.charge, testdb.One[int](t, g.db.Pool(), `select count(*)::int from inbox where receiver = 'fulfillment' and status = 'pending'`))
			g.expectCaptures(test.captures)
			c := g.load("ch_2").Charge
			if c.Status != test.status || test.code != "" && c.Failure.Code != test.code {
				t.Errorf("the charge is %s %v, want %s %s", c.Status, c.Failure, test.status, test.code)
			}
			if intents := g.provider.records(t).Intents; test.captures == 0 && intents[0].Status != "canceled" {
				t.Errorf("the provider's intents are %+v", intents)
			}
		})
	}
}

// TestLostPayment_isAdoptedOnlyBeforeItIsRecorded: an operator adopts the payment intent of a
// charge that is about to record it, or of one that has.
func TestLostPayment_isAdoptedOnlyBeforeItIsRecorded(t *testing.T) {
	t.Parallel()
	adopts := func(f *fixture, want bool) {
		f.exec(`insert into lost_payments values ('pi_1', 'ref_1', 1999, 'EUR', now())`)
		got, err := restore.Adopt(f.t.Context(), f.db, "pi_1", func() (string, error) { return "re_1", nil })
		if err != nil || got != want {
			f.t.Errorf("adopted: %t, %v", got, err)
		}
	}
	first := order()
	first.Reference = "ref_1"
	runAll(t, map[string]scenario{
		"before the commit": {
			begin: func(f *fixture) {
				f.accept("ch_1", first)
				f.provider.on("create", meanwhile(func() { adopts(f, true) }, shows("requires_confirmation")))
			},
			want: failed(toReserved+declined, domain.ProviderRefused), calls: "create",
		},
		"after the commit": {
			begin:  func(f *fixture) { f.startOf(first); adopts(f, false) },
			script: script{"retrieve": {shows("succeeded")}},
			want:   succeeded(toStarted), calls: "retrieve",
		},
	})
}

func (f *fixture) cancelAgain() { f.append(f.load("ch_2"), domain.ChargeCancelRequested{}) }

// outside moves money of the only intent, as the provider's dashboard does.
func (f *fixture) outside(path string, amount int64) {
	f.t.Helper()
	intent := f.load("ch_1").Charge.PaymentIntent
	f.provider.control(f.t, http.MethodPost, path, fmt.Sprintf(`{"payment_intent":%q,"amount":%d}`, intent, amount))
}

// TestLostPayment_inAGroupCommit: charges that start together take the payments that are lost, and no
// other; of those that an operator has, none.
func TestLostPayment_inAGroupCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`insert into lost_payments select 'pi_' || n, 'ref', 1999, 'EUR', now() from generate_series(1, 3) as n`)
	f.exec(`insert into adoptions (payment_intent) values ('pi_3')`)
	writes := fulfillment.Writes()
	adopt := writes[slices.IndexFunc(writes, func(s groupcommit.Statement) bool { return strings.Contains(s.SQL, "adoptions") })].ManyRows
	testdb.Exec(t, f.worker.Pool(), adopt, []string{"pi_9", "pi_2", "pi_1"}, []string{"ch_9", "ch_2", "ch_1"})
	f.expectText("pi_1 ch_1, pi_2 ch_2, pi_3 ", `select string_agg(concat(payment_intent, ' ', charge_id), ', ' order by payment_intent) from adoptions`)
	b := &pgx.Batch{}
	b.Queue(adopt, []string{"pi_3"}, []string{"ch_3"})
	if err := f.worker.Commit(t.Context(), b); groupcommit.Constraint(err) != "adoptions_pkey" {
		t.Errorf("a charge took the payment of an operator: %v", err)
	}
}
