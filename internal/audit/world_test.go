package audit_test

import (
	"context"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// world is a database with the charges of one merchant, each stopped somewhere
// on its legal way.
type world struct {
	*testing.T
	db      *postgres.DB
	charges map[string]string // name → id, of charges and refunds
}

func emptyWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, db: testdb.Reused(t), charges: map[string]string{}}
	w.exec(`
insert into merchants (merchant_id) values ('acme'), ('globex');
insert into stock (merchant_id, sku, supplied, available) values ('acme', 'tshirt', 100, 100), ('acme', 'mug', 5, 5)`)
	return w
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := emptyWorld(t)

	for _, name := range []string{"sold", "bought"} { // to the end
		w.accept(name, true)
		w.receive()
		w.reserve(name)
		w.capture(name)
		w.receive()
		w.notify(name)
	}
	w.accept("declined", true)
	w.receive()
	w.reserve("declined")
	w.decline("declined")
	w.receive()
	w.notify("declined")

	w.accept("refused", false) // out of stock, and no webhook
	w.receive()
	w.outcome("refused", domain.RejectInventory{Code: domain.OutOfStock})
	w.receive()
	w.finish("refused", "charge.failed.v1")

	w.accept("undelivered", true) // its notification waits
	w.receive()
	w.reserve("undelivered")
	w.capture("undelivered")
	w.receive()

	w.accept("paying", true) // its payment is in flight
	w.receive()
	w.reserve("paying")
	w.decide("paying", domain.StartPayment{Provider: domain.Provider, PaymentIntent: "pi_paying"})

	w.accept("canceled", true)
	w.receive()
	w.reserve("canceled")
	w.cancel("canceled")
	w.receive()
	w.outcome("canceled", domain.FailCanceled{})
	w.release("canceled")
	w.finish("canceled", "charge.cancel_requested.v1")
	w.finish("canceled", "charge.requested.v1")
	w.receive()
	w.notify("canceled")

	w.accept("refunded", true) // three refunds to the end, and one on its way
	w.receive()
	w.reserve("refunded")
	w.capture("refunded")
	w.receive()
	w.notify("refunded")
	w.refund("part", 400)
	w.settle(domain.SucceedRefund{
		RefundID: w.charges["part"], Provider: domain.Provider, ProviderRefund: "re_part",
		Amount: domain.Money{Amount: 400, Currency: "USD"},
	})
	w.refund("bounced", 200)
	w.settle(domain.FailRefund{
		RefundID: w.charges["bounced"], ProviderRefund: "re_bounced", Code: domain.ProviderRefused, Message: "no",
	})
	w.refund("reversed", 100)
	w.settle(domain.SucceedRefund{
		RefundID: w.charges["reversed"], Provider: domain.Provider, ProviderRefund: "re_reversed",
		Amount: domain.Money{Amount: 100, Currency: "USD"},
	})
	w.settle(domain.ReverseRefund{RefundID: w.charges["reversed"], ProviderRefund: "re_reversed"})
	w.refund("returning", 300)
	w.hear("refunded")

	w.accept("fresh", true) // it is not received yet
	w.refuse("key-too-much")
	return w
}

// named puts the ids of charges and refunds in the place of their {name}.
func (w *world) named(statements string) string {
	for name, id := range w.charges {
		statements = strings.ReplaceAll(statements, "{"+name+"}", id)
	}
	return statements
}

// exec runs statements in which {name} is the id of a charge or a refund.
func (w *world) exec(statements string) {
	w.Helper()
	statements = w.named(statements)
	if _, err := w.db.Pool().Exec(w.Context(), statements, pgx.QueryExecModeSimpleProtocol); err != nil {
		w.Fatalf("%v\nin %s", err, statements)
	}
}

func (w *world) accept(name string, notify bool) { w.Helper(); w.acceptFor("acme", name, notify) }

func (w *world) acceptFor(merchant, name string, notify bool) {
	w.Helper()
	accepted, err := accept(w.Context(), w.db, merchant, name, notify)
	if err != nil {
		w.Fatal(err)
	}
	w.charges[name] = strings.TrimPrefix(accepted.Location, "/v1/charges/")
}

func accept(ctx context.Context, db *postgres.DB, merchant, name string, notify bool) (idempotency.Outcome, error) {
	account, r := account(notify), request("POST /v1/charges", strings.TrimSuffix(name, " of "+merchant))
	account.MerchantID, r.Key.Scope = merchant, merchant
	return taker(db).AcceptCharge(ctx, account, r, intake.Charge{
		OrderID: name, Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa",
		Items:       []intake.Item{{SKU: "tshirt", Quantity: 2}},
		Description: "a secret", Metadata: map[string]string{"note": "a secret"},
	})
}

func taker(db *postgres.DB) *intake.Intake {
	return &intake.Intake{DB: db, Keys: idempotency.Receiver{Retention: time.Hour}}
}

func account(notify bool) intake.Account {
	return intake.Account{MerchantID: "acme", FeeBasisPoints: 300, Notify: notify}
}

func request(operation, name string) intake.Request {
	return intake.Request{
		Key:     idempotency.Key{Scope: "acme", Operation: operation, Value: "key-" + name},
		Request: idempotency.Request{Fingerprint: idempotency.Fingerprint([]byte(name))},
		ID:      "request-" + name,
	}
}

// cancel has the merchant ask twice, under two keys.
func (w *world) cancel(name string) {
	w.Helper()
	for _, key := range []string{name, name + "-again"} {
		_, err := taker(w.db).CancelCharge(w.Context(), account(true), request("POST /v1/charges/:id/cancel", key), w.charges[name])
		if err != nil {
			w.Fatal(err)
		}
	}
}

// refund accepts a refund of the charge "refunded" and takes its message in.
func (w *world) refund(name string, amount int64) {
	w.Helper()
	accepted, err := taker(w.db).RequestRefund(w.Context(), account(true), request("POST /v1/charges/:id/refunds", name),
		w.charges["refunded"], intake.Refund{Amount: &amount, Reason: "a secret"})
	if err != nil {
		w.Fatal(err)
	}
	w.charges[name] = path.Base(accepted.Location)
	w.receive()
}

// settle brings a refund to its outcome, or reverses it, and notifies the merchant.
func (w *world) settle(cmd domain.Command) {
	w.Helper()
	const name = "refunded"
	version := w.decide(name, cmd)
	w.finish(name, "refund.requested.v1")
	w.receive()
	w.notifyAt(name, version)
}

// hear takes an event of the provider in and finishes it.
func (w *world) hear(name string) {
	w.Helper()
	w.exec(fmt.Sprintf(`
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, done_fence)
values ('fulfillment', 'evt_1', '{%s}', 'stripe.charge.refunded', '{}', '{}', sha256('{}'), 'done', 1, 1)`, name))
}

// refuse stores the refusal of a refund.
func (w *world) refuse(key string) {
	w.Helper()
	w.exec(fmt.Sprintf(`
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
values ('acme', 'POST /v1/charges/:id/refunds', '%s', '', 422, 'application/problem+json', '{}', now() + interval '1 hour')`, key))
}

// receive takes everything that waits in the outbox into the inbox and moves the
// reader's offset, as one commit of the reader does.
func (w *world) receive() {
	w.Helper()
	w.exec(`
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, attempts, due_at)
select case when metadata ->> 'type' like '%requested.v1' then 'fulfillment' else 'notification' end,
       message_id, metadata ->> 'ordering_key', metadata ->> 'type', payload, metadata, sha256(payload),
       case when exists (
              select
                from inbox
               where ordering_key = outbox.metadata ->> 'ordering_key'
                 and status = 'running') then 'pending' else 'running' end,
       1, 1, clock_timestamp() + interval '1 hour'
  from outbox
 order by transaction_id, "offset"
    on conflict (receiver, message_id) do nothing;
insert into outbox_offsets (topic, consumer_group, transaction_id, "offset")
select distinct on (topic) topic, 'inbox', transaction_id, "offset"
  from outbox
 order by topic, transaction_id desc, "offset" desc
    on conflict (topic, consumer_group) do update
   set transaction_id = excluded.transaction_id, "offset" = excluded."offset"`)
}

// finish ends the message that announced the event of a type.
func (w *world) finish(name, kind string) {
	w.Helper()
	w.exec(fmt.Sprintf(`
update inbox
   set status = 'done', done_fence = fence, finished_at = clock_timestamp()
 where ordering_key = '{%s}'
   and type = '%s'`, name, kind))
}

// decide appends what cmd causes, and announces the outcome if it brings one. It
// returns the version of the last event.
func (w *world) decide(name string, cmd domain.Command) int {
	w.Helper()
	s, err := ledger.Load(w.Context(), w.db, w.charges[name])
	if err != nil {
		w.Fatal(err)
	}
	events, err := domain.Decide(s.Charge, cmd)
	if err != nil {
		w.Fatal(err)
	}
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, ledger.Cause{CorrelationID: name, CausationID: name, Actor: "worker"}, events...)
	if err != nil {
		w.Fatal(err)
	}
	for version := s.Charge.Version + 1; version <= next.Charge.Version; version++ {
		if domain.EventTypeNamed(next.At(version).Type).Webhook != "" {
			w.announce(b, next, next.At(version))
		}
	}
	if err := w.db.Commit(w.Context(), b); err != nil {
		w.Fatal(err)
	}
	return next.Charge.Version
}

func (w *world) announce(b *pgx.Batch, s ledger.Stream, e ledger.Recorded) {
	w.Helper()
	payload, err := s.Seal(e)
	if err != nil {
		w.Fatal(err)
	}
	topic := ledger.Outcomes
	if strings.Contains(e.Type, "requested") {
		topic = ledger.Topic
	}
	err = outbox.Append(b, outbox.Message{
		Topic: topic, ID: e.ID.String(), Type: e.Type, OrderingKey: s.ID, Payload: payload,
	})
	if err != nil {
		w.Fatal(err)
	}
}

// outcome decides what ends the charge and finishes the message that asked for it.
func (w *world) outcome(name string, cmd domain.Command) {
	w.Helper()
	w.decide(name, cmd)
	w.finish(name, "charge.requested.v1")
}

func (w *world) reserve(name string) {
	w.Helper()
	w.decide(name, domain.ReserveInventory{})
	w.exec(fmt.Sprintf(`
insert into reservations (charge_id, merchant_id, sku, quantity) values ('{%s}', 'acme', 'tshirt', 2);
update stock set available = available - 2, reserved = reserved + 2 where sku = 'tshirt'`, name))
}

func (w *world) capture(name string) {
	w.Helper()
	w.decide(name, domain.StartPayment{Provider: domain.Provider, PaymentIntent: "pi_" + name})
	w.outcome(name, domain.CapturePayment{
		Provider: domain.Provider, PaymentIntent: "pi_" + name, Amount: domain.Money{Amount: 1000, Currency: "USD"},
	})
	w.exec(fmt.Sprintf(`
update reservations set status = 'sold' where charge_id = '{%s}';
update stock set reserved = reserved - 2, sold = sold + 2 where sku = 'tshirt'`, name))
}

func (w *world) decline(name string) {
	w.Helper()
	w.decide(name, domain.StartPayment{Provider: domain.Provider, PaymentIntent: "pi_" + name})
	w.outcome(name, domain.DeclinePayment{Failure: domain.Failure{Code: domain.CardDeclined, Message: "no"}})
	w.release(name)
}

func (w *world) release(name string) {
	w.Helper()
	w.exec(fmt.Sprintf(`
update reservations set status = 'released' where charge_id = '{%s}';
update stock set reserved = reserved - 2, available = available + 2 where sku = 'tshirt'`, name))
}

// notify delivers the webhook of the charge's outcome.
func (w *world) notify(name string) {
	w.Helper()
	s, err := ledger.Load(w.Context(), w.db, w.charges[name])
	if err != nil {
		w.Fatal(err)
	}
	w.notifyAt(name, s.Charge.OutcomeVersion)
}

// notifyAt delivers the webhook of the outcome at a version.
func (w *world) notifyAt(name string, version int) {
	w.Helper()
	s, err := ledger.Load(w.Context(), w.db, w.charges[name])
	if err != nil {
		w.Fatal(err)
	}
	e := s.At(version)
	w.decide(name, domain.NotifyMerchant{EventID: e.ID.String(), Type: strings.TrimSuffix(e.Type, ".v1"), Version: version})
	w.finish(name, e.Type)
}
