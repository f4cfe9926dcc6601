package books_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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
	exec(t, db.Pool(), testdb.UnreadableRequests)

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
	testrun.Long(t, "it stores thousands of charges")
	t.Parallel()
	db := testdb.Reused(t)
	ordered(t, db, "ch_000000", "order 1", domain.Pending) // the oldest
	exec(t, db.Pool(), `
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

// TestFollow_storesEachEventOnce: several follow under one name, some of their work fails, and rivals append to
// the streams: they load before the first write of their commit, so the order is that of the versions.
func TestFollow_storesEachEventOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	exec(t, db.Pool(), `create table followed (n bigint generated always as identity, stream_id text, version int); insert into followers (name) values ('test')`)
	failed := errors.New("the work fails")
	store := func(ctx context.Context, tx pgx.Tx, events []books.Followed) error {
		for _, e := range events {
			if _, err := tx.Exec(ctx, `insert into followed (stream_id, version) values ($1, $2)`, e.StreamID, e.Version); err != nil {
				return err
			}
		}
		return nil
	}
	some := func() error {
		n, err := books.Follow(t.Context(), db, "test", 5, func(ctx context.Context, tx pgx.Tx, events []books.Followed) error {
			if err := store(ctx, tx, events); err != nil || events[len(events)-1].Position%7 > 0 {
				return err
			}
			return failed
		})
		if err != nil && !errors.Is(err, failed) || n > 5 {
			return fmt.Errorf("%d events: %w", n, err)
		}
		return nil
	}
	const streams, each = 4, 40
	for i := range streams {
		id := fmt.Sprint("ch_", i)
		appended(t, db, ledger.New(id), cause("a"), paid("acme", "pi_"+id)[:2]...)
	}
	besides(t, func(w int) error {
		for i := 0; i < each; {
			s, err := ledger.Load(t.Context(), db, fmt.Sprint("ch_", i%streams))
			if err == nil {
				_, err = commit(t.Context(), db, s, cause(fmt.Sprint(w, i)), attempt(500+i))
			}
			if err == nil {
				i++
			} else if !ledger.IsConflict(err) {
				return err
			}
		}
		return nil
	}, some, some, some)
	testrun.Progress(t, "every event is followed", func() (string, bool) {
		_, err := books.Follow(t.Context(), db, "test", 100, store)
		testdb.Must(t, err)
		n := testdb.One[int](t, db, `select count(*) from followed`)
		return strconv.Itoa(n), n == streams*2+3*each
	})
	testrun.Same(t, "events twice, or before the one before them", []string{}, testdb.All[string](t, db, `
select stream_id from (select stream_id, version, row_number() over (partition by stream_id order by n) as place from followed) f where version <> place`))
	testrun.Same(t, "the highest position", testdb.One[int64](t, db, `select max(position) from ledger_events`),
		testdb.One[int64](t, db, `select highest from followers where name = 'test'`))
}

// TestFollowers_skipNothingThatCommitsLate: a transaction that is older than one which is committed delays the
// feed and the sums, and neither the list nor the balances.
func TestFollowers_skipNothingThatCommitsLate(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	next := ""
	for range 50 {
		if n, err := books.AddUp(t.Context(), db); n != 0 || err != nil {
			t.Fatalf("%d events of an empty ledger were added: %v", n, err)
		}
	}
	late, err := db.Pool().Begin(t.Context())
	testdb.Must(t, err)
	b := &pgx.Batch{}
	_, err = ledger.Append(b, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	testdb.Must(t, err)
	testdb.Must(t, late.SendBatch(t.Context(), b).Close())
	appended(t, db, ledger.New("ch_2"), cause("a"), paid("acme", "pi_2")...)
	paidOut := func() int64 { return balancesOf(t, db, "acme").Data[2].Credits }
	if n, err := books.AddUp(t.Context(), db); n != 0 || err != nil {
		t.Errorf("%d events were added before an older transaction had ended: %v", n, err)
	}
	testrun.Same(t, "the feed meanwhile", []string(nil), follow(t, db, &next, 10, nil))
	ids, _ := listed(t, db, books.ListQuery{})
	testrun.Same(t, "listed meanwhile", []string{"ch_2"}, ids)
	testrun.Same(t, "credits meanwhile", int64(970), paidOut())
	testdb.Must(t, late.Commit(t.Context()))
	testrun.Same(t, "the feed", []string{"ch_1 charge.succeeded", "ch_2 charge.succeeded"}, followAll(t, db, &next, 10, 2))
	testrun.Same(t, "events that were added", 8, addUp(t, db))
	testrun.Same(t, "credits", int64(1940), paidOut())
}

// follow reads acme's feed page by page from a cursor to its end, and adds what it reads to ids.
func follow(t *testing.T, q postgres.Querier, next *string, limit int, ids []string) []string {
	t.Helper()
	for more := true; more; {
		page, err := books.ReadFeed(t.Context(), q, "acme", *next, limit)
		testdb.Must(t, err)
		for _, e := range page.Unreadable {
			ids = append(ids, fmt.Sprintf("%s %d of %s is unreadable: %t, %s", e.Type, e.Version, e.ChargeID, e.Err != nil, e.ID[34:]))
		}
		for _, raw := range page.Data {
			var entry struct {
				ID   string
				Type string
				Data struct{ ID string }
			}
			testdb.Must(t, json.Unmarshal(raw, &entry))
			ids = append(ids, entry.Data.ID+" "+entry.Type)
		}
		*next, more = page.Next, page.HasMore
		if passed := len(page.Data) + len(page.Unreadable); passed > limit || more && passed == 0 {
			t.Fatalf("a page of %d entries passes over %d, more: %t", limit, passed, more)
		}
	}
	return ids
}

// followAll follows until so many entries came. It waits for the open transactions of other tests.
func followAll(t *testing.T, q postgres.Querier, next *string, limit, entries int) (ids []string) {
	t.Helper()
	testrun.Progress(t, fmt.Sprintf("the feed has %d entries", entries), func() (string, bool) {
		ids = follow(t, q, next, limit, ids)
		return strings.Join(ids, ", "), len(ids) >= entries
	})
	return ids
}

// TestReadFeed: a charge that cannot be read holds up no other, its events are named as far as their rows tell, and the
// list leaves it out.
func TestReadFeed(t *testing.T) {
	testrun.Long(t, "it reads many pages")
	t.Parallel()
	db := testdb.Open(t)
	api := testdb.As(t, db, postgres.RoleAPI).Tenant("acme")
	refund := []domain.Event{
		domain.RefundRequested{RefundID: "re_1", Amount: 600},
		domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600},
	}
	for i := range 4 {
		id := fmt.Sprint("ch_", i)
		appended(t, db, ledger.New(id), cause("a"), paid("acme", "pi_"+id)...)
	}
	appended(t, db, ledger.New("ch_other"), cause("a"), paid("globex", "pi_other")...)
	s, err := ledger.Load(t.Context(), db, "ch_1")
	testdb.Must(t, err)
	exec(t, db.Pool(), testdb.UnreadableOutcomes)
	appended(t, db, s, cause("b"), refund...)
	want := []string{
		"ch_0 charge.succeeded", "ch_1 charge.succeeded", "ch_2 charge.succeeded", "ch_3 charge.succeeded", "re_1 refund.succeeded",
		"charge.failed 3 of ch_newer is unreadable: true, 01", "charge.failed 19 of ch_long is unreadable: true, 02",
	}

	for _, limit := range []int{1, 2, 4, 5, 100} {
		next := ""
		got := followAll(t, api, &next, limit, len(want))
		slices.SortStableFunc(got, func(a, b string) int { return strings.Count(a, "unreadable") - strings.Count(b, "unreadable") })
		testrun.Same(t, fmt.Sprintf("the outcomes in pages of %d", limit), want, got)
	}
	listedIDs, _ := listed(t, db, books.ListQuery{})
	testrun.Same(t, "listed", []string{"ch_3", "ch_2", "ch_1", "ch_0"}, listedIDs)

	next := ""
	follow(t, api, &next, 100, nil)
	foreign := testdb.One[string](t, db, `select event_id::text from ledger_events where stream_id = 'ch_other' and version = 4`)
	for _, after := range []string{
		"_", next[1:], next + "0", strings.ToUpper(next), "{" + next + "}", "x", foreign, "00000000-0000-0000-0000-000000000000", "\x00",
	} {
		if page, err := books.ReadFeed(t.Context(), api, "acme", after, 10); !errors.Is(err, books.ErrUnknownCursor) {
			t.Errorf("after %q: %v, %v", after, page, err)
		}
	}
}
