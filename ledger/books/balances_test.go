package books_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/bojanz/currency"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

func balancesOf(t *testing.T, db *postgres.DB, merchant string) books.Balances {
	t.Helper()
	balances, err := books.ReadBalances(t.Context(), db, merchant)
	testdb.Must(t, err)
	return balances
}

// TestReadBalances reads the same balances from the tail of the ledger and from the sums.
func TestReadBalances(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	testrun.Same(t, "balances of an empty ledger", books.Balances{Data: []books.Balance{}}, balancesOf(t, db, "acme"))
	yen := requested("acme")
	yen.Amount, yen.Currency = 70, "JPY"
	appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	appended(t, db, ledger.New("ch_2"), cause("b"), requested("acme"))
	appended(t, db, ledger.New("ch_3"), cause("c"), yen)
	appended(t, db, ledger.New("ch_4"), cause("d"), paid("globex", "pi_2")...)
	position := testdb.One[int64](t, db, `select max(position) from ledger_events`)
	want := map[string][]books.Balance{
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
	for _, from := range []string{"the tail of the ledger", "the sums"} {
		for merchant, data := range want {
			if diff := cmp.Diff(books.Balances{AsOfPosition: position, Data: data}, balancesOf(t, db, merchant)); diff != "" {
				t.Errorf("%s from %s (-want +got):\n%s", merchant, from, diff)
			}
		}
		addUp(t, db)
	}
}

// TestAddUp_besideTraffic: while charges are paid, several add up and one spoils and recounts the sums, each
// event is added once, and a merchant's balances show everything that it has committed.
func TestAddUp_besideTraffic(t *testing.T) {
	testrun.Long(t, "it sends traffic")
	t.Parallel()
	db := testdb.Reused(t)
	add := func() error { _, err := books.AddUp(t.Context(), db); return err }
	spoil := func() error {
		_, err := db.Pool().Exec(t.Context(), `update account_balances set debits = debits + 7 where merchant_id = 'acme' and account = 'psp_receivable:stripe:EUR'`)
		_, recounted := books.Recount(t.Context(), db)
		again, repeated := books.Recount(t.Context(), db)
		if err := errors.Join(err, recounted, repeated); err != nil || again.Different > 0 {
			return fmt.Errorf("the second count found %+v: %w", again, err)
		}
		return nil
	}
	besides(t, func(w int) error {
		last := int64(0)
		for i := range 40 {
			id := fmt.Sprintf("ch_%d_%d", w, i)
			if _, err := commit(t.Context(), db, ledger.New(id), cause("a"), paid([]string{"acme", "acme", "globex"}[w], "pi_"+id)...); err != nil {
				return err
			}
			b, err := books.ReadBalances(t.Context(), db, "globex")
			if w == 2 && (err != nil || b.Data[2].Credits != int64(970*(i+1)) || b.AsOfPosition <= last) {
				return fmt.Errorf("after %d charges of 1000, and the position %d, the balances are %+v: %w", i+1, last, b, err)
			}
			last = b.AsOfPosition
		}
		return nil
	}, add, add, add, spoil)
	addUp(t, db)
	found, err := books.Recount(t.Context(), db)
	testdb.Must(t, err)
	testrun.Same(t, "sums that differ", []string{}, found.Examples)
}

// TestRecount compares and replaces sums, also beside those that add up.
func TestRecount(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for i, merchant := range []string{"acme", "globex"} {
		id := fmt.Sprint("ch_", i)
		appended(t, db, ledger.New(id), cause("a"), paid(merchant, "pi_"+id)...)
	}
	addUp(t, db)
	appended(t, db, ledger.New("ch_behind"), cause("a"), requested("acme")) // is not added yet
	equal := books.Recounted{Events: 8, Charges: 2, AsOfPosition: 8, Balances: 10, Examples: []string{}}
	for range 2 {
		found, err := books.Recount(t.Context(), db)
		testdb.Must(t, err)
		testrun.Same(t, "of sums that are right", equal, found)
	}
	before := balancesOf(t, db, "acme")
	exec(t, db.Pool(), `
update account_balances set debits = debits + 1 where merchant_id = 'acme' and account like 'psp%';
delete from account_balances where merchant_id = 'acme' and account like 'fee%';
insert into account_balances values ('globex', 'x:EUR', 1, 1)`)
	found, err := books.Recount(t.Context(), db)
	testdb.Must(t, err)
	wrong := equal
	wrong.Balances, wrong.Different, wrong.Examples = 11, 3, []string{
		"account fee_revenue:payonce:EUR of acme: stored 0 − 0; the ledger says 0 − 30",
		"account psp_receivable:stripe:EUR of acme: stored 1001 − 0; the ledger says 1000 − 0",
		"account x:EUR of globex: stored 1 − 1; the ledger says 0 − 0",
	}
	testrun.Same(t, "of sums that are wrong", wrong, found)
	testrun.Same(t, "balances", before, balancesOf(t, db, "acme"))
	exec(t, db.Pool(), `delete from account_balances`)
	if found, err = books.Recount(t.Context(), db); err != nil || found.Different != 10 || len(found.Examples) != 5 {
		t.Errorf("of no sums it found %+v: %v", found, err)
	}
	addUp(t, db)
	testrun.Same(t, "balances", before, balancesOf(t, db, "acme"))
	if found, err = books.Recount(t.Context(), db); err != nil || found.Different > 0 {
		t.Errorf("of sums that it has replaced it found %+v: %v", found, err)
	}
}

// TestLedgerExport reads as a role that may read the view alone, as docs/how-to/export-the-ledger.md says.
func TestLedgerExport(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	appended(t, db, ledger.New("ch_2"), cause("b"), paid("globex", "pi_2")...)
	role := "reports_" + testdb.One[string](t, db, `select current_database()::text`)
	tx := testdb.Begin(t, db.Pool(), `create role `+role+`; grant select on ledger_export to `+role+`; set local role `+role, pgx.QueryExecModeSimpleProtocol)

	got := testdb.All[string](t, tx, `
select concat_ws(' ', charge_id, version, leg, type, merchant_id, order_id, debit, credit, amount, currency)
  from ledger_export
 where merchant_id = 'acme'
 order by recorded_at, charge_id, version, leg`)
	want := []string{
		"ch_1 1 1 charge.requested.v1 acme order 1 customer_receivable:acme:EUR merchant_pending:acme:EUR 10.00 EUR",
		"ch_1 3 1 payment.captured.v1 acme order 1 psp_receivable:stripe:EUR customer_receivable:acme:EUR 10.00 EUR",
		"ch_1 3 2 payment.captured.v1 acme order 1 merchant_pending:acme:EUR merchant_payable:acme:EUR 9.70 EUR",
		"ch_1 3 3 payment.captured.v1 acme order 1 merchant_pending:acme:EUR fee_revenue:payonce:EUR 0.30 EUR",
	}
	testrun.Same(t, "exported", want, got)

	if _, err := tx.Exec(t.Context(), `select from ledger_postings`); testdb.Code(err) != "42501" {
		t.Errorf("the role reads a table: %v", err)
	}
}

// TestLedgerExport_hasTheDecimalsOfEachCurrency compares the view with the library that the programs use.
func TestLedgerExport_hasTheDecimalsOfEachCurrency(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	s := appended(t, db, ledger.New("ch_1"), cause("a"), requested("acme"))
	want := map[string]string{}
	for _, code := range currency.GetCurrencyCodes() {
		amount, err := currency.NewAmountFromInt64(12345, code)
		testdb.Must(t, err)
		want[code] = amount.Number()
	}
	testdb.Exec(t, db.Pool(), `
insert into ledger_postings (stream_id, version, leg, merchant_id, debit, credit, amount, currency)
select $1, 1, 1 + row_number() over (), 'acme', 'a:' || code, 'b:' || code, 12345, code
  from unnest($2::text[]) code`, s.ID, currency.GetCurrencyCodes())
	got := testdb.One[map[string]string](t, db, `select json_object_agg(currency, amount::text) from ledger_export where leg > 1`)
	testrun.Same(t, "amounts", want, got)
}

// TestDisputesWithheld: the view sums the movements of the disputes that are open.
func TestDisputesWithheld(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	opened := func(id string) domain.Event {
		return domain.DisputeOpened{DisputeID: id, Provider: domain.Provider, Amount: 1000}
	}
	moved := func(id, transaction string, amount int64) domain.DisputeMoved {
		return domain.DisputeMoved{DisputeID: id, Transaction: transaction, Amount: amount, Fee: 15}
	}
	appended(t, db, ledger.New("ch_1"), cause("a"), append(paid("acme", "pi_1"),
		opened("du_open"), domain.DisputeWithdrawn{DisputeMoved: moved("du_open", "txn_1", 1000)},
		domain.DisputeReinstated{DisputeMoved: moved("du_open", "txn_2", 10)},
		opened("du_lost"), domain.DisputeWithdrawn{DisputeMoved: moved("du_lost", "txn_3", 500)}, domain.DisputeClosed{DisputeID: "du_lost", Status: "lost"},
		opened("du_inquiry"),
		opened("du_goes_on"), domain.DisputeClosed{DisputeID: "du_goes_on", Status: "won"},
		domain.DisputeUpdated{DisputeID: "du_goes_on", Amount: 1000, Status: domain.DisputeOpen},
		domain.DisputeWithdrawn{DisputeMoved: moved("du_goes_on", "txn_4", 7)},
	)...)
	got := testdb.One[string](t, db, `
select string_agg(concat_ws(' ', charge_id, merchant_id, dispute_id, currency, withheld), ', ' order by dispute_id)
  from disputes_withheld`)
	if want := "ch_1 acme du_goes_on EUR 7, ch_1 acme du_inquiry EUR 0, ch_1 acme du_open EUR 990"; got != want {
		t.Errorf("withheld is %q, want %q", got, want)
	}
}
