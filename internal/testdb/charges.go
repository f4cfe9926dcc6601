package testdb

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// Requested is the first event of a charge of 1000 EUR.
func Requested(merchant string) domain.ChargeRequested {
	return domain.ChargeRequested{Terms: domain.Terms{
		MerchantID: merchant, OrderID: "order 1", Money: domain.Money{Amount: 1000, Currency: "EUR"}, Fee: 30,
		PaymentMethod: "pm_card_visa", Metadata: map[string]string{"basket": "7"}, Notify: true,
	}, Steps: append(domain.Steps(), domain.Notification), Skipped: []string{domain.Inventory}}
}

// Paid returns the events of a charge of 1000 EUR without items that succeeds.
func Paid(merchant, intent string) []domain.Event {
	return []domain.Event{
		Requested(merchant),
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: intent, Amount: 1000, Currency: "EUR", Fee: 30},
		domain.ChargeSucceeded{},
	}
}

// Attempt is an event that a charge may have any number of times.
func Attempt(status int) domain.Event {
	return domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: status}
}

// Cause is the cause of an event of a test.
func Cause(id string) ledger.Cause {
	return ledger.Cause{CorrelationID: "req_1", CausationID: id, Actor: "test"}
}

// Append appends events to a stream and commits them.
func Append(ctx context.Context, db *postgres.DB, s ledger.Stream, c ledger.Cause, events ...domain.Event) (ledger.Stream, error) {
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, c, events...)
	if err != nil {
		return s, err
	}
	return next, db.Commit(ctx, b)
}

// Appended is Append for a stream to which nothing else appends.
func Appended(tb testing.TB, db *postgres.DB, s ledger.Stream, c ledger.Cause, events ...domain.Event) ledger.Stream {
	tb.Helper()
	s, err := Append(tb.Context(), db, s, c, events...)
	Must(tb, err)
	return s
}

// CatchUp lets a follower read on until it has every event. It waits for the open transactions of other
// tests on the server.
func CatchUp(tb testing.TB, db *postgres.DB, follower string, read func() error) {
	tb.Helper()
	testrun.Progress(tb, "the follower "+follower+" has caught up", func() (string, bool) {
		Must(tb, read())
		left := One[int](tb, db, `
select count(*)
  from ledger_events e
  join followers f on (e.txid, e.position) > (f.txid, f.position)
 where f.name = $1`, follower)
		return fmt.Sprintf("%d events are left", left), left == 0
	})
}

// UnreadableRequests are charges that no program of this version can read, and one whose request is void.
const UnreadableRequests = `
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_05x', 1, 'charge.moon_landed.v1', 'acme', '{}', '{}', now()),
       (gen_random_uuid(), 'ch_06x', 1, 'charge.requested.v1',   'acme', '{"steps":["magic"]}', '{}', now()),
       (gen_random_uuid(), 'ch_07x', 1, 'charge.requested.v1',   'acme', '{"amount":0}', '{}', now())`

// UnreadableOutcomes are failures of charges that no program of this version can read: one with an
// event of a newer program, and one that is too long to hold.
const UnreadableOutcomes = `
insert into ledger_events (event_id, stream_id, version, type, webhook, merchant_id, data, metadata, occurred_at)
select coalesce(id, gen_random_uuid()), stream_id, version, type, type like 'charge.failed.v%', 'acme', data::jsonb, '{}'::jsonb, now()
  from (values ('ch_newer', 1, 'charge.requested.v1', '{"merchant_id":"acme","amount":1}', null::uuid),
               ('ch_newer', 2, 'charge.exploded.v1', '{}', null),
               ('ch_newer', 3, 'charge.failed.v1', '{}', '00000000-0000-4000-8000-000000000001'),
               ('ch_long', 1, 'charge.requested.v1', '{"merchant_id":"acme","amount":1}', null),
               ('ch_long', 19, 'charge.failed.v1', '{}', '00000000-0000-4000-8000-000000000002')) e(stream_id, version, type, data, id)
 union all
select gen_random_uuid(), 'ch_long', v, 'payment.attempt_failed.v1', false, 'acme', jsonb_build_object('x', repeat('x', 1048000)), '{}', now()
  from generate_series(2, 18) v`
