package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// requested is the first event of a charge of 1000 EUR.
func requested(merchant string) domain.ChargeRequested {
	return domain.ChargeRequested{Terms: domain.Terms{
		MerchantID: merchant, OrderID: "order 1", Money: domain.Money{Amount: 1000, Currency: "EUR"}, Fee: 30,
		PaymentMethod: "pm_card_visa", Metadata: map[string]string{"basket": "7"}, Notify: true,
	}, Steps: append(domain.Steps(), domain.Notification), Skipped: []string{domain.Inventory}}
}

// paid returns the events of a charge of 1000 EUR without items that succeeds.
func paid(merchant, intent string) []domain.Event {
	return []domain.Event{
		requested(merchant),
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: intent, Amount: 1000, Currency: "EUR", Fee: 30},
		domain.ChargeSucceeded{},
	}
}

// attempt is an event that a charge may have any number of times.
func attempt(status int) domain.Event {
	return domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: status}
}

func cause(id string) ledger.Cause {
	return ledger.Cause{CorrelationID: "req_1", CausationID: id, Actor: "test"}
}

// commit appends events to a stream and commits them.
func commit(ctx context.Context, db *postgres.DB, s ledger.Stream, c ledger.Cause, events ...domain.Event) (ledger.Stream, error) {
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, c, events...)
	if err != nil {
		return s, err
	}
	return next, db.Commit(ctx, b)
}

// appended is commit for a stream to which nothing else appends.
func appended(t *testing.T, db *postgres.DB, s ledger.Stream, c ledger.Cause, events ...domain.Event) ledger.Stream {
	t.Helper()
	s, err := commit(t.Context(), db, s, c, events...)
	testdb.Must(t, err)
	return s
}

// load loads the one stream of most tests.
func load(t *testing.T, q postgres.Querier) ledger.Stream {
	t.Helper()
	s, err := ledger.Load(t.Context(), q, "ch_1")
	testdb.Must(t, err)
	return s
}

// exec runs statements as the owner of the tables.
func exec(t *testing.T, db *postgres.DB, sql string) {
	t.Helper()
	testdb.Exec(t, db.Pool(), sql, pgx.QueryExecModeSimpleProtocol)
}

// oneSession opens a database with one session, which keeps its plans. No table is analyzed.
func oneSession(t *testing.T, url string, role postgres.Role) *postgres.DB {
	t.Helper()
	db := testdb.OpenAt(t, url, postgres.Options{MaxConns: 1, Role: role, StatementTimeout: time.Minute})
	if role == "" {
		for _, table := range []string{"ledger_events", "ledger_postings", "account_balances", "followers"} {
			exec(t, db, `alter table `+table+` set (autovacuum_enabled = off)`)
		}
	}
	return db
}

// rowsRead returns how many rows of tables and entries of indexes were read so far by
// sessions that have ended, and by db, which has one session.
func rowsRead(t *testing.T, db *postgres.DB) int64 {
	t.Helper()
	testdb.All[string](t, db, `select pg_stat_force_next_flush()::text`)
	return testdb.One[int64](t, db, `
select (select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_user_tables)::bigint
     + (select sum(idx_tup_read) from pg_stat_user_indexes)::bigint`)
}

// fill writes many charges, each with its outcome, of which one in a hundred failed. Its transactions are
// short: a long one would hold up the followers of all other tests on the server.
func fill(t *testing.T, db *postgres.DB, first, last int) {
	t.Helper()
	const step = 4000
	for ; first <= last; first += step {
		exec(t, db, fmt.Sprintf(`
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || lpad(n::text, 6, '0'), v,
       case when v = 1 then 'charge.requested.v1' when n %% 100 = 0 then 'charge.failed.v1' else 'charge.succeeded.v1' end,
       1, case n %% 2 when 0 then 'acme' else 'globex' end,
       case v when 1 then jsonb_build_object('merchant_id', case n %% 2 when 0 then 'acme' else 'globex' end, 'order_id', 'order ' || n %% 1000 / 10,
                                             'amount', 1, 'currency', 'EUR', 'steps', '["payment"]'::jsonb)
              else '{"code": "canceled"}' end, '{}', timestamptz '2026-01-01' + n * interval '1 second'
  from generate_series(%[1]d, %[2]d) n,
       generate_series(1, 2) v;
insert into ledger_postings
select 'ch_' || lpad(n::text, 6, '0'), 1, 1, case n %% 2 when 0 then 'acme' else 'globex' end, 'a:EUR', 'b:EUR', 1, 'EUR'
  from generate_series(%[1]d, %[2]d) n`, first, min(first+step-1, last)))
	}
	exec(t, db, `
update followers
   set txid = last.txid, position = last.position, highest = last.position
  from (select txid, position from ledger_events order by txid desc, position desc limit 1) last`)
}

// addUp adds up the balances until no event is left, and returns the number of events. It waits
// for the open transactions of other tests on the same server.
func addUp(t *testing.T, db *postgres.DB) (events int) {
	t.Helper()
	testrun.Progress(t, "the balances have caught up", func() (string, bool) {
		n, err := ledger.AddUp(t.Context(), db)
		testdb.Must(t, err)
		events += n
		left := testdb.One[int](t, db, `
select count(*)
  from ledger_events e
  join followers f on (e.txid, e.position) > (f.txid, f.position)
 where f.name = 'balances'`)
		return fmt.Sprintf("%d events are added, %d are left", events, left), left == 0
	})
	return events
}

// listed returns the ids of the charges of a page of acme's, unless q says otherwise, and the next page.
func listed(t *testing.T, db *postgres.DB, q ledger.ListQuery) (ids []string, next string) {
	t.Helper()
	if q.MerchantID == "" {
		q.MerchantID = "acme"
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	page, err := ledger.ListCharges(t.Context(), db, q)
	testdb.Must(t, err)
	for _, raw := range page.Data {
		var view domain.View
		testdb.Must(t, json.Unmarshal(raw, &view))
		ids = append(ids, view.ID)
	}
	if page.HasMore != (page.Next != "") {
		t.Errorf("a page has more: %t, next is %q", page.HasMore, page.Next)
	}
	return ids, page.Next
}

// checkBalances compares the stored sums with those of the postings.
func checkBalances(t *testing.T, db *postgres.DB) {
	t.Helper()
	want := testdb.All[string](t, db, `
select row(merchant_id, account, sum(debits), sum(credits))::text
  from (select merchant_id, debit as account, amount as debits, 0 as credits from ledger_postings
         union all
        select merchant_id, credit, 0, amount from ledger_postings) legs
 group by merchant_id, account
 order by merchant_id, account`)
	got := testdb.All[string](t, db, `
select row(merchant_id, account, debits, credits)::text
  from account_balances
 order by merchant_id, account`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("balances (-postings +stored):\n%s", diff)
	}
}
