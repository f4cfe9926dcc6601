package ledger_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// inLogOrder are the versions of a stream in the order in which readers of the
// log, and of the outbox, see them.
const inLogOrder = `
select version
  from ledger_events
 where stream_id = $1
 order by txid, position`

// TestOrderOfTheLog: whoever loads before the first write of a commit appends
// in an order that readers of the log see too.
func TestOrderOfTheLog(t *testing.T) {
	t.Parallel()

	t.Run("follows the versions when writers load first", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")[:2]...)
		const writers, each = 6, 5
		var rivals errgroup.Group
		for w := range writers {
			rivals.Go(func() error {
				for i := 0; i < each; {
					s, err := ledger.Load(t.Context(), db, "ch_1")
					if err != nil {
						return err
					}
					_, err = try(t, db, s, because(fmt.Sprint(w, i)), attempt(500+i))
					if err != nil && !ledger.IsConflict(err) {
						return err
					}
					if err == nil {
						i++
					}
				}
				return nil
			})
		}
		if err := rivals.Wait(); err != nil {
			t.Fatal(err)
		}
		var want []int
		for v := range 2 + writers*each {
			want = append(want, v+1)
		}
		if diff := cmp.Diff(want, collect[int](t, db, inLogOrder, "ch_1")); diff != "" {
			t.Errorf("versions (-want +got):\n%s", diff)
		}
	})

	t.Run("does not when one of them writes first", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		s := appended(t, db, ledger.New("ch_1"), because("a"), opened("acme", 1000, "EUR"))
		tx, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// The write gives this transaction its id, and its place in the log with it.
		if _, err := tx.Exec(t.Context(), `insert into outbox_offsets values ('t', 'g', '0', 0)`); err != nil {
			t.Fatal(err)
		}
		appended(t, db, s, because("b"), attempt(500))
		b := &pgx.Batch{}
		if _, err := ledger.Append(b, load(t, tx), because("c"), attempt(502)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(tx.SendBatch(t.Context(), b).Close(), tx.Commit(t.Context())); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{1, 3, 2}, collect[int](t, db, inLogOrder, "ch_1")); diff != "" {
			t.Errorf("the trap is gone, and the rule with it (-want +got):\n%s", diff)
		}
	})
}

func TestBalances(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	read := func(t *testing.T, merchant string) ledger.Balances {
		t.Helper()
		balances, err := ledger.ReadBalances(t.Context(), db, merchant)
		if err != nil {
			t.Fatal(err)
		}
		return balances
	}
	if diff := cmp.Diff(ledger.Balances{Data: []ledger.Balance{}}, read(t, "acme")); diff != "" {
		t.Errorf("balances of an empty ledger (-want +got):\n%s", diff)
	}
	appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")...)
	appended(t, db, ledger.New("ch_2"), because("b"), opened("acme", 500, "EUR"))
	appended(t, db, ledger.New("ch_3"), because("c"), opened("acme", 70, "JPY"))
	appended(t, db, ledger.New("ch_4"), because("d"), paid("globex", "pi_2")...)
	position := collect[int64](t, db, `select max(position) from ledger_events`)[0]

	t.Run("are those of the merchant's charges, by currency and account", func(t *testing.T) {
		t.Parallel()
		want := ledger.Balances{AsOfPosition: position, Data: []ledger.Balance{
			{Account: "customer_receivable:acme", Currency: "EUR", Debits: 1500, Credits: 1000, Balance: 500},
			{Account: "fee_revenue:payonce", Currency: "EUR", Credits: 30, Balance: -30},
			{Account: "merchant_payable:acme", Currency: "EUR", Credits: 970, Balance: -970},
			{Account: "merchant_pending:acme", Currency: "EUR", Debits: 1000, Credits: 1500, Balance: -500},
			{Account: "psp_receivable:stripe", Currency: "EUR", Debits: 1000, Balance: 1000},
			{Account: "customer_receivable:acme", Currency: "JPY", Debits: 70, Balance: 70},
			{Account: "merchant_pending:acme", Currency: "JPY", Credits: 70, Balance: -70},
		}}
		if diff := cmp.Diff(want, read(t, "acme")); diff != "" {
			t.Errorf("balances (-want +got):\n%s", diff)
		}
	})

	t.Run("add up to zero per currency for each merchant", func(t *testing.T) {
		t.Parallel()
		for _, merchant := range []string{"acme", "globex"} {
			sums := map[string]int64{}
			for _, b := range read(t, merchant).Data {
				sums[b.Currency] += b.Balance
			}
			for currency, sum := range sums {
				if sum != 0 {
					t.Errorf("%s: %d %s", merchant, sum, currency)
				}
			}
		}
	})

	t.Run("of one merchant show nothing of another", func(t *testing.T) {
		t.Parallel()
		want := ledger.Balances{AsOfPosition: position, Data: []ledger.Balance{
			{Account: "customer_receivable:globex", Currency: "EUR", Debits: 1000, Credits: 1000},
			{Account: "fee_revenue:payonce", Currency: "EUR", Credits: 30, Balance: -30},
			{Account: "merchant_payable:globex", Currency: "EUR", Credits: 970, Balance: -970},
			{Account: "merchant_pending:globex", Currency: "EUR", Debits: 1000, Credits: 1000},
			{Account: "psp_receivable:stripe", Currency: "EUR", Debits: 1000, Balance: 1000},
		}}
		if diff := cmp.Diff(want, read(t, "globex")); diff != "" {
			t.Errorf("balances (-want +got):\n%s", diff)
		}
		if nobody := read(t, "nobody"); len(nobody.Data) != 0 || nobody.AsOfPosition != position {
			t.Errorf("a merchant without charges has %+v", nobody)
		}
	})
}
