package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/migrations/version"
	"github.com/payonce/payonce/outbox"
)

// An event of another program, of a charge, at a version.
const insertOther = `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), $1, $2, $3, 1, 'acme', $4, '{}', now())`

func TestPlan_findsNothingInWhatThisVersionWrites(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	open := record(t, db, ledger.New("ch_open"), requested("17"))
	refunded := record(t, db, ledger.New("ch_refunded"), requested("18"), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_1", Amount: 1000, Currency: "USD"},
		domain.ChargeSucceeded{}, domain.RefundRequested{RefundID: "re_1", Amount: 100})
	done := deliver(t, db, "ch_done")
	b := &pgx.Batch{}
	for _, s := range []ledger.Stream{open, refunded} {
		payload := s.EncodeEnvelope(s.Head())
		testdb.Must(t, outbox.Append(b, outbox.Message{Topic: domain.Topic, ID: s.Head().ID.String(), Type: s.Head().Type, OrderingKey: s.ID, Payload: payload}))
	}
	fulfillment.Reread(b, ledger.Owner{StreamID: "ch_refunded", MerchantID: "acme"})
	for i, notified := range []bool{true, false} {
		fulfillment.Resend(b, fulfillment.Outcome{EventID: done.At(4).ID, ChargeID: done.ID, Notified: notified, Version: 4}, uuid.UUID{byte(i + 1)}, "ann")
	}
	testdb.Must(t, db.Commit(t.Context(), b))
	put(t, db, "ch_done", "done", "{}")
	testdb.Exec(t, db.Pool(), `insert into outbox_offsets values ('notification', 'inbox', '3', 7)`)
	want := plan{
		OK: true, Events: 11, Charges: 3, Open: 2, Messages: 6, Findings: []finding{},
		DatabaseSchema: version.Latest, ProgramSchema: version.Latest,
	}
	unread := cmpopts.IgnoreUnexported(plan{})
	testrun.Same(t, "the plan", want, decoded[plan](t, mustExecute(t, db, planCmd{JSON: true})), unread)
	// An older database is migrated first, a message that was received waits no more.
	testdb.Exec(t, db.Pool(), `delete from payonce_migrations where version_id = $1`, version.Latest)
	testdb.Exec(t, db.Pool(), `insert into outbox_offsets values ('charges', 'inbox', '9000000000', 7)`)
	text := "11 events of 3 charges, 2 of them open, and 4 waiting messages: 0 findings\n" +
		fmt.Sprintf("the schema has version %d, this program needs %d: run payonce migrate first\n", version.Latest-1, version.Latest)
	testrun.Same(t, "the plan for people", text, mustExecute(t, db, planCmd{}))
}

func TestPlan_countsWhatItDoesNotUnderstand(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	other := func(stream string, at int, name, data string) {
		t.Helper()
		testdb.Exec(t, db.Pool(), insertOther, stream, at, name, data)
	}
	// The charge lies on two pages.
	testdb.Exec(t, db.Pool(), `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_0' || lpad(n::text, 4, '0'), 1, 'charge.exploded.v9', 1, 'acme', '{}', '{}', now() from generate_series(1, 999) n`)
	record(t, db, ledger.New("ch_1"), requested("17"), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"})
	other("ch_1", 3, "payment.started.v1", `{"provider":"stripe","payment_intent":"pi_2"}`)
	record(t, db, ledger.New("ch_2"), requested("18"), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_3"},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_3", Amount: 1000, Currency: "USD"})
	other("ch_3", 1, "charge.requested.v1", `{"amount":"much"}`)
	other("ch_4", 1, "charge.requested.v1", `{"steps":["magic"]}`)
	deliver(t, db, "ch_5")
	other("ch_5", 6, "charge.exploded.v9", `{}`)
	for _, sql := range []string{
		`insert into outbox (topic, message_id, payload, metadata) values
		 ('charges', 'm1', '', '{"type":"charge.requested.v2","ordering_key":"ch_1"}'), ('charges', 'm2', '', '{"type":"charge.succeeded.v1"}'),
		 ('parcels', 'm3', '', '{"type":"charge.requested.v1","ordering_key":"ch_1"}'), ('charges', 'm4', '', '{}')`,
		`insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status) values
		 ('fulfillment', 'm5', 'ch_1', 'adyen.refund', '', '{}', '', 'pending'), ('parcels', 'm6', 'ch_1', 'charge.requested.v1', '', '{}', '', 'dead'),
		 ('notification', 'm7', 'ch_1', 'stripe.refund.updated', '', '{}', '', 'pending')`,
		`insert into outbox_offsets values ('notification', 'kafka', '3', 7)`,
		`insert into payonce_migrations (version_id, is_applied) values (99, true)`,
	} {
		testdb.Exec(t, db.Pool(), sql)
	}
	want := []finding{
		{"charge", "charge.requested.v1", 1, "ch_3: illegal event: the charge.requested.v1 at version 1 is void"},
		{"charge", "payment.started.v1", 1, "ch_1: illegal event: domain.PaymentStarted at version 3"},
		{"charge", "without a next step", 1, "ch_2 version 3: it has no outcome after its last step"},
		{"consumer group", "kafka", 1, "of the topic notification: no worker reads as this group"},
		{"event", "charge.exploded.v9", 1000, `ch_00001 version 1: decode "charge.exploded.v9": unknown event type`},
		{"event", "charge.requested.v1", 1, `ch_4 version 1: decode charge.requested.v1: step "magic": unknown event type`},
		{"message", "", 1, "m4: fulfillment does not know the type"},
		{"message", "adyen.refund", 1, "ch_1 m5: fulfillment does not know the type"},
		{"message", "charge.requested.v2", 1, "ch_1 m1: fulfillment does not know the type"},
		{"message", "charge.succeeded.v1", 1, "m2: fulfillment does not know the type"},
		{"message", "stripe.refund.updated", 1, "ch_1 m7: notification does not know the type"},
		{"receiver", "parcels", 1, "ch_1 m6: no worker has this receiver"},
		{"schema", "migration", 99 - version.Latest, fmt.Sprintf("this program knows those up to %d", version.Latest)},
		{"topic", "parcels", 1, "ch_1 m3: no worker has this topic"},
	}
	out, _, err := execute(t, db, planCmd{JSON: true})
	got := decoded[plan](t, out)
	if diff := cmp.Diff(want, got.Findings); diff != "" || !errors.Is(err, errFound) || got.OK || got.Events != 1013 || got.Open != 3 {
		t.Errorf("%v, %d events, %d open (-want +got):\n%s", err, got.Events, got.Open, diff)
	}
	out, _, err = execute(t, db, planCmd{})
	if !errors.Is(err, errFound) || strings.Count(out, "\n") != len(want)+3 || !strings.Contains(out, "unknown event type") {
		t.Errorf("%v, and it prints\n%s", err, out)
	}
	// All pages are of one snapshot.
	again, err := newPlan(t.Context(), db, func(events int64) {
		if events == planPage {
			other("ch_6", 1, "charge.exploded.v9", `{}`)
		}
	})
	testdb.Must(t, err)
	if again.Events != got.Events {
		t.Errorf("%d events, want %d", again.Events, got.Events)
	}
}
