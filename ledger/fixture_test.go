package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

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
