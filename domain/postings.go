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
	if c.Voids(e) {
		return nil
	}
	b := &book{merchant: c.MerchantID, currency: c.Currency}
	switch e := e.(type) {
	case ChargeRequested:
		b.merchant, b.currency = e.MerchantID, e.Currency
		b.move(customerReceivable, merchantPending, e.Amount)
	case ChargeFailed:
		b.move(merchantPending, customerReceivable, c.Amount)
	case PaymentCaptured:
		b.move(providerReceivable, customerReceivable, e.Amount)
		b.move(merchantPending, merchantPayable, e.Amount-e.Fee)
		b.move(merchantPending, feeRevenue, e.Fee)
	case RefundRequested:
		b.move(merchantPayable, refundClearing, e.Amount)
	case RefundSucceeded:
		b.move(refundClearing, providerReceivable, e.Amount)
	case RefundObserved:
		b.move(merchantPayable, providerReceivable, e.Amount)
	case RefundFailed:
		r, _ := c.Refund(e.RefundID)
		b.move(refundClearing, merchantPayable, r.Amount)
	case RefundReversed:
		b.move(providerReceivable, merchantPayable, e.Amount)
	case DisputeWithdrawn:
		b.move(merchantPayable, providerReceivable, e.Amount)
		b.move(merchantPayable, providerReceivable, e.Fee)
	case DisputeReinstated:
		b.move(providerReceivable, merchantPayable, e.Amount)
		b.move(providerReceivable, merchantPayable, e.Fee)
	}
	return b.legs
}

// The kinds of accounts.
const (
	customerReceivable = "customer_receivable"
	merchantPending    = "merchant_pending"
	merchantPayable    = "merchant_payable"
	refundClearing     = "refund_clearing"
	providerReceivable = "psp_receivable"
	feeRevenue         = "fee_revenue"
)

// book is where an event posts to the accounts of one merchant in one currency.
type book struct {
	merchant string
	currency Currency
	legs     []Posting
}

// move moves an amount from credit to debit; below zero, the other way.
func (b *book) move(debit, credit string, amount int64) {
	switch {
	case amount == 0:
		return
	case amount < 0:
		debit, credit, amount = credit, debit, -amount
	}
	b.legs = append(b.legs, Posting{Debit: b.account(debit), Credit: b.account(credit), Amount: amount, Currency: b.currency})
}

func (b *book) account(kind string) string {
	owner := b.merchant
	switch kind {
	case providerReceivable:
		owner = Provider
	case feeRevenue:
		owner = "payonce"
	}
	return kind + ":" + owner + ":" + string(b.currency)
}
