package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

var mug = ArticleFlags{Merchant: "acme", SKU: "mug"}

// stocked has five mugs of acme, of which charges have reserved some.
func stocked(t *testing.T, reserved int) *postgres.DB {
	t.Helper()
	db := opened(t, testdb.URL(t), postgres.Options{})
	mustExecute(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_demo", SKU: map[string]int64{"mug": 5, "cap": 1}})
	testdb.Exec(t, db.Pool(), `update stock set available = available - $1, reserved = reserved + $1 where sku = 'mug'`, reserved)
	return db
}

func mugs(t *testing.T, db *postgres.DB) (s explainedStock) {
	t.Helper()
	show := stockShowCmd{mug}
	show.JSON = true
	return decoded[explainedStock](t, mustExecute(t, db, show))
}

func TestStock_everyUnitIsExplained(t *testing.T) {
	t.Parallel()
	db := stocked(t, 0)
	mustExecute(t, db, stockAddCmd{ArticleFlags: mug, Quantity: 10, Reason: "delivery", ID: "4711"})
	mustExecute(t, db, stockSetCmd{ArticleFlags: mug, Quantity: 12, Reason: "counted"})
	mustExecute(t, db, stockSetCmd{ArticleFlags: mug, Quantity: 12, Reason: "counted again"}) // changes nothing
	out := mustExecute(t, db, stockAddCmd{ArticleFlags: mug, Quantity: -2, Reason: "broken"})
	if want := "acme      mug  10       0         10         0"; !strings.Contains(out, want) {
		t.Errorf("it prints\n%s\nwant %s", out, want)
	}
	got := mugs(t, db)
	for i := range got.Supplies {
		if s := &got.Supplies[i]; s.Actor != operator() || s.Login == "" || s.At.IsZero() {
			t.Errorf("a supply is by %q (%q) at %s", s.Actor, s.Login, s.At)
		}
		got.Supplies[i] = audit.Supply{Change: got.Supplies[i].Change, Supplied: got.Supplies[i].Supplied, Reason: got.Supplies[i].Reason, ID: got.Supplies[i].ID}
	}
	want := explainedStock{fulfillment.Stock{Merchant: "acme", SKU: "mug", OnHand: 10, Available: 10}, []audit.Supply{
		{Change: 5, Supplied: 5},
		{Change: 10, Supplied: 15, Reason: "delivery", ID: "4711"},
		{Change: -3, Supplied: 12, Reason: "counted"},
		{Change: -2, Supplied: 10, Reason: "broken"},
	}}
	testrun.Same(t, "the stock", want, got)
	if text := mustExecute(t, db, stockShowCmd{mug}); !strings.Contains(text, "-3") || !strings.Contains(text, "4711  delivery") {
		t.Errorf("for people it shows\n%s", text)
	}
	list := dataOf[fulfillment.Stock](t, mustExecute(t, db, stockListCmd{Merchant: "acme", JSON: true}))
	if len(list) != 2 || list[1] != got.Stock {
		t.Errorf("the list is %+v", list)
	}
	testdb.Exec(t, db.Pool(), `delete from stock where sku = 'cap'`) // by hand
	mustExecute(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_demo", SKU: map[string]int64{"cap": 7}})
	testdb.Exec(t, db.Pool(), `delete from stock where sku = 'cap'`)
	gone, err := audit.ListSupplies(t.Context(), db, "acme", "cap")
	if err != nil || len(gone) != 4 || gone[1].Change != -1 || gone[3].Change != -7 || gone[3].Supplied != 0 {
		t.Errorf("of a deleted article there is %+v, %v", gone, err)
	}
	report, err := audit.Run(t.Context(), db)
	if err != nil || !report.OK {
		t.Errorf("the audit says %+v, %v", report, err)
	}
}

func TestStock_seedSaysWhatItKeeps(t *testing.T) {
	t.Parallel()
	db := stocked(t, 1)
	_, said, err := execute(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_demo", FeeBasisPoints: 0, SKU: map[string]int64{"mug": 50, "sock": 1}})
	if err != nil || !strings.Contains(said, "acme has mug already") || strings.Contains(said, "sock") {
		t.Errorf("it says %q, %v", said, err)
	}
	if got := mugs(t, db); got.OnHand != 5 || got.Reserved != 1 || len(got.Supplies) != 1 {
		t.Errorf("the stock is %+v", got)
	}
}

func TestStock_refuses(t *testing.T) {
	t.Parallel()
	db := stocked(t, 3)
	held := `charges have reserved 3 of the 5 units of "mug" on hand`
	wantRefused(t, db, stockSetCmd{ArticleFlags: mug, Quantity: 2, Reason: "r"}, held)
	wantRefused(t, db, stockAddCmd{ArticleFlags: mug, Quantity: -3, Reason: "r"}, held)
	for _, unknown := range []ArticleFlags{{Merchant: "acme", SKU: "mugs"}, {Merchant: "globex", SKU: "mug"}} {
		wantRefused(t, db, stockSetCmd{ArticleFlags: unknown, Quantity: 2, Reason: "r"}, "has no article")
		wantRefused(t, db, stockAddCmd{ArticleFlags: unknown, Quantity: 2, Reason: "r", ID: "1"}, "has no article")
		wantRefused(t, db, stockShowCmd{unknown}, "has no article")
	}
	mustExecute(t, db, stockSetCmd{ArticleFlags: mug, Quantity: 3, Reason: "r"})
	if got := mugs(t, db); got.OnHand != 3 || got.Available != 0 || len(got.Supplies) != 2 {
		t.Errorf("the stock is %+v", got)
	}
}

// The first command commits, and each of the others is one whose answer was lost.
func TestStock_addsOnceUnderAnID(t *testing.T) {
	t.Parallel()
	db := stocked(t, 0)
	delivery := stockAddCmd{ArticleFlags: mug, Quantity: 10, Reason: "delivery", ID: "4711"}
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			out, _, err := execute(t, db, delivery)
			if err == nil && !strings.Contains(out, "15") {
				err = errors.New(out)
			}
			return err
		})
	}
	testdb.Must(t, g.Wait())
	if got := mugs(t, db); got.OnHand != 15 || len(got.Supplies) != 2 {
		t.Errorf("the stock is %+v", got)
	}
	_, said, err := execute(t, db, delivery)
	if err != nil || !strings.Contains(said, "4711 was added before") {
		t.Errorf("it says %q, %v", said, err)
	}
	other := delivery
	other.Quantity = 11
	wantRefused(t, db, other, "--id 4711 is that of a change by +10")
	other.SKU = "cap" // a delivery may have several articles
	mustExecute(t, db, other)
}

// Charges reserve while an operator counts.
func TestStock_setBesideReservations(t *testing.T) {
	t.Parallel()
	db := stocked(t, 0)
	var g errgroup.Group
	for _, quantity := range slices.Repeat([]int64{100, 200}, 20) {
		g.Go(func() error {
			_, _, err := execute(t, db, stockSetCmd{ArticleFlags: mug, Quantity: quantity, Reason: "counted"})
			return err
		})
		g.Go(func() error {
			_, err := db.Pool().Exec(t.Context(), `update stock set available = available - 1, reserved = reserved + 1 where sku = 'mug' and available > 0`)
			return err
		})
	}
	testdb.Must(t, g.Wait())
	mustExecute(t, db, stockSetCmd{ArticleFlags: mug, Quantity: 60, Reason: "counted"})
	got := mugs(t, db)
	if got.OnHand != 60 || got.Reserved == 0 || got.Supplies[len(got.Supplies)-1].Supplied != 60 {
		t.Errorf("the stock is %+v", got)
	}
}
