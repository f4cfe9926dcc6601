package domain

// Provider is the payment provider's name in accounts and events.
const Provider = "stripe"

// Posting moves an amount from one account to another: it debits one and credits the
// other. A list of postings balances by construction.
type Posting struct {
	Debit, Credit string // kind:owner:currency
	Amount        int64  // minor units, above zero
	Currency      Currency
}

// Postings are the legs that e posts to the accounts of c, the charge before e. Legs of zero are
// left out, and a void request has none.
//
// The chart: what the customer owes (customer_receivable) balances what the merchant may
// expect (merchant_pending) until the outcome. A capture turns the first into money at
// the provider (psp_receivable) and the second into a debt to the merchant
// (merchant_payable) and our fee (fee_revenue); a failure reverses both. So both are zero
// for every charge that has an outcome, and that is the ledger's own proof of
// exactly-once. A refund moves its amount from our debt to the merchant to
// refund_clearing until its own outcome; the fee stays ours. What the provider takes for a
// dispute the merchant bears at once, until it comes back.
func Postings(c Charge, e Event) []Posting {
	book := chart{merchant: c.MerchantID, currency: c.Currency}
	if p, posts := e.(poster); posts && !c.Voids(e) {
		p.post(&book, c)
	}
	return book.legs
}

// chart names the accounts of one merchant in one currency.
type chart struct {
	merchant string
	currency Currency
	legs     []Posting
}

// move moves an amount from credit to debit; below zero, the other way.
func (b *chart) move(debit, credit string, amount int64) {
	switch {
	case amount == 0:
		return
	case amount < 0:
		debit, credit, amount = credit, debit, -amount
	}
	b.legs = append(b.legs, Posting{Debit: debit, Credit: credit, Amount: amount, Currency: b.currency})
}

func (b *chart) account(kind, owner string) string {
	return kind + ":" + owner + ":" + string(b.currency)
}

func (b *chart) customerReceivable() string { return b.account("customer_receivable", b.merchant) }
func (b *chart) merchantPending() string    { return b.account("merchant_pending", b.merchant) }
func (b *chart) merchantPayable() string    { return b.account("merchant_payable", b.merchant) }
func (b *chart) providerReceivable() string { return b.account("psp_receivable", Provider) }
func (b *chart) refundClearing() string     { return b.account("refund_clearing", b.merchant) }
func (b *chart) feeRevenue() string         { return b.account("fee_revenue", "payonce") }
