package timeline_test

import (
	"path"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/internal/timeline"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// world is a database with the history of charges, written as the programs
// write it.
type world struct {
	*testing.T
	db *postgres.DB
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, db: pgtest.Reused(t)}
	w.exec(`insert into merchants (merchant_id) values ('acme'), ('globex')`)
	return w
}

// exec runs one statement, or several that have no arguments.
func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.db.Pool().Exec(w.Context(), sql, args...); err != nil {
		w.Fatalf("%v\nin %s", err, sql)
	}
}

func request(merchant, operation, key string) intake.Request {
	return intake.Request{
		Key:     idempotency.Key{Scope: merchant, Operation: operation, Value: key},
		Request: idempotency.Request{Fingerprint: idempotency.Fingerprint([]byte(merchant), []byte(operation), []byte(key))},
		ID:      "request of " + key,
		Refuse: func(error) (idempotency.Answer, error) {
			return idempotency.Answer{StatusCode: 409, ContentType: "application/problem+json", Body: []byte("{}")}, nil
		},
	}
}

// accept accepts a charge of 1000 USD and returns its id.
func (w *world) accept(merchant, key string) string {
	w.Helper()
	in := &intake.Intake{DB: w.db, Keys: idempotency.Receiver{Retention: time.Hour}}
	accepted, err := in.AcceptCharge(w.Context(), intake.Account{MerchantID: merchant, Notify: true},
		request(merchant, "POST /v1/charges", key), intake.Charge{
			OrderID: "17\x1b[2J", Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa", Description: "a secret",
			Items: []intake.Item{{SKU: "mug", Quantity: 2}}, Metadata: map[string]string{"note": "a secret"},
		})
	if err != nil {
		w.Fatal(err)
	}
	return path.Base(accepted.Location)
}

// refund accepts a refund for acme, or has it refused, and returns its id.
func (w *world) refund(key, charge string, amount int64) string {
	w.Helper()
	in := &intake.Intake{DB: w.db, Keys: idempotency.Receiver{Retention: time.Hour}}
	accepted, err := in.RequestRefund(w.Context(), intake.Account{MerchantID: "acme", Notify: true},
		request("acme", "POST /v1/charges/:id/refunds", key), charge, intake.Refund{Amount: &amount})
	if err != nil {
		w.Fatal(err)
	}
	return path.Base(accepted.Location)
}

// decide appends what commands cause and announces outcomes, as the worker does.
func (w *world) decide(charge string, commands ...domain.Command) ledger.Stream {
	w.Helper()
	s, err := ledger.Load(w.Context(), w.db, charge)
	if err != nil {
		w.Fatal(err)
	}
	for _, cmd := range commands {
		events, err := domain.Decide(s.Charge, cmd)
		if err != nil {
			w.Fatal(err)
		}
		b := &pgx.Batch{}
		next, err := ledger.Append(b, s, ledger.Cause{CorrelationID: "request", CausationID: "message", Actor: "worker"}, events...)
		if err != nil {
			w.Fatal(err)
		}
		for _, e := range next.Events[s.Charge.Version:] {
			if e.Type == "charge.succeeded.v1" || e.Type == "refund.succeeded.v1" {
				w.announce(b, next, e)
			}
		}
		if err := w.db.Commit(w.Context(), b); err != nil {
			w.Fatal(err)
		}
		s = next
	}
	return s
}

func (w *world) announce(b *pgx.Batch, s ledger.Stream, e ledger.Recorded) {
	w.Helper()
	payload, err := s.Seal(e)
	if err != nil {
		w.Fatal(err)
	}
	err = outbox.Append(b, outbox.Message{Topic: ledger.Topic, ID: e.ID.String(), Type: e.Type, OrderingKey: s.ID, Payload: payload})
	if err != nil {
		w.Fatal(err)
	}
}

// receive takes what waits in the outbox into the inbox, and passes it.
func (w *world) receive() {
	w.Helper()
	w.exec(`
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
select case when metadata ->> 'type' like '%requested.v1' then 'fulfillment' else 'notification' end,
       message_id, metadata ->> 'ordering_key', metadata ->> 'type', payload, metadata, sha256(payload)
  from outbox
 order by transaction_id, "offset"
    on conflict (receiver, message_id) do nothing`)
	w.exec(`
insert into outbox_offsets (topic, consumer_group, transaction_id, "offset")
select topic, 'inbox', transaction_id, "offset"
  from outbox
 order by transaction_id desc, "offset" desc
 limit 1
    on conflict (topic, consumer_group) do update
   set transaction_id = excluded.transaction_id, "offset" = excluded."offset"`)
}

// finish ends the message about an event type of a charge, after three claims.
func (w *world) finish(charge, kind string) {
	w.Helper()
	w.exec(`
update inbox
   set status = 'done', fence = 3, done_fence = 3, attempts = 1, waits = 2, duplicates = 4, holder = 'host:1',
       finished_at = clock_timestamp()
 where ordering_key = $1
   and type = $2`, charge, kind)
}

// paid is a charge of acme with its whole history: a provider's error, the capture, the
// webhook.
func (w *world) paid(key string) string {
	w.Helper()
	id := w.accept("acme", key)
	w.receive()
	s := w.decide(id,
		domain.ReserveInventory{},
		domain.StartPayment{Provider: domain.Provider, PaymentIntent: "pi_" + id},
		domain.FailAttempt{Stage: domain.StageConfirm, StatusCode: 500, RequestID: "req_42"},
		domain.CapturePayment{Provider: domain.Provider, PaymentIntent: "pi_" + id, Amount: domain.Money{Amount: 1000, Currency: "USD"}},
	)
	w.finish(id, "charge.requested.v1")
	w.receive()
	w.decide(id, domain.NotifyMerchant{EventID: s.Head().ID.String(), Type: "charge.succeeded", Version: s.Charge.Version})
	w.finish(id, "charge.succeeded.v1")
	return id
}

func (w *world) read(argument, merchant string) timeline.Timeline {
	w.Helper()
	t, err := timeline.Read(w.Context(), w.db, argument, merchant)
	if err != nil {
		w.Fatal(err)
	}
	return t
}

// chain is a timeline without its times and details.
func chain(t timeline.Timeline) []string {
	var lines []string
	for _, e := range t.Entries {
		lines = append(lines, strings.Join([]string{string(e.Kind), e.What, e.Who}, " | "))
	}
	return lines
}

// only is the one entry of a kind that has this to say.
func only(t *testing.T, tl timeline.Timeline, kind timeline.Kind, what string) timeline.Entry {
	t.Helper()
	var found []timeline.Entry
	for _, e := range tl.Entries {
		if e.Kind == kind && e.What == what {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d entries are %s %s, want one of %v", len(found), kind, what, chain(tl))
	}
	return found[0]
}
