package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// ordered appends a charge of acme with an order id, which has a status.
func ordered(t *testing.T, db *postgres.DB, id, order string, status domain.Status) {
	t.Helper()
	first := requested("acme")
	first.OrderID = order
	events := append([]domain.Event{first}, paid("acme", "pi_"+id)[1:]...)
	if status == domain.Pending {
		events = events[:2]
	}
	appended(t, db, ledger.New(id), cause("a"), events...)
}

func TestListCharges(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for i := range 9 {
		status := domain.Succeeded
		if i%3 == 0 {
			status = domain.Pending
		}
		ordered(t, db, fmt.Sprint("ch_", i), fmt.Sprint("order ", i%2), status)
	}
	appended(t, db, ledger.New("ch_other"), cause("a"), requested("globex"))
	project(t, db)

	for _, test := range []struct {
		name string
		ask  ledger.ListQuery
		want string // "…" where there are more
	}{
		{"all of a merchant's, newest first", ledger.ListQuery{}, "8 7 6 5 4 3 2 1 0"},
		{"a page", ledger.ListQuery{Limit: 2}, "8 7 …"},
		{"a page that leaves one", ledger.ListQuery{Limit: 8}, "8 7 6 5 4 3 2 1 …"},
		{"a page of all", ledger.ListQuery{Limit: 9}, "8 7 6 5 4 3 2 1 0"},
		{"the page after", ledger.ListQuery{Limit: 2, StartingAfter: "ch_7"}, "6 5 …"},
		{"nothing after the oldest", ledger.ListQuery{StartingAfter: "ch_0"}, ""},
		{"of an order", ledger.ListQuery{OrderID: "order 1"}, "7 5 3 1"},
		{"of a status", ledger.ListQuery{Status: domain.Pending}, "6 3 0"},
		{"of an order and a status", ledger.ListQuery{OrderID: "order 1", Status: domain.Pending}, "3"},
		{"filtered, after one of another status", ledger.ListQuery{Status: domain.Pending, StartingAfter: "ch_5"}, "3 0"},
		{"filtered, after one of another order", ledger.ListQuery{OrderID: "order 1", StartingAfter: "ch_4", Limit: 1}, "3 …"},
		{"of an unknown order", ledger.ListQuery{OrderID: "order"}, ""},
		{"of a status that no charge has", ledger.ListQuery{Status: domain.Refunded}, ""},
		{"of a merchant without charges", ledger.ListQuery{MerchantID: "initech"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ids, more := listed(t, db, test.ask)
			if more {
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
			_, err := ledger.ListCharges(t.Context(), db, ledger.ListQuery{MerchantID: "acme", StartingAfter: id, Limit: 1})
			if !errors.Is(err, ledger.ErrUnknownStartingAfter) {
				t.Errorf("%s: %v, want ErrUnknownStartingAfter", id, err)
			}
		}
	})
}

// TestListCharges_pagesAreStable requests a charge between two pages. All charges have the
// same time, so only the id tells them apart.
func TestListCharges_pagesAreStable(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.Reused(t)
	var want []string
	for _, s := range newStreams("ch_", 25) {
		ordered(t, db, s.ID, "order 1", domain.Pending)
		want = append(want, s.ID)
	}
	slices.Reverse(want)
	exec(t, db, `alter table ledger_events disable trigger ledger_events_append_only; update ledger_events set occurred_at = '2026-03-01'`)
	project(t, db)
	var got []string
	for after, more := "", true; more; after = got[len(got)-1] {
		var page []string
		page, more = listed(t, db, ledger.ListQuery{StartingAfter: after, Limit: 4})
		got = append(got, page...)
		ordered(t, db, fmt.Sprint("ch_new_", len(got)), "order 1", domain.Pending)
		project(t, db)
	}
	testrun.Same(t, "charges", want, got)
}

// TestReads_doNotGrowWithHistory counts the rows that reads touch beside 20,000 charges, as
// the owner and as the role of the api, whose policies must not keep the planner from the
// indexes. No table is analyzed, as after a restore. TestPlans_doNotDependOnStatistics in
// migrations has these statements too, and those that fold.
func TestReads_doNotGrowWithHistory(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes 20,000 charges")
	url := testdb.URL(t)
	owner := oneSession(t, url, "")
	fill(t, owner, 1, 20_000)
	ordered(t, owner, "ch_fresh", "order 1", domain.Pending) // the tail
	asks := map[string]ledger.ListQuery{
		"all": {}, "a page in the middle": {StartingAfter: "ch_010000"}, "by status": {Status: domain.Failed},
		"by order": {OrderID: "order 77"}, "by both": {OrderID: "order 77", Status: domain.Succeeded},
	}
	for _, role := range []postgres.Role{"", postgres.RoleAPI} {
		db := oneSession(t, url, role)
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
			rowsRead(t, owner)
			before := rowsRead(t, db)
			if err := read(); err != nil {
				t.Errorf("%q reads %s: %v", role, name, err)
			}
			if n := rowsRead(t, db) - before; n == 0 || n > 120 {
				t.Errorf("%q reads %s: it touches %d rows", role, name, n)
			}
		}
	}
}
