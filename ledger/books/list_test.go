package books_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

// ordered appends a charge of acme with an order id, which has a status.
func ordered(t *testing.T, db *postgres.DB, id, order string, status domain.Status) {
	t.Helper()
	first := requested("acme")
	first.OrderID, first.ReturnURL = order, "https://shop.example"
	events := append([]domain.Event{first}, paid("acme", "pi_"+id)[1:]...)
	refund := func(n int, amount int64) {
		name := fmt.Sprintf("re_%s_%d", id, n)
		events = append(events, domain.RefundRequested{RefundID: name, Amount: amount},
			domain.RefundSucceeded{RefundID: name, Provider: domain.Provider, ProviderRefund: "p" + name, Amount: amount})
	}
	switch status {
	case domain.Pending:
		events = events[:2]
	case domain.RequiresAction:
		events = append(events[:2], domain.PaymentActionRequired{URL: "https://bank.example", ExpiresAt: time.Now().Add(time.Hour)})
	case domain.Failed:
		events = append(events[:2], domain.PaymentDeclined{Failure: domain.Failure{Code: domain.CardDeclined}},
			domain.ChargeFailed{Failure: domain.Failure{Code: domain.CardDeclined}})
	case domain.PartiallyRefunded:
		refund(1, 300)
		refund(2, 300)
	case domain.Refunded: // by hand at the provider
		events = append(events, domain.RefundObserved{RefundID: "re_" + id, Provider: domain.Provider, ProviderRefund: "pre_" + id, Amount: 1000})
	case domain.Succeeded:
	}
	appended(t, db, ledger.New(id), cause("a"), events...)
	if s, err := ledger.Load(t.Context(), db, id); err != nil || s.Charge.Status != status {
		t.Fatalf("%s is %s, want %s: %v", id, s.Charge.Status, status, err)
	}
}

var statuses = []domain.Status{
	domain.Pending, domain.Succeeded, domain.Failed, domain.RequiresAction, domain.PartiallyRefunded, domain.Refunded,
}

// TestListCharges: a charge is in the list with its commit. The charge n has the n-th of statuses, and the
// order n % 2.
func TestListCharges(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for i := range 12 {
		ordered(t, db, fmt.Sprintf("ch_%02d", i), fmt.Sprint("order ", i%2), statuses[i%len(statuses)])
	}
	appended(t, db, ledger.New("ch_other"), cause("a"), requested("globex"))
	exec(t, db, testdb.UnreadableRequests)

	for _, test := range []struct {
		name string
		ask  books.ListQuery
		want string // "…" where there are more
	}{
		{"all of a merchant's, newest first", books.ListQuery{}, "11 10 09 08 07 06 05 04 03 02 01 00"},
		{"a page", books.ListQuery{Limit: 2}, "11 10 …"},
		{"a page that leaves one", books.ListQuery{Limit: 11}, "11 10 09 08 07 06 05 04 03 02 01 …"},
		{"a page of all", books.ListQuery{Limit: 12}, "11 10 09 08 07 06 05 04 03 02 01 00"},
		{"the page after", books.ListQuery{Limit: 2, StartingAfter: "ch_10"}, "09 08 …"},
		{"nothing after the oldest", books.ListQuery{StartingAfter: "ch_00"}, ""},
		{"of an order", books.ListQuery{OrderID: "order 1"}, "11 09 07 05 03 01"},
		{"of a status", books.ListQuery{Status: domain.Pending}, "06 00"},
		{"a page of a status", books.ListQuery{Status: domain.Succeeded, Limit: 1}, "07 …"},
		{"of one that failed", books.ListQuery{Status: domain.Failed}, "08 02"},
		{"of one that waits for its customer", books.ListQuery{Status: domain.RequiresAction}, "09 03"},
		{"of one whose events another one has too", books.ListQuery{Status: domain.PartiallyRefunded}, "10 04"},
		{"a page of one whose events another one has too", books.ListQuery{Status: domain.PartiallyRefunded, Limit: 1}, "10 …"},
		{"the page after that", books.ListQuery{Status: domain.PartiallyRefunded, Limit: 1, StartingAfter: "ch_10"}, "04 …"},
		{"an empty page at the end", books.ListQuery{Status: domain.PartiallyRefunded, Limit: 1, StartingAfter: "ch_04"}, ""},
		{"of one that was refunded", books.ListQuery{Status: domain.Refunded}, "11 05"},
		{"of an order and a status", books.ListQuery{OrderID: "order 0", Status: domain.Pending}, "06 00"},
		{"of an order and a status that it has not", books.ListQuery{OrderID: "order 1", Status: domain.Pending}, ""},
		{"filtered, after one of another status", books.ListQuery{Status: domain.Pending, StartingAfter: "ch_05"}, "00"},
		{"filtered, after one of another order", books.ListQuery{OrderID: "order 1", StartingAfter: "ch_04", Limit: 1}, "03 …"},
		{"of an unknown order", books.ListQuery{OrderID: "order"}, ""},
		{"of a merchant without charges", books.ListQuery{MerchantID: "initech"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ids, next := listed(t, db, test.ask)
			if next != "" {
				ids = append(ids, "…")
			}
			if got := strings.ReplaceAll(strings.Join(ids, " "), "ch_", ""); got != test.want {
				t.Errorf("listed %q, want %q", got, test.want)
			}
		})
	}

	t.Run("refuses a cursor that is not the merchant's", func(t *testing.T) {
		t.Parallel()
		for _, id := range []string{"ch_other", "ch_none", "8"} {
			_, err := books.ListCharges(t.Context(), db, books.ListQuery{MerchantID: "acme", StartingAfter: id, Limit: 1})
			if !errors.Is(err, books.ErrUnknownStartingAfter) {
				t.Errorf("%s: %v, want ErrUnknownStartingAfter", id, err)
			}
		}
	})
}

// TestListCharges_pagesAreStable requests a charge between two pages.
func TestListCharges_pagesAreStable(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	var want, got []string
	for i := range 9 {
		want = append(want, fmt.Sprint("ch_", i))
		appended(t, db, ledger.New(want[i]), cause("a"), requested("acme"))
	}
	slices.Reverse(want)
	for after, more := "", true; more; more = after != "" {
		var page []string
		page, after = listed(t, db, books.ListQuery{StartingAfter: after, Limit: 4})
		got = append(got, page...)
		appended(t, db, ledger.New(fmt.Sprint("ch_new_", len(got))), cause("a"), requested("acme"))
	}
	testrun.Same(t, "charges", want, got)
}

// TestListCharges_looksThroughABoundedPart: nothing marks a pending charge, so a page looks at 5,000 charges at most.
// TestPlans_doNotDependOnStatistics in migrations has the plans of all reads.
func TestListCharges_looksThroughABoundedPart(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	ordered(t, db, "ch_000000", "order 1", domain.Pending) // the oldest
	exec(t, db, `
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || lpad(n::text, 6, '0'), v, case v when 1 then 'charge.requested.v1' else 'charge.succeeded.v1' end,
       'acme', '{"merchant_id": "acme"}', '{}', now()
  from generate_series(1, 10000) n,
       generate_series(1, 2) v`)
	ordered(t, db, "ch_fresh", "order 1", domain.Pending)
	var pages []string
	for next, more := "", true; more; more = next != "" {
		var ids []string
		ids, next = listed(t, db, books.ListQuery{Status: domain.Pending, StartingAfter: next, Limit: 20})
		pages = append(pages, strings.Join(ids, " "))
	}
	testrun.Same(t, "pages of pending charges", []string{"ch_fresh", "", "ch_000000"}, pages)
}
