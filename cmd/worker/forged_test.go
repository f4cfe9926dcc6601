package main

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// forged are rows that the database accepts from a login and that no program has written.
// The worker's login can write those of the api's too.
var forged = map[string]string{
	"payonce_api": `
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
values ('11111111-1111-8111-8111-111111111111', 'ch_unreadable', 1, 'charge.requested.v1', 'acme',
        '{"merchant_id":"acme","amount":1,"order_id":"1","reference":"ref_822b33ad87c148a00","steps":["magic","payment"]}', '{"actor":"api"}', now());
insert into outbox (topic, message_id, payload, metadata)
select 'charges', '11111111-1111-8111-8111-111111111111',
       '{"id":"11111111-1111-8111-8111-111111111111","type":"charge.requested.v1","charge_id":"ch_unreadable","version":1}',
       '{"type":"charge.requested.v1","ordering_key":"ch_unreadable","partition_key":"acme","traceparent":{"a":[7]}}'
  from generate_series(1, 3);
insert into outbox (topic, message_id, payload, metadata)
values ('charges', 'evt_1', '\xff', '{"type":"stripe.refund.updated","ordering_key":"ch_unreadable","partition_key":"acme","traceparent":[7]}'),
       ('charges', 'evt_1', '\xfe', '{"type":"stripe.refund.updated","ordering_key":"ch_unreadable","partition_key":"acme"}');
insert into idempotency_keys (scope, operation, key, fingerprint, request, status_code, headers, body, expires_at)
values ('acme', 'POST /v1/charges', 'forged', '', '\xff', 202, '7', '\xff', now() - interval '1 hour')`,
	"payonce_worker": `
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_forged', 1, 'charge.succeeded.v1', 'acme', '{}', '{}', now()),
       (gen_random_uuid(), 'ch_void', 1, 'charge.requested.v1', 'acme', '{"merchant_id":"acme","amount":1,"items":7}', '{}', now()),
       (gen_random_uuid(), 'ch_exploded', 1, 'charge.exploded.v9', 'acme', '{}', '{}', now());
insert into outbox (topic, message_id, payload, metadata)
values ('charges',  'forged 1', '\xff', '{"type":7,"ordering_key":{},"partition_key":[]}'),
       ('charges',  'forged 2', '{"version":-1}', '{"type":"charge.requested.v1","ordering_key":"ch_none"}'),
       ('charges',  'forged 3', '', jsonb_build_object('type', 'refund.requested.v1', 'ordering_key', repeat('x', 99999)));
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first)
values ('fulfillment',  'forged 5', 'ch_none', 'charge.requested.v1', '\xff', '{}', '', 'running', true),
       ('fulfillment',  'forged 6', 'ch_exploded', 'charge.requested.v1', '', '"x"', '', 'pending', false),
       ('notification', 'forged 7', 'ch_forged', 'charge.succeeded.v1', '{}', '{}', '', 'pending', true),
       ('notification', 'forged 4', 'ch_forged', 'charge.succeeded.v1', 'null', '{}', '', 'pending', false),
       ('fulfillment',  'forged 9', 'ch_void', 'charge.requested.v1', '', '{}', '', 'pending', true),
       ('fulfillment',  'forged 8', 'ch_old', 'more', '', '{}', '', 'pending', false);
update inbox set holder = 'unknown', attempts = 1, fence = 1 where message_id = 'forged 5';
update inbox set attempts = 99 where message_id = 'forged 7';
update inbox set due_at = 'infinity' where message_id in ('forged 5', 'forged 9');
update inbox set status = 'done', fence = 1, done_fence = 1, finished_at = '-infinity' where message_id = 'forged 8'`,
}

// TestRun_passesForgedRows: rows that a stolen login has written stand before good ones. The
// receivers, the balances, the retention job and the audit go on to these, and count the others.
func TestRun_passesForgedRows(t *testing.T) {
	testdb.Long(t, "it waits for leases and retention")
	t.Parallel()
	url := testdb.Migrated(t, testrun.Server(t, local.Options{Fsync: true, InMemory: true}), "forged")
	db := testdb.Connect(t, url)
	testdb.Exec(t, db.Pool(), `insert into merchants (merchant_id) values ('acme')`)
	for role, rows := range forged {
		testdb.Exec(t, db.Pool(), `begin; set local role `+role+`; set local payonce.merchant = 'acme'; `+rows+`; commit`, pgx.QueryExecModeSimpleProtocol)
	}
	b := &pgx.Batch{}
	s, err := ledger.Append(b, ledger.New("ch_good"), ledger.Cause{CausationID: "1"}, domain.ChargeRequested{Terms: domain.Terms{
		MerchantID: "acme", OrderID: "17", Money: domain.Money{Amount: 1000, Currency: "EUR"},
		PaymentMethod: "pm_card_visa", Items: []domain.Item{{SKU: "sold out", Quantity: 1}},
	}, Steps: domain.Steps()})
	testdb.Must(t, err)
	payload := s.EncodeEnvelope(s.Head())
	testdb.Must(t, outbox.Append(b, outbox.Message{Topic: domain.Topic, ID: s.Head().ID.String(), Type: s.Head().Type, OrderingKey: s.ID, Payload: payload}))
	b.Queue(`
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, body, expires_at)
values ('acme', 'POST /v1/charges', 'good', '', 202, '{}', now())`)
	testdb.Must(t, db.Commit(t.Context(), b))

	p := testrun.Start(t, run, working(t, url, "LEASE", "500ms", "MAX_ATTEMPTS", "2", "BACKOFF_BASE", "10ms", "BACKOFF_CAP", "50ms", "INBOX_RETENTION", "2s"))
	for what, sql := range map[string]string{
		"the good charge is carried out": `select count(*) = 1 from ledger_events where stream_id = 'ch_good' and type = 'charge.failed.v1'`,
		"the balances have every event": `select not exists (
			select from ledger_events e join followers f on (e.txid, e.position) > (f.txid, f.position) where f.name = 'balances')`,
		"its message is forgotten": `select count(*) = 0 from inbox where ordering_key = 'ch_good' or message_id = 'forged 8'`,
		"the outbox is empty":      `select count(*) = 0 from outbox`,
		"both keys are tombstones": `select count(*) = 2 from idempotency_keys where body is null`,
		// A type that only a newer program knows, and a webhook behind a dead letter, wait. Another
		// payload under a known id is a dead letter.
		"the forged messages are dead letters or wait": `
select count(*) filter (where status = 'dead') = 6
   and count(*) filter (where status = 'dead' and last_error = 'the id evt_1 is known with another payload') = 1
   and count(*) filter (where status = 'pending' and (message_id in ('forged 4', 'forged 6') or ordering_key = 'ch_unreadable')) = 4
  from inbox`,
	} {
		t.Run(what, func(t *testing.T) { testrun.Row(t, db, sql) })
	}
	testrun.True(t, "the figures count them", func() bool {
		shown := p.Get(t, "/metrics").Body
		return strings.Contains(shown, `payonce_inbox_messages{receiver="fulfillment",status="dead"}`)
	})
	report, err := audit.Run(t.Context(), db.Pool())
	if err != nil || report.OK {
		t.Errorf("the audit finds %+v: %v", report, err)
	}
	for _, c := range report.Checks {
		if c.Name == "one outcome per charge, and one capture if it succeeded" && c.Violated != 1 {
			t.Errorf("%+v", c)
		}
	}
}
