package books_test

import (
	"testing"

	"github.com/bojanz/currency"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// TestLedgerExport reads as a role that may read the view alone, as docs/how-to/export-the-ledger.md says.
func TestLedgerExport(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	yen := requested("acme")
	yen.Amount, yen.Currency = 70, "JPY"
	appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	appended(t, db, ledger.New("ch_2"), cause("b"), yen)
	appended(t, db, ledger.New("ch_3"), cause("c"), paid("globex", "pi_2")...)
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
		"ch_2 1 1 charge.requested.v1 acme order 1 customer_receivable:acme:JPY merchant_pending:acme:JPY 70 JPY",
	}
	testrun.Same(t, "exported", want, got)

	// The sums of a merchant are those of its balances.
	for _, b := range balancesOf(t, db, "acme").Data {
		account := b.Account + ":" + b.Currency
		const sum = `select coalesce(sum(amount) filter (where debit = $1), 0) - coalesce(sum(amount) filter (where credit = $1), 0) from ledger_export where merchant_id = 'acme'`
		amount, err := currency.NewAmountFromInt64(b.Balance, b.Currency)
		testdb.Must(t, err)
		if got := testdb.One[string](t, tx, `select (`+sum+`)::text`, account); got != amount.Number() {
			t.Errorf("%s is %s, want %s", account, got, amount.Number())
		}
	}
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
	got := map[string]string{}
	rows, _ := db.Query(t.Context(), `select currency, amount::text from ledger_export where leg > 1`) // ForEachRow returns its error
	var code, amount string
	_, err := pgx.ForEachRow(rows, []any{&code, &amount}, func() error {
		got[code] = amount
		return nil
	})
	testdb.Must(t, err)
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
