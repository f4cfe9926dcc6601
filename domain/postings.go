package domain

import "cmp"

// Provider is the payment provider's name in accounts and events.
const Provider = "stripe"

// Posting moves an amount from one account to another: it debits one and credits the
// other. A list of postings balances by construction.
type Posting struct {
	Debit, Credit string // kind:owner:currency
	Amount        int64  // minor units, above zero
	Currency      Currency
}

// Postings are the legs that e posts to the accounts of c, the charge before e. Legs of zero are left out, and a void
// request has none. A charge of 1000 with a fee of 30 posts
//
//	event              debits                                       credits                          amount
//	charge.requested   customer_receivable: what the customer owes  merchant_pending: what may come  1000
//	payment.captured   psp_receivable: money at the provider        customer_receivable              1000
//	                   merchant_pending                             merchant_payable: our debt        970
//	                   merchant_pending                             fee_revenue                        30
//	charge.failed      merchant_pending                             customer_receivable              1000
//
// So customer_receivable and merchant_pending are zero for every charge that has an outcome: the ledger's own proof of
// exactly-once. A refund moves its amount from merchant_payable to refund_clearing until its own outcome; the fee stays
// ours. What the provider takes for a dispute the merchant bears at once, until it comes back.
func Postings(c Charge, e Event) []Posting {
	if c.Voids(e) {
		return nil
	}
	var legs []Posting
	account := func(kind string) string {
		return kind + ":" + cmp.Or(owners[kind], c.MerchantID) + ":" + string(c.Currency)
	}
	move := func(debit, credit string, amount int64) { // from credit to debit; below zero, the other way
		switch {
		case amount == 0:
			return
		case amount < 0:
			debit, credit, amount = credit, debit, -amount
		}
		legs = append(legs, Posting{Debit: account(debit), Credit: account(credit), Amount: amount, Currency: c.Currency})
	}
	switch e := e.(type) {
	case ChargeRequested:
		c.Terms = e.Terms // for account: c has none yet
		move(customerReceivable, merchantPending, e.Amount)
	case ChargeFailed:
		move(merchantPending, customerReceivable, c.Amount)
	case PaymentCaptured:
		move(providerReceivable, customerReceivable, e.Amount)
		move(merchantPending, merchantPayable, e.Amount-e.Fee)
		move(merchantPending, feeRevenue, e.Fee)
	case RefundRequested:
		move(merchantPayable, refundClearing, e.Amount)
	case RefundSucceeded:
		move(refundClearing, providerReceivable, e.Amount)
	case RefundObserved:
		move(merchantPayable, providerReceivable, e.Amount)
	case RefundFailed:
		r, _ := c.Refund(e.RefundID)
		move(refundClearing, merchantPayable, r.Amount)
	case RefundReversed:
		move(providerReceivable, merchantPayable, e.Amount)
	case DisputeWithdrawn:
		move(merchantPayable, providerReceivable, e.Amount)
		move(merchantPayable, providerReceivable, e.Fee)
	case DisputeReinstated:
		move(providerReceivable, merchantPayable, e.Amount)
		move(providerReceivable, merchantPayable, e.Fee)
	}
	return legs
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

// owners are those of the accounts that are not the merchant's.
var owners = map[string]string{providerReceivable: Provider, feeRevenue: "payonce"}
