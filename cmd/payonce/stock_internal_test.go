package main

import (
	"errors"
	"fmt"
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

// stocked has five mugs of acme, of which charges have reserved some.
func stocked(t *testing.T, reserved int) *postgres.DB {
	t.Helper()
	db := opened(t, testdb.URL(t), postgres.Options{})
	mustExecute(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_demo", SKU: map[string]int64{"mug": 5, "cap": 1}})
	testdb.Exec(t, db.Pool(), `update stock set available = available - $1, reserved = reserved + $1 where sku = 'mug'`, reserved)
	return db
}

// add adds mugs of acme.
func add(quantity int64, id string) stockAddCmd {
	return stockAddCmd{Merchant: "acme", SKU: "mug", Quantity: quantity, Reason: "r", ID: id}
}

// mugs returns the stock, and how many changes of it are recorded.
func mugs(t *testing.T, db *postgres.DB) (s fulfillment.Stock, changes int) {
	t.Helper()
	for _, s = range dataOf[fulfillment.Stock](t, mustExecute(t, db, stockListCmd{Merchant: "acme", JSON: true})) {
		if s.SKU == "mug" {
			break
		}
	}
	return s, testdb.One[int](t, db, `select count(*)::int from operator_actions where action = 'stock supply' and subject = 'mug'`)
}

func TestStock_everyUnitIsExplained(t *testing.T) {
	t.Parallel()
	db := stocked(t, 0)
	mustExecute(t, db, add(10, "4711"))
	out := mustExecute(t, db, add(-2, ""))
	if want := "acme      mug  13       0         13         0"; !strings.Contains(out, want) {
		t.Errorf("it prints\n%s\nwant %s", out, want)
	}
	testdb.Exec(t, db.Pool(), `delete from stock where sku = 'cap'`) // by hand
	mustExecute(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_demo", SKU: map[string]int64{"cap": 7}})
	var got []string
	for _, a := range slices.Backward(dataOf[audit.Action](t, mustExecute(t, db, actionsCmd{Merchant: "acme", Limit: 100, JSON: true}))) {
		if a.Action != "stock supply" {
			continue
		}
		if a.Actor != operator() || a.Login == "" || a.At.IsZero() {
			t.Errorf("a supply is by %q (%q) at %s", a.Actor, a.Login, a.At)
		}
		before, after := decoded[map[string]any](t, string(a.Before)), decoded[map[string]any](t, string(a.After))
		got = append(got, fmt.Sprint(a.Subject, " ", before["supplied"], " ", after["supplied"], " ", after["reason"], " ", after["id"]))
	}
	want := []string{
		"cap <nil> 1 <nil> <nil>", "mug <nil> 5 <nil> <nil>",
		"mug 5 15 r 4711", "mug 15 13 r <nil>",
		"cap 1 <nil> <nil> <nil>", "cap <nil> 7 <nil> <nil>",
	}
	testrun.Same(t, "the changes", want, got)
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
	if got, changes := mugs(t, db); got.OnHand != 5 || got.Reserved != 1 || changes != 1 {
		t.Errorf("the stock is %+v after %d changes", got, changes)
	}
}

func TestStock_refuses(t *testing.T) {
	t.Parallel()
	db := stocked(t, 3)
	wantRefused(t, db, add(-3, ""), `charges have reserved 3 of the 5 units of "mug" on hand`)
	for _, unknown := range []stockAddCmd{{Merchant: "acme", SKU: "mugs"}, {Merchant: "globex", SKU: "mug"}} {
		unknown.Quantity, unknown.Reason, unknown.ID = 2, "r", "1"
		wantRefused(t, db, unknown, "has no article")
	}
	mustExecute(t, db, add(-2, ""))
	if got, changes := mugs(t, db); got.OnHand != 3 || got.Available != 0 || changes != 2 {
		t.Errorf("the stock is %+v after %d changes", got, changes)
	}
}

// The first command commits, and each of the others is one whose answer was lost.
func TestStock_addsOnceUnderAnID(t *testing.T) {
	t.Parallel()
	db := stocked(t, 0)
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			out, _, err := execute(t, db, add(10, "4711"))
			if err == nil && !strings.Contains(out, "15") {
				err = errors.New(out)
			}
			return err
		})
	}
	testdb.Must(t, g.Wait())
	if got, changes := mugs(t, db); got.OnHand != 15 || changes != 2 {
		t.Errorf("the stock is %+v after %d changes", got, changes)
	}
	_, said, err := execute(t, db, add(10, "4711"))
	if err != nil || !strings.Contains(said, "4711 was added before") {
		t.Errorf("it says %q, %v", said, err)
	}
	other := add(11, "4711")
	wantRefused(t, db, other, "--id 4711 is that of a change by +10")
	other.SKU = "cap" // a delivery may have several articles
	mustExecute(t, db, other)
}
