package audit_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// fixture is a database whose messages and steps are carried out by statements, so that
// each charge can be stopped anywhere on its legal way.
type fixture struct {
	t   *testing.T
	db  *postgres.DB
	ids map[string]string // of charges and refunds, by name
}

func fixtureIn(t *testing.T, db *postgres.DB) *fixture {
	t.Helper()
	f := &fixture{t: t, db: db, ids: map[string]string{}}
	f.exec(`
insert into merchants (merchant_id) values ('acme'), ('globex');
insert into inbox_holders select r, 'host:1', now() + interval '1 hour' from unnest(array['fulfillment', 'notification']) r;
insert into stock (merchant_id, sku, supplied, available) values ('acme', 'tshirt', 100, 100), ('acme', 'mug', 5, 5)`)
	return f
}

// newFixture has charges and refunds in every state. Their names say in which.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	testrun.Long(t, "it needs a database")
	f := fixtureIn(t, testdb.Reused(t))
	for _, name := range []string{"sold", "bought", "undelivered", "refunded"} {
		f.pay(name)
		if name != "undelivered" {
			f.notify(name)
		}
	}
	for _, name := range []string{"declined", "paying", "canceled"} {
		f.reserve(name)
	}
	f.decide("paying", recorded(domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_paying"}))

	f.decide("declined", recorded(domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_declined"}))
	f.decide("declined", func(c domain.Charge) []domain.Event {
		return c.Fail(domain.Failure{Code: domain.CardDeclined, Message: "no"})
	})
	f.notify("declined")

	for _, key := range []string{"canceled", "canceled-again"} {
		_, err := f.intake().CancelCharge(t.Context(), request("acme", true, "POST /v1/charges/:id/cancel", key), f.ids["canceled"])
		testdb.Must(t, err)
	}
	f.run("work")
	f.decide("canceled", func(c domain.Charge) []domain.Event { return c.Fail(*c.Cancellation(time.Time{})) })
	f.notify("canceled")

	f.accept("acme", "refused", false) // out of stock, and no webhook
	f.run("work")
	f.decide("refused", func(c domain.Charge) []domain.Event { return c.RejectInventory(domain.OutOfStock) })

	f.refund("part", 400)
	f.endRefund("part", "re_part", false)
	f.refund("bounced", 200)
	f.endRefund("bounced", "re_bounced", true)
	f.refund("reversed", 100)
	f.endRefund("reversed", "re_reversed", false)
	f.endRefund("reversed", "re_reversed", true)
	f.refund("returning", 300) // is open
	f.exec(`
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, done_fence)
values ('fulfillment', 'evt_1', '{refunded}', 'stripe.charge.refunded', '{}', '{}', sha256('{}'), 'done', 1, 1)`)

	f.observe("bought",
		recorded(domain.RefundObserved{RefundID: "re_outside", Provider: domain.Provider, ProviderRefund: "re_outside", Amount: 100, Notify: true}))
	f.observe("bought", dispute())
	f.observe("bought", dispute(-1000))

	f.accept("acme", "fresh", true) // is not received yet
	f.refuse("key-too-much")
	return f
}

// named replaces each {name} by the ID of a charge or a refund.
func (f *fixture) named(statements string) string {
	for name, id := range f.ids {
		statements = strings.ReplaceAll(statements, "{"+name+"}", id)
	}
	return statements
}

func (f *fixture) exec(statements string) {
	f.t.Helper()
	if _, err := f.db.Pool().Exec(f.t.Context(), f.named(statements), pgx.QueryExecModeSimpleProtocol); err != nil {
		f.t.Fatalf("%v\nin %s", err, statements)
	}
}

// scripts are the statements of the tests.
var scripts, errScripts = txtar.ParseFile("testdata/planted.txt")

// run executes a section of scripts, with words replaced.
func (f *fixture) run(section string, replace ...string) {
	f.t.Helper()
	testdb.Must(f.t, errScripts)
	i := slices.IndexFunc(scripts.Files, func(file txtar.File) bool { return file.Name == section })
	f.exec(strings.NewReplacer(replace...).Replace(string(scripts.Files[i].Data)))
}

func number(f *fixture, query string) int64 {
	f.t.Helper()
	return testdb.One[int64](f.t, f.db, query)
}

func (f *fixture) intake() *intake.Intake {
	return &intake.Intake{DB: f.db, Options: idempotency.Options{Retention: time.Hour}}
}

func request(merchant string, notify bool, operation, name string) intake.Request {
	return intake.Request{
		Merchant: merchants.Merchant{ID: merchant, FeeBasisPoints: 300, HasWebhook: notify, OneChargePerOrder: true},
		Key:      idempotency.Key{Scope: merchant, Operation: operation, Value: "key-" + name},
		Request:  idempotency.Request{Fingerprint: idempotency.Fingerprint([]byte(name))},
		ID:       "request-" + name,
	}
}

// accept accepts a charge under the key "key-NAME", without " of MERCHANT" in the name.
func (f *fixture) accept(merchant, name string, notify bool) {
	f.t.Helper()
	testdb.Must(f.t, f.tryAccept(f.t.Context(), merchant, name, notify))
}

func (f *fixture) tryAccept(ctx context.Context, merchant, name string, notify bool) error {
	accepted, err := f.intake().AcceptCharge(ctx,
		request(merchant, notify, "POST /v1/charges", strings.TrimSuffix(name, " of "+merchant)), intake.Charge{
			OrderID: name, Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa",
			Items:       []domain.Item{{SKU: "tshirt", Quantity: 2}},
			Description: "a secret", Metadata: map[string]string{"note": "a secret"},
		})
	f.ids[name] = strings.TrimPrefix(accepted.Header.Get("Location"), "/v1/charges/")
	return err
}

// refund accepts a refund of the charge "refunded" and receives its message.
func (f *fixture) refund(name string, amount int64) {
	f.t.Helper()
	accepted, err := f.intake().RequestRefund(f.t.Context(), request("acme", true, "POST /v1/charges/:id/refunds", name),
		f.ids["refunded"], intake.Refund{Amount: &amount, Reason: "a secret"})
	testdb.Must(f.t, err)
	f.ids[name] = path.Base(accepted.Header.Get("Location"))
	f.run("work")
}

// endRefund decides what the provider's object says of a refund, and delivers its webhook.
func (f *fixture) endRefund(refund, object string, failed bool) {
	f.t.Helper()
	version := f.decide("refunded", func(c domain.Charge) []domain.Event {
		r, _ := c.Refund(f.ids[refund])
		return r.Resolve(object, failed, "no")
	})
	f.notifyAt("refunded", version)
}

// dispute is du_1 of all of a charge, with the movements of these amounts and a fee of 15 each.
func dispute(moved ...int64) decision {
	d := domain.ObservedDispute{ID: "du_1", Amount: domain.Money{Amount: 1000, Currency: "USD"}, Status: domain.DisputeOpen}
	for i, amount := range moved {
		d.Moved = append(d.Moved, domain.DisputeMovement{Transaction: fmt.Sprintf("txn_%d", i+1), Amount: amount, Fee: 15, Currency: "USD"})
	}
	return func(c domain.Charge) []domain.Event {
		events, _ := c.ObserveDispute(d)
		return events
	}
}

// observe decides one event about what was done outside, and delivers its webhook.
func (f *fixture) observe(name string, decide decision) {
	f.t.Helper()
	f.notifyAt(name, f.decide(name, decide))
}

// refuse stores the refusal of a refund.
func (f *fixture) refuse(key string) {
	f.t.Helper()
	f.exec(fmt.Sprintf(`
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, body, expires_at)
values ('acme', 'POST /v1/charges/:id/refunds', '%s', '', 422, '{}', now() + interval '1 hour')`, key))
}

func (f *fixture) load(name string) ledger.Stream {
	f.t.Helper()
	s, err := ledger.Load(f.t.Context(), f.db, f.ids[name])
	testdb.Must(f.t, err)
	return s
}

// decision is what a worker decides about a charge.
type decision = func(domain.Charge) []domain.Event

// recorded is the decision to record an event.
func recorded(e domain.Event) decision {
	return func(domain.Charge) []domain.Event { return []domain.Event{e} }
}

// decide appends what is decided, does the work behind it, and returns the last version.
func (f *fixture) decide(name string, decide decision) int {
	f.t.Helper()
	s := f.load(name)
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, ledger.Cause{CorrelationID: name, CausationID: name, Actor: "worker"}, decide(s.Charge)...)
	testdb.Must(f.t, err)
	testdb.Must(f.t, f.db.Commit(f.t.Context(), b))
	f.run("work")
	return next.Charge.Version
}

// reserve accepts a charge and reserves its items.
func (f *fixture) reserve(name string) {
	f.t.Helper()
	f.accept("acme", name, true)
	f.run("work")
	f.decide(name, func(c domain.Charge) []domain.Event { return []domain.Event{domain.InventoryReserved{Items: c.Items}} })
}

// pay accepts a charge and carries it out up to its capture.
func (f *fixture) pay(name string) {
	f.t.Helper()
	f.reserve(name)
	f.decide(name, recorded(domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_" + name}))
	f.decide(name, func(c domain.Charge) []domain.Event { return c.Capture("pi_"+name, c.Money) })
}

// notify delivers the webhook of the charge's outcome.
func (f *fixture) notify(name string) {
	f.t.Helper()
	f.notifyAt(name, f.load(name).Charge.OutcomeVersion)
}

func (f *fixture) notifyAt(name string, version int) {
	f.t.Helper()
	e := f.load(name).At(version)
	f.decide(name, recorded(domain.MerchantNotified{EventID: e.ID.String(), Type: strings.TrimSuffix(e.Type, ".v1"), Version: version}))
}

// addUp adds every committed event to the balances.
func (f *fixture) addUp() {
	f.t.Helper()
	testdb.CatchUp(f.t, f.db, "balances", func() error { _, err := books.AddUp(f.t.Context(), f.db); return err })
}
