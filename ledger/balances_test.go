package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// TestBalancesAreFresh reads as much of the books from the projection as was
// folded, and the rest from the tail of the log: the sum is the same.
func TestBalancesAreFresh(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()

	t.Run("whatever part of the log is folded", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		var want []ledger.Balances
		events := paid("acme", "pi_1")
		for i := range events {
			s := ledger.New("ch_1")
			if i > 0 {
				s = load(t, db)
			}
			appended(t, db, s, because(strconv.Itoa(i)), events[i])
			balances, err := ledger.ReadBalances(t.Context(), db, "acme")
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, balances)
			if i%2 == 1 {
				caughtUp(t, db)
			}
			again, err := ledger.ReadBalances(t.Context(), db, "acme")
			if diff := cmp.Diff(balances, again); diff != "" || err != nil {
				t.Errorf("after %d events, and folding (-before +after): %v\n%s", i+1, err, diff)
			}
		}
		for i := range want[1:] {
			if want[i+1].AsOfPosition <= want[i].AsOfPosition {
				t.Errorf("as of %d, and then of %d", want[i].AsOfPosition, want[i+1].AsOfPosition)
			}
		}
	})

	t.Run("while charges come and are folded they add up to zero and lose nothing", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		const charges = 100
		done, stop := context.WithCancel(t.Context())
		var projector, writer errgroup.Group
		projector.Go(func() error {
			for done.Err() == nil {
				if _, err := ledger.Project(t.Context(), db); err != nil {
					return err
				}
			}
			return nil
		})
		writer.Go(func() error {
			defer stop()
			last := int64(0)
			for i := range charges {
				b := &pgx.Batch{}
				if _, err := ledger.Append(b, ledger.New(fmt.Sprintf("ch_%d", i)), because("a"), opened("acme", 1000, "EUR")); err != nil {
					return err
				}
				if err := db.Commit(t.Context(), b); err != nil {
					return err
				}
				balances, err := ledger.ReadBalances(t.Context(), db, "acme")
				if err != nil {
					return err
				}
				due := int64(1000 * (i + 1))
				want := []ledger.Balance{
					{Account: "customer_receivable:acme", Currency: "EUR", Debits: due, Balance: due},
					{Account: "merchant_pending:acme", Currency: "EUR", Credits: due, Balance: -due},
				}
				if diff := cmp.Diff(want, balances.Data); diff != "" {
					return fmt.Errorf("after %d charges (-want +got):\n%s", i+1, diff)
				}
				if balances.AsOfPosition <= last {
					return fmt.Errorf("as of %d, after %d", balances.AsOfPosition, last)
				}
				last = balances.AsOfPosition
			}
			return nil
		})
		if err := errors.Join(writer.Wait(), projector.Wait()); err != nil {
			t.Fatal(err)
		}
	})
}
