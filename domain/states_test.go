package domain_test

import (
	"slices"
	"time"

	"github.com/payonce/payonce/domain"
)

// state is a charge by what has happened to it. Its events follow those of another state.
type state struct {
	name, after string
	events      []domain.Event

	// partial: a part of a commit is missing, so a command never meets the charge like this.
	partial bool
}

// states are those of a charge of 1000 cents, of which 30 are the fee.
var states = []state{
	then("", "absent"),
	then("absent", "requested", charge()),
	then("absent", "requested bare", bare()), // without items
	then("requested", "reserved", held()),
	then("reserved", "started", begun()),
	then("requested bare", "started bare", begun()),
	then("started", "attempt failed", domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500}),

	partly("requested", "rejecting", domain.InventoryRejected{Code: domain.OutOfStock}),
	then("rejecting", "rejected", domain.ChargeFailed{Failure: outOfStock()}),
	partly("started", "declining", domain.PaymentDeclined{Failure: stolen()}),
	partly("declining", "declined and released", released()),
	then("declined and released", "declined", domain.ChargeFailed{Failure: stolen()}),
	then("reserved", "declined before the start", domain.PaymentDeclined{Failure: stolen()}, released(), domain.ChargeFailed{Failure: stolen()}),
	then("declined", "declined and notified", domain.MerchantNotified{EventID: "e", Type: "charge.failed", Version: 6}),

	then("requested", "canceling", domain.ChargeCancelRequested{}),
	then("requested bare", "canceling bare", domain.ChargeCancelRequested{}),
	then("reserved", "canceling reserved", domain.ChargeCancelRequested{}),
	then("started", "canceling started", domain.ChargeCancelRequested{}),
	then("started bare", "canceling started bare", domain.ChargeCancelRequested{}),
	then("canceling", "canceled", domain.ChargeFailed{Failure: dropped()}),
	then("canceling bare", "canceled bare", domain.ChargeFailed{Failure: dropped()}),
	partly("canceling reserved", "canceled and released", released()),
	then("canceled and released", "canceled reserved", domain.ChargeFailed{Failure: dropped()}),
	then("canceling started", "canceled started", domain.PaymentDeclined{Failure: dropped()}, released(), domain.ChargeFailed{Failure: dropped()}),
	then("canceling started bare", "canceled started bare", domain.PaymentDeclined{Failure: dropped()}, domain.ChargeFailed{Failure: dropped()}),
	then("canceled reserved", "canceled and notified", domain.MerchantNotified{EventID: "e", Type: "charge.failed", Version: 5}),
	then("canceling started", "canceling but declined", domain.PaymentDeclined{Failure: stolen()}, released(), domain.ChargeFailed{Failure: stolen()}),
	then("canceling started", "canceling but captured", taken(), domain.ChargeSucceeded{}),

	then("absent", "limited", limited()), // with a customer, a return_url and a deadline
	then("limited", "limited reserved", held()),
	then("limited reserved", "limited started", begun()),
	then("limited started", "acting", acting()), // the customer
	then("acting", "acting and notified", domain.MerchantNotified{EventID: "e", Type: "charge.requires_action", Version: 4}),
	then("acting", "acting but captured", taken(), domain.ChargeSucceeded{}),
	then("acting", "timed out", domain.PaymentDeclined{Failure: failed(domain.AuthenticationTimeout)}, released(), domain.ChargeFailed{Failure: failed(domain.AuthenticationTimeout)}),
	then("limited", "expired", domain.ChargeFailed{Failure: failed(domain.Expired)}),
	then("limited reserved", "expired reserved", released(), domain.ChargeFailed{Failure: failed(domain.Expired)}),
	then("acting", "expired acting", domain.PaymentDeclined{Failure: failed(domain.Expired)}, released(), domain.ChargeFailed{Failure: failed(domain.Expired)}),

	partly("started", "captured", taken()),
	then("captured", "succeeded", domain.ChargeSucceeded{}),
	then("absent", "succeeded silent", silent(), held(), begun(), taken(), domain.ChargeSucceeded{}), // without webhook
	then("succeeded", "notified", domain.MerchantNotified{EventID: "e", Type: "charge.succeeded", Version: 5}),

	then("succeeded", "refund pending", back("re_1", 400)),
	then("refund pending", "refund attempted", domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500}),
	then("succeeded", "refund of all pending", back("re_1", 1000)),
	then("refund pending", "refunded in part", gone("re_1", "rp_1", 400)),
	then("refunded in part", "refunded in two parts", back("re_2", 600), gone("re_2", "rp_2", 600)),
	then("refund pending", "refund failed", notGone("re_1", "rp_1")),
	then("refund pending", "refund refused", notGone("re_1", "")), // without an object of the provider
	then("refund refused", "two refunds after a refused one", back("re_2", 100), notGone("re_2", ""), back("re_3", 100)),
	then("refunded in part", "refund reversed", domain.RefundReversed{
		RefundID: "re_1", ProviderRefund: "rp_1", Amount: 400, Message: "the account is closed",
	}),
	then("refund pending", "refunds of all kinds", back("re_2", 100), gone("re_2", "rp_2", 100), back("re_3", 50), notGone("re_3", "rp_3")),
	then("notified", "refunded and notified", back("re_1", 400), gone("re_1", "rp_1", 400),
		domain.MerchantNotified{EventID: "e", Type: "refund.succeeded", Version: 8}),
	then("succeeded", "refunded silent", with(back("re_1", 400), func(e *domain.RefundRequested) { e.Notify = false }), gone("re_1", "rp_1", 400)),
	then("succeeded silent", "silent but refunded", back("re_1", 400), gone("re_1", "rp_1", 400)),
	then("refunded in part", "notified of the refund", domain.MerchantNotified{EventID: "e", Type: "refund.succeeded", Version: 7}),
	then("succeeded", "refund observed", seen(400)),
	then("refund pending", "all refunded outside", seen(1000)),
	then("refund observed", "observed refund reversed", domain.RefundReversed{RefundID: "rp_9", ProviderRefund: "rp_9", Amount: 400}),
	then("succeeded silent", "silent but refund observed", with(seen(400), func(e *domain.RefundObserved) { e.Notify = false })),
	then("succeeded", "disputed", disputed()),
	then("disputed", "dispute withdrawn", withheld()),
	then("dispute withdrawn", "dispute lost", domain.DisputeClosed{DisputeID: "du_1", Status: "lost"}),
	then("dispute lost", "dispute lost and reinstated", paidBack()),
	then("dispute withdrawn", "dispute won", domain.DisputeClosed{DisputeID: "du_1", Status: "won"}),
	then("dispute won", "dispute reinstated", paidBack()),
	then("dispute lost", "dispute lost and won", domain.DisputeClosed{DisputeID: "du_1", Status: "won"}),
	then("dispute lost", "dispute lost and open", domain.DisputeUpdated{DisputeID: "du_1", Amount: 1000, Reason: "fraudulent", Status: "open"}),
	then("succeeded silent", "silent but disputed", disputed()),
	then("refunded in part", "notified late", domain.MerchantNotified{EventID: "e", Type: "charge.succeeded", Version: 5}),
}

func then(before, name string, events ...domain.Event) state {
	return state{name: name, after: before, events: events}
}

func partly(before, name string, events ...domain.Event) state {
	return state{name: name, after: before, events: events, partial: true}
}

// history returns the stream of a charge in a state.
func history(name string) []domain.Event {
	if name == "" {
		return nil
	}
	s := states[slices.IndexFunc(states, func(s state) bool { return s.name == name })]
	return slices.Concat(history(s.after), s.events)
}

// in returns a charge in a state.
func in(name string) domain.Charge { return domain.Fold(domain.Charge{ID: "ch_1"}, history(name)...) }

// opened is a first event with the steps that the program gives it.
func opened(e domain.ChargeRequested) domain.ChargeRequested {
	events, err := domain.Open(e)
	first, opens := events[0].(domain.ChargeRequested)
	if err != nil || !opens {
		panic(err)
	}
	return first
}

func charge() domain.ChargeRequested {
	return opened(domain.ChargeRequested{Terms: domain.Terms{
		MerchantID: "acme", OrderID: "order 1", Money: domain.Money{Amount: 1000, Currency: "EUR"}, Fee: 30, Reference: "ref_1",
		PaymentMethod: "pm_card_visa", Items: []domain.Item{{SKU: "mug", Quantity: 2}},
		Description: "a mug", Metadata: map[string]string{"basket": "7"}, Notify: true,
	}})
}

// with returns a changed copy of an event or a command.
func with[T any](v T, change func(*T)) T {
	change(&v)
	return v
}

func bare() domain.ChargeRequested {
	return opened(with(charge(), func(e *domain.ChargeRequested) { e.Items = nil }))
}

func silent() domain.ChargeRequested {
	return opened(with(charge(), func(e *domain.ChargeRequested) { e.Notify = false }))
}

// The deadlines of a charge that has them.
var (
	timeout = time.Date(2026, 11, 26, 16, 0, 0, 0, time.UTC)
	expiry  = timeout.Add(time.Hour)
)

func limited() domain.ChargeRequested {
	return with(charge(), func(e *domain.ChargeRequested) {
		e.Customer, e.ReturnURL, e.ExpiresAt = "cus_ada", "https://shop.example/back", expiry
	})
}

func acting() domain.PaymentActionRequired {
	return domain.PaymentActionRequired{URL: "https://bank.example/3ds", ExpiresAt: timeout}
}

func failed(code domain.FailureCode) domain.Failure {
	return domain.Failure{Code: code, Message: "too late"}
}

func held() domain.InventoryReserved     { return domain.InventoryReserved{Items: charge().Items} }
func released() domain.InventoryReleased { return domain.InventoryReleased{Items: charge().Items} }
func begun() domain.PaymentStarted {
	return domain.PaymentStarted{Provider: "stripe", PaymentIntent: "pi_1"}
}

func taken() domain.PaymentCaptured {
	return domain.PaymentCaptured{Provider: "stripe", PaymentIntent: "pi_1", Amount: 1000, Currency: "EUR", Fee: 30}
}

// back is a request to refund. gone is its success, notGone its failure.
func back(id string, amount int64) domain.RefundRequested {
	return domain.RefundRequested{RefundID: id, Amount: amount, Reason: "a broken mug", Notify: true}
}

func gone(id, object string, amount int64) domain.RefundSucceeded {
	return domain.RefundSucceeded{RefundID: id, Provider: "stripe", ProviderRefund: object, Amount: amount}
}

func notGone(id, object string) domain.RefundFailed {
	return domain.RefundFailed{RefundID: id, ProviderRefund: object, Code: domain.ProviderRefused, Message: "the account is closed"}
}

// seen is a refund that was made outside.
func seen(amount int64) domain.RefundObserved {
	return domain.RefundObserved{RefundID: "rp_9", Provider: "stripe", ProviderRefund: "rp_9", Amount: amount, Notify: true}
}

func disputed() domain.DisputeOpened {
	return domain.DisputeOpened{DisputeID: "du_1", Provider: "stripe", Amount: 1000, Reason: "fraudulent"}
}

func withheld() domain.DisputeWithdrawn {
	return domain.DisputeWithdrawn{DisputeMoved: domain.DisputeMoved{DisputeID: "du_1", Transaction: "txn_1", Amount: 1000, Fee: 15}}
}

func paidBack() domain.DisputeReinstated {
	return domain.DisputeReinstated{DisputeMoved: domain.DisputeMoved{DisputeID: "du_1", Transaction: "txn_2", Amount: 1000, Fee: 15}}
}

func outOfStock() domain.Failure {
	return domain.Failure{Code: domain.OutOfStock, Message: "an item of the order is out of stock"}
}

func stolen() domain.Failure {
	return domain.Failure{Code: domain.CardDeclined, Message: "the card was declined", DeclineCode: "stolen_card"}
}

func dropped() domain.Failure {
	return domain.Failure{Code: domain.Canceled, Message: "the charge was canceled"}
}

func eur(amount int64) domain.Money { return domain.Money{Amount: amount, Currency: "EUR"} }
