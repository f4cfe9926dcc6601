package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// requested is the first event of a charge of 1000 EUR.
func requested(merchant string) domain.ChargeRequested {
	return domain.ChargeRequested{
		MerchantID: merchant, OrderID: "order 1", Amount: 1000, Currency: "EUR", Fee: 30,
		PaymentMethod: "pm_card_visa", Metadata: map[string]string{"basket": "7"}, Notify: true,
		Steps: append(domain.Steps(), domain.Notification), Skipped: []string{domain.Inventory},
	}
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

// appendTo appends an event to each of the streams in one commit.
func appendTo(t *testing.T, db *postgres.DB, streams []ledger.Stream, e domain.Event) {
	t.Helper()
	b := &pgx.Batch{}
	for i, s := range streams {
		next, err := ledger.Append(b, s, cause(strconv.Itoa(len(s.Events))), e)
		testdb.Must(t, err)
		streams[i] = next
	}
	testdb.Must(t, db.Commit(t.Context(), b))
}

// newStreams returns n streams without events.
func newStreams(prefix string, n int) []ledger.Stream {
	streams := make([]ledger.Stream, n)
	for i := range streams {
		streams[i] = ledger.New(fmt.Sprintf("%s%03d", prefix, i))
	}
	return streams
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

// oneSession opens a database with one session, which keeps its plans. No table is analyzed
// unless the test does it.
func oneSession(t *testing.T, url string, role postgres.Role) *postgres.DB {
	t.Helper()
	db := testdb.OpenAt(t, url, postgres.Options{
		MaxConns: 1, Role: role, StatementTimeout: time.Minute,
	})
	if role == "" {
		neverAnalyze(t, db)
	}
	return db
}

func neverAnalyze(t *testing.T, db *postgres.DB) {
	t.Helper()
	for _, table := range []string{"ledger_events", "ledger_postings", "charge_list", "account_balances", "projections"} {
		exec(t, db, `alter table `+table+` set (autovacuum_enabled = off)`)
	}
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

// fill writes many charges and their projections. Its transactions are short: a long one
// would hold up the projections of all other tests on the server.
func fill(t *testing.T, db *postgres.DB, first, last int) {
	t.Helper()
	const step = 4000
	for ; first <= last; first += step {
		exec(t, db, fmt.Sprintf(`
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || lpad(n::text, 6, '0'), 1, 'charge.requested.v1', 1, case n %% 2 when 0 then 'acme' else 'globex' end,
       '{}', '{}', timestamptz '2026-01-01' + n * interval '1 second'
  from generate_series(%[1]d, %[2]d) n;
insert into ledger_postings
select 'ch_' || lpad(n::text, 6, '0'), 1, 1, case n %% 2 when 0 then 'acme' else 'globex' end, 'a:EUR', 'b:EUR', 1, 'EUR'
  from generate_series(%[1]d, %[2]d) n;
insert into charge_list
select 1, 'ch_' || lpad(n::text, 6, '0'), case n %% 2 when 0 then 'acme' else 'globex' end, 'order ' || n %% 1000 / 10,
       case n %% 100 when 0 then 'failed' else 'succeeded' end, timestamptz '2026-01-01' + n * interval '1 second', 1, '{}'
  from generate_series(%[1]d, %[2]d) n`, first, min(first+step-1, last)))
	}
	exec(t, db, `
update projections
   set txid = last.txid, position = last.position, highest = last.position
  from (select txid, position from ledger_events order by txid desc, position desc limit 1) last`)
}

// project projects until everything is folded, and returns the number of events. It waits
// for the open transactions of other tests on the same server.
func project(t *testing.T, db *postgres.DB) (events int) {
	t.Helper()
	await.Progress(t, "the projections have caught up", func() (string, bool) {
		n, err := ledger.Project(t.Context(), db)
		testdb.Must(t, err)
		events += n
		left := testdb.One[int](t, db, `
select count(*)
  from ledger_events e
  join projections p on (e.txid, e.position) > (p.txid, p.position)
 where p.state = 'live'`)
		return fmt.Sprintf("%d events are folded, %d are left", events, left), left == 0
	})
	return events
}

// projectPage projects until a page is folded or refused.
func projectPage(t *testing.T, db *postgres.DB) (events int, err error) {
	t.Helper()
	await.True(t, "a page is folded or refused", func() bool {
		events, err = ledger.Project(t.Context(), db)
		return events > 0 || err != nil
	})
	return events, err
}

// listed returns the ids of the charges of a page of acme's, unless q says otherwise, and
// whether there are more.
func listed(t *testing.T, db *postgres.DB, q ledger.ListQuery) (ids []string, more bool) {
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
	return ids, page.HasMore
}

// projections returns every live row of both projections, and the checkpoint.
func projections(t *testing.T, db *postgres.DB) []string {
	t.Helper()
	return testdb.All[string](t, db, `
select row(p.txid, p.position, p.highest)::text as found from projections p where state = 'live'
 union all
select row(c.charge_id, c.merchant_id, c.order_id, c.status, c.created_at, c.version, c.view::text)::text
  from charge_list c join projections p using (generation) where p.state = 'live'
 union all
select row(a.merchant_id, a.account, a.debits, a.credits)::text
  from account_balances a join projections p using (generation) where p.state = 'live'
 order by found`)
}

// checkBalances compares the projected balances with the sums of the postings.
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
select row(a.merchant_id, a.account, a.debits, a.credits)::text
  from account_balances a join projections p using (generation)
 where p.state = 'live'
 order by a.merchant_id, a.account`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("balances (-postings +projected):\n%s", diff)
	}
}
