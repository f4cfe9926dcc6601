package books_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

func owner(id, merchant string) ledger.Owner { return ledger.Owner{StreamID: id, MerchantID: merchant} }

func TestFind(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	if got, err := books.Find(t.Context(), db, "ch_1"); err != nil || got != owner("ch_1", "acme") {
		t.Errorf("found %+v: %v", got, err)
	}
	if got, err := books.Find(t.Context(), db, "ch_2"); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("found %+v of a charge that is not there: %v", got, err)
	}
}

// TestReads_failWithTheDatabase: no read takes an error for an empty answer.
func TestReads_failWithTheDatabase(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for name, read := range map[string]func(context.Context) error{
		"Find": func(ctx context.Context) error { _, err := books.Find(ctx, db, "ch_1"); return err },
		"ListCharges": func(ctx context.Context) error {
			_, err := books.ListCharges(ctx, db, books.ListQuery{MerchantID: "acme", Limit: 1})
			return err
		},
		"ReadFeed":     func(ctx context.Context) error { _, err := books.ReadFeed(ctx, db, "acme", "", 1); return err },
		"ReadBalances": func(ctx context.Context) error { _, err := books.ReadBalances(ctx, db, "acme"); return err },
		"Recount":      func(ctx context.Context) error { _, err := books.Recount(ctx, db); return err },
		"Follow":       func(ctx context.Context) error { _, err := books.Follow(ctx, db, "balances", 1, nil); return err },
	} {
		ended, end := context.WithCancel(t.Context())
		end()
		if err := read(ended); !errors.Is(err, context.Canceled) || errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestVersions_areReadAsTheirMerchants(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	appended(t, db, ledger.New("ch_1"), cause("a"), requested("acme"), attempt(500))
	appended(t, db, ledger.New("ch_2"), cause("a"), requested("globex"))
	versions := books.NewVersions(testdb.As(t, db, postgres.RoleAPI))
	var all sync.WaitGroup
	for of, want := range map[ledger.Owner]int{
		owner("ch_1", "acme"): 2, owner("ch_2", "globex"): 1, owner("ch_1", "globex"): 0, owner("ch_3", "acme"): 0,
	} {
		for range 5 { // some share a round trip
			all.Go(func() {
				if got, err := versions.Lookup(t.Context(), of); got != want || err != nil {
					t.Errorf("%v has version %d, want %d: %v", of, got, want, err)
				}
			})
		}
	}
	all.Wait()
}
