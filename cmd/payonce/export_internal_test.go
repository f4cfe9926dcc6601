package main

import (
	"encoding/csv"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// post records charges of two merchants in three currencies. A spreadsheet or a program of
// accounting must not read their orders.
func post(t *testing.T) *postgres.DB {
	t.Helper()
	db := testdb.Open(t)
	for i, order := range []string{"=1+1", "a;=1+1", "-1", "@SUM(1)", "\uff1d1", "\t=1", "a,\"b\"\n2026-11-01 open Assets:Evil", "x, date:never ; y"} {
		first := requested(order)
		first.MerchantID = []string{"acme", "my_2nd-shop"}[i%2]
		first.Currency, first.Amount = []domain.Currency{"USD", "JPY", "BHD"}[i%3], 10*int64(i+1)
		s := record(t, db, ledger.New("ch_"+strconv.Itoa(i)), first)
		if i%2 == 0 {
			record(t, db, s, domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_" + s.ID},
				domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_" + s.ID, Amount: first.Amount, Currency: first.Currency, Fee: 1},
				domain.ChargeSucceeded{}, domain.RefundRequested{RefundID: "re_" + s.ID, Amount: 5},
				domain.DisputeOpened{DisputeID: "du_" + s.ID, Amount: 4},
				domain.DisputeWithdrawn{DisputeMoved: domain.DisputeMoved{DisputeID: "du_" + s.ID, Transaction: "txn_" + s.ID, Amount: 4, Fee: 1}})
		}
	}
	return db
}

func span(t *testing.T, from, to string) exportCmd {
	t.Helper()
	cli, err := parse(t, "export --from "+from+" --to "+to)
	testdb.Must(t, err)
	return cli.Export
}

// sums are the debits and credits of accounts and their currencies, in minor units.
type sums map[string][2]int64

func (s sums) post(t *testing.T, account, amount, currency string) int64 {
	t.Helper()
	whole, decimals, _ := strings.Cut(amount, ".")
	minor, err := strconv.ParseInt(whole+decimals, 10, 64)
	if err != nil || len(decimals) != map[string]int{"USD": 2, "JPY": 0, "BHD": 3}[currency] {
		t.Errorf("%s %s is posted to %s: %v", amount, currency, account, err)
	}
	of := s[account+" "+currency]
	if minor < 0 {
		of[1] -= minor
	} else {
		of[0] += minor
	}
	s[account+" "+currency] = of
	return minor
}

// readCSV checks that no cell is a formula.
func readCSV(t *testing.T, text string) sums {
	t.Helper()
	found := sums{}
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	testdb.Must(t, err)
	for _, row := range rows[1:] {
		for _, cell := range row {
			if regexp.MustCompile(`^\s|(^|;)[=+\-@\x{ff1d}]`).MatchString(cell) {
				t.Errorf("a cell is %q", cell)
			}
		}
		found.post(t, accountName(row[8]), row[10], row[11])
		found.post(t, accountName(row[9]), "-"+row[10], row[11])
	}
	return found
}

// readJournal checks that each line is one of the language, that accounts are declared once and
// before they are used, that each transaction balances, and that each account has a root of its own.
func readJournal(t *testing.T, text string) sums {
	t.Helper()
	const name = `((?:Assets|Liabilities|Income)(?::[A-Z0-9][A-Za-z0-9-]*)+)`
	declaration := regexp.MustCompile(`^(?:account|2020-01-01 open) ` + name + `$`)
	posting := regexp.MustCompile(`^  ` + name + `  (-?[0-9.]+) ([A-Z]{3})$`)
	other := regexp.MustCompile(`^(decimal-mark \.|commodity 1000\.0* [A-Z]{3}|2020-01-01 commodity [A-Z]{3}|  (event|time|order): "([^"\\]|\\.)*"|` +
		`\d{4}-\d\d-\d\d \* ("[\w.]+" \^\w+|\(\w+\) [\w.]+  ; event:[\w-]+, time:[\w.:-]+, order:[\w.-]*)|)$`)
	found, declared, balance := sums{}, map[string]bool{}, map[string]int64{}
	for line := range strings.Lines(text + "\n") {
		line = strings.TrimSuffix(line, "\n")
		if d := declaration.FindStringSubmatch(line); d != nil {
			if declared[d[1]] {
				t.Errorf("declared twice: %s", line)
			}
			declared[d[1]] = true
		} else if p := posting.FindStringSubmatch(line); p != nil {
			if !declared[p[1]] {
				t.Errorf("not declared: %s", line)
			}
			balance[p[3]] += found.post(t, p[1], p[2], p[3])
		} else if !other.MatchString(line) {
			t.Errorf("no line of the language: %q", line)
		} else if line == "" {
			for of, sum := range balance {
				if sum != 0 {
					t.Errorf("a transaction has %d %s left", sum, of)
				}
			}
		}
	}
	return found
}

func TestExport_sumsUpToTheBalances(t *testing.T) {
	t.Parallel()
	db := post(t)
	for _, merchants := range [][]string{{"acme"}, {"my_2nd-shop"}, {"acme", "my_2nd-shop"}} {
		want := sums{}
		for _, m := range merchants {
			balances, err := ledger.ReadBalances(t.Context(), db, m)
			testdb.Must(t, err)
			for _, b := range balances.Data {
				key := accountName(b.Account) + " " + b.Currency
				want[key] = [2]int64{want[key][0] + b.Debits, want[key][1] + b.Credits}
			}
		}
		for format, read := range map[string]func(*testing.T, string) sums{"csv": readCSV, "beancount": readJournal, "hledger": readJournal} {
			e := span(t, "2020-01-01", "2099-01-01T00:00:00+02:00")
			e.Format = format
			if len(merchants) == 1 {
				e.Merchant = merchants[0]
			}
			if diff := cmp.Diff(want, read(t, mustExecute(t, db, e))); diff != "" {
				t.Errorf("%s of %v (-balances +exported):\n%s", format, merchants, diff)
			}
		}
	}
}

// The first event of the span is exported, the first one after it is not.
func TestExport_isOfASpanAndInOrder(t *testing.T) {
	t.Parallel()
	db := post(t)
	at := testdb.All[time.Time](t, db, `select recorded_at from ledger_events e join ledger_postings p using (stream_id, version) order by e.txid, e.position, leg`)
	rows, err := csv.NewReader(strings.NewReader(mustExecute(t, db, span(t, at[1].Format(time.RFC3339Nano), at[len(at)-1].Format(time.RFC3339Nano))))).ReadAll()
	testdb.Must(t, err)
	var got []string
	for _, row := range rows[1:] {
		got = append(got, row[4])
	}
	var want []string
	for _, a := range at[1 : len(at)-1] {
		want = append(want, a.UTC().Format(time.RFC3339Nano))
	}
	testrun.Same(t, "exported times", want, got)
	for _, line := range []string{"export", "export --from 2026-11-01", "export --from 2026-11-01 --to 2026-11-01", "export --from 2026-11-02 --to soon", "export --from 2026-11-01 --to 2026-11-02 --format xls", "plan now"} {
		if _, err := parse(t, line); err == nil || line == "export" && !strings.Contains(err.Error(), "missing flags") {
			t.Errorf("%s: %v", line, err)
		}
	}
}
