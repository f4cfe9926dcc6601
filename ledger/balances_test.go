package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

func balancesOf(t *testing.T, db *postgres.DB, merchant string) ledger.Balances {
	t.Helper()
	balances, err := ledger.ReadBalances(t.Context(), db, merchant)
	testdb.Must(t, err)
	return balances
}

// TestReadBalances reads the same balances from the tail of the ledger and from the projection.
func TestReadBalances(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	testrun.Same(t, "balances of an empty ledger", ledger.Balances{Data: []ledger.Balance{}}, balancesOf(t, db, "acme"))
	yen := requested("acme")
	yen.Amount, yen.Currency = 70, "JPY"
	appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	appended(t, db, ledger.New("ch_2"), cause("b"), requested("acme"))
	appended(t, db, ledger.New("ch_3"), cause("c"), yen)
	appended(t, db, ledger.New("ch_4"), cause("d"), paid("globex", "pi_2")...)
	position := testdb.One[int64](t, db, `select max(position) from ledger_events`)
	want := map[string][]ledger.Balance{
		"acme": {
			{Account: "customer_receivable:acme", Currency: "EUR", Debits: 2000, Credits: 1000, Balance: 1000},
			{Account: "fee_revenue:payonce", Currency: "EUR", Credits: 30, Balance: -30},
			{Account: "merchant_payable:acme", Currency: "EUR", Credits: 970, Balance: -970},
			{Account: "merchant_pending:acme", Currency: "EUR", Debits: 1000, Credits: 2000, Balance: -1000},
			{Account: "psp_receivable:stripe", Currency: "EUR", Debits: 1000, Balance: 1000},
			{Account: "customer_receivable:acme", Currency: "JPY", Debits: 70, Balance: 70},
			{Account: "merchant_pending:acme", Currency: "JPY", Credits: 70, Balance: -70},
		},
		"globex": {
			{Account: "customer_receivable:globex", Currency: "EUR", Debits: 1000, Credits: 1000},
			{Account: "fee_revenue:payonce", Currency: "EUR", Credits: 30, Balance: -30},
			{Account: "merchant_payable:globex", Currency: "EUR", Credits: 970, Balance: -970},
			{Account: "merchant_pending:globex", Currency: "EUR", Debits: 1000, Credits: 1000},
			{Account: "psp_receivable:stripe", Currency: "EUR", Debits: 1000, Balance: 1000},
		},
		"initech": {}, // has no charge
	}
	for _, from := range []string{"the tail of the ledger", "the projection"} {
		for merchant, data := range want {
			if diff := cmp.Diff(ledger.Balances{AsOfPosition: position, Data: data}, balancesOf(t, db, merchant)); diff != "" {
				t.Errorf("%s from %s (-want +got):\n%s", merchant, from, diff)
			}
		}
		project(t, db)
	}
}

// TestReadBalances_addsWhatIsNotFolded reads while charges are requested and folded.
func TestReadBalances_addsWhatIsNotFolded(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
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
			if _, err := commit(t.Context(), db, ledger.New(fmt.Sprint("ch_", i)), cause("a"), requested("acme")); err != nil {
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
	testdb.Must(t, errors.Join(writer.Wait(), projector.Wait()))
}
