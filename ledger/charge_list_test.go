package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// ordered is a charge of acme, of an order, that comes to a status.
func ordered(t *testing.T, db *postgres.DB, id, order string, status domain.Status) {
	t.Helper()
	events := paid("acme", "pi_"+id)
	first := opened("acme", 1000, "EUR")
	first.OrderID = order
	events[0] = first
	if status == domain.Pending {
		events = events[:2]
	}
	appended(t, db, ledger.New(id), because("a"), events...)
}

func TestListCharges(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for i := range 9 {
		status := domain.Succeeded
		if i%3 == 0 {
			status = domain.Pending
		}
		ordered(t, db, fmt.Sprintf("ch_%d", i), fmt.Sprintf("order %d", i%2), status)
	}
	appended(t, db, ledger.New("ch_other"), because("a"), opened("globex", 1, "EUR"))
	caughtUp(t, db)

	for _, test := range []struct {
		name string
		ask  ledger.ListQuery
		want string
	}{
		{"all of a merchant's, newest first", ledger.ListQuery{}, "8 7 6 5 4 3 2 1 0"},
		{"a page", ledger.ListQuery{Limit: 2}, "8 7"},
		{"the page after", ledger.ListQuery{Limit: 2, StartingAfter: "ch_7"}, "6 5"},
		{"nothing after the oldest", ledger.ListQuery{StartingAfter: "ch_0"}, ""},
		{"of an order", ledger.ListQuery{OrderID: "order 1"}, "7 5 3 1"},
		{"of a status", ledger.ListQuery{Status: domain.Pending}, "6 3 0"},
		{"of an order and a status", ledger.ListQuery{OrderID: "order 1", Status: domain.Pending}, "3"},
		{"filtered, after one of another status", ledger.ListQuery{Status: domain.Pending, StartingAfter: "ch_5"}, "3 0"},
		{"filtered, after one of another order", ledger.ListQuery{OrderID: "order 1", StartingAfter: "ch_4", Limit: 1}, "3"},
		{"of an unknown order", ledger.ListQuery{OrderID: "order"}, ""},
		{"of a status that no charge has", ledger.ListQuery{Status: domain.Refunded}, ""},
		{"of a merchant without charges", ledger.ListQuery{MerchantID: "nobody"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := strings.ReplaceAll(strings.Join(list(t, db, test.ask), " "), "ch_", "")
			if got != test.want {
				t.Errorf("listed %q, want %q", got, test.want)
			}
		})
	}

	t.Run("it says whether there is more", func(t *testing.T) {
		t.Parallel()
		for limit, more := range map[int]bool{8: true, 9: false, 10: false} {
			page, err := ledger.ListCharges(t.Context(), db, ledger.ListQuery{MerchantID: "acme", Limit: limit})
			if err != nil || page.HasMore != more || len(page.Data) != min(limit, 9) {
				t.Errorf("limit %d: %d charges, more %t, %v", limit, len(page.Data), page.HasMore, err)
			}
		}
	})

	t.Run("a cursor that is not the merchant's is refused", func(t *testing.T) {
		t.Parallel()
		for _, id := range []string{"ch_other", "ch_none", "8"} {
			_, err := ledger.ListCharges(t.Context(), db, ledger.ListQuery{MerchantID: "acme", StartingAfter: id, Limit: 1})
			if !errors.Is(err, ledger.ErrNoCursor) {
				t.Errorf("%s: %v, want ErrNoCursor", id, err)
			}
		}
	})
}

func TestPagesAreStableWhileChargesCome(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.Reused(t)
	var want []string
	for i := range 25 {
		id := fmt.Sprintf("ch_%02d", i)
		ordered(t, db, id, "order 1", domain.Pending)
		want = append([]string{id}, want...)
	}
	// All at the same time, so that nothing but the id tells them apart.
	exec(t, db, `alter table ledger_events disable trigger ledger_events_append_only; update ledger_events set occurred_at = '2026-03-01'`)
	caughtUp(t, db)
	var got []string
	for after, more := "", true; more; {
		page, err := ledger.ListCharges(t.Context(), db, ledger.ListQuery{MerchantID: "acme", StartingAfter: after, Limit: 4})
		if err != nil {
			t.Fatal(err)
		}
		for _, raw := range page.Data {
			var view domain.View
			if err := json.Unmarshal(raw, &view); err != nil {
				t.Fatal(err)
			}
			got = append(got, view.ID)
			after = view.ID
		}
		more = page.HasMore
		ordered(t, db, fmt.Sprintf("ch_new_%d", len(got)), "order 1", domain.Pending)
		caughtUp(t, db)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("charges (-want +got):\n%s", diff)
	}
}

// TestReadsDoNotGrowWithHistory counts the rows that a read touches in a list of
// 20,000 charges, as the owner and as the role of the api, whose policies must
// not keep the indexes from being used.
func TestReadsDoNotGrowWithHistory(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes 20,000 charges")
	url := testdb.URL(t)
	owner := reader(t, url, "")
	unattended(t, owner)
	fill(t, owner, 1, 20_000)
	ordered(t, owner, "ch_fresh", "order 1", domain.Pending) // the tail
	asks := map[string]ledger.ListQuery{
		"all": {}, "a page in the middle": {StartingAfter: "ch_010000"}, "by status": {Status: domain.Failed},
		"by order": {OrderID: "order 77"}, "by both": {OrderID: "order 77", Status: domain.Succeeded},
	}
	for _, role := range []postgres.Role{"", postgres.RoleAPI} {
		db := reader(t, url, role)
		acme := db.Tenant("acme")
		reads := map[string]func() error{
			"balances": func() error { _, err := ledger.ReadBalances(t.Context(), acme, "acme"); return err },
		}
		for name, q := range asks {
			q.MerchantID, q.Limit = "acme", 20
			reads[name] = func() error {
				page, err := ledger.ListCharges(t.Context(), acme, q)
				if err == nil && len(page.Data) != 20 {
					err = fmt.Errorf("%d charges", len(page.Data))
				}
				return err
			}
		}
		for name, read := range reads {
			touched(t, owner)
			before := touched(t, db)
			if err := read(); err != nil {
				t.Errorf("%q reads %s: %v", role, name, err)
			}
			if n := touched(t, db) - before; n == 0 || n > 120 {
				t.Errorf("%q reads %s: %d rows were touched", role, name, n)
			}
		}
	}
}

func reader(t *testing.T, url string, role postgres.Role) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(t.Context(), url, postgres.Options{
		AllowUnsafeDurability: true, AllowPlaintext: true, MaxConns: 1, Role: role, StatementTimeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// unattended keeps the server from analyzing tables by itself, at some moment.
func unattended(t *testing.T, db *postgres.DB) {
	t.Helper()
	for _, table := range []string{"ledger_events", "ledger_postings", "charge_list", "account_balances", "projections"} {
		exec(t, db, `alter table `+table+` set (autovacuum_enabled = off)`)
	}
}

// fill makes the projections of many charges, and the ledger behind them. It takes
// short transactions: a long one would hold up the projections of all other tests
// on the server.
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

// touched is how many rows of tables and indexes were read so far, by sessions that
// have ended and by db, which has one.
func touched(t *testing.T, db *postgres.DB) int64 {
	t.Helper()
	collect[string](t, db, `select pg_stat_force_next_flush()::text`)
	return collect[int64](t, db, `
select (select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_user_tables)::bigint
     + (select sum(idx_tup_read) from pg_stat_user_indexes)::bigint`)[0]
}
