package main

import (
	"bufio"
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/bojanz/currency"
)

// journal writes plain-text accounting: a transaction for each event, in which a debit is above
// zero and a credit below. It leaves errors of out to the last Flush.
type journal struct {
	out      *bufio.Writer
	day      string          // on which accounts are opened
	declared map[string]bool // accounts and currencies

	account, commodity string // lines with the day, the name, and a currency's decimals
	head               string // of a transaction: day, type, charge, event, time, order, order as a word
}

func newJournal(out *bufio.Writer, format string, from time.Time) *journal {
	j := &journal{
		out: out, day: from.UTC().Format(time.DateOnly), declared: map[string]bool{},
		account: "%[1]s open %[2]s\n", commodity: "%[1]s commodity %[2]s\n",
		head: "\n%[1]s * %[2]q ^%[3]s\n  event: %[4]q\n  time: %[5]q\n  order: %[6]q\n",
	}
	if format == "hledger" {
		fmt.Fprint(out, "decimal-mark .\n")
		j.account, j.commodity = "account %[2]s\n", "commodity 1000.%[3]s %[2]s\n"
		j.head = "\n%[1]s * (%[3]s) %[2]s  ; event:%[4]s, time:%[5]s, order:%[7]s\n"
	}
	return j
}

// write declares what the transaction of an event names, and writes it.
func (j *journal) write(p posted) error {
	var lines strings.Builder
	for _, l := range p.Legs {
		amount, err := currency.NewAmountFromInt64(l.Amount, l.Currency)
		if err != nil {
			return err
		}
		_, decimals, _ := strings.Cut(amount.Number(), ".")
		debit, credit := accountName(l.Debit), accountName(l.Credit)
		j.declare(j.commodity, l.Currency, strings.Repeat("0", len(decimals)))
		j.declare(j.account, debit, "")
		j.declare(j.account, credit, "")
		fmt.Fprintf(&lines, "  %s  %[2]s %s\n  %s  -%[2]s %[3]s\n", debit, amount.Number(), l.Currency, credit)
	}
	at := p.RecordedAt.UTC()
	fmt.Fprintf(j.out, j.head+"%[8]s", at.Format(time.DateOnly), word(p.Type, "-_.", '_'), word(p.ChargeID, "-_.", '_'), p.EventID,
		at.Format(time.RFC3339Nano), p.OrderID, word(p.OrderID, "-_.", '_'), lines.String())
	return nil
}

func (j *journal) declare(line, name, decimals string) {
	if !j.declared[name] {
		j.declared[name] = true
		fmt.Fprintf(j.out, line, j.day, name, decimals)
	}
}

// accountName turns kind:owner:currency into a name for both programs. Owners are lower case, so
// a capital U can stand for the underscore, which beancount does not allow.
func accountName(stored string) string {
	kind, owner, _ := strings.Cut(stored, ":")
	owner, _, _ = strings.Cut(owner, ":")
	name, known := map[string]string{
		"customer_receivable": "Assets:CustomerReceivable",
		"psp_receivable":      "Assets:ProviderReceivable",
		"merchant_pending":    "Liabilities:MerchantPending",
		"merchant_payable":    "Liabilities:MerchantPayable",
		"refund_clearing":     "Liabilities:RefundClearing",
		"fee_revenue":         "Income:FeeRevenue",
	}[kind]
	if !known {
		name = "Equity:" + capital(kind)
	}
	return name + ":" + capital(owner)
}

func capital(text string) string {
	text = cmp.Or(word(text, "-", 'U'), "U")
	return strings.ToUpper(text[:1]) + text[1:]
}

// word replaces all runes of a text but letters and digits of ASCII and those that are kept.
func word(text, kept string, by rune) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(kept, r) {
			return r
		}
		return by
	}, text)
}
