package domain_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/payonce/payonce/domain"
)

func TestRequestCharge(t *testing.T) {
	t.Parallel()
	first := charge()
	first.Steps = []string{"inventory", "payment", "notification"}
	decides(t, domain.RequestCharge{
		MerchantID: "acme", OrderID: "order 1", Amount: domain.Money{Amount: 1000, Currency: "EUR"},
		Fees:          domain.FeeSchedule{BasisPoints: 300},
		PaymentMethod: "pm_card_visa", Items: first.Items,
		Description: "a mug", Metadata: first.Metadata, Notify: true,
	}, []verdict{
		{"a request opens a charge and freezes its fee", absent, []domain.Event{first}, nil},
		{"an open charge is not requested again", anyOpen, nil, nil},
		{"nor a failed one", anyFailed, nil, nil},
		{"nor a captured one", anyCaptured, nil, nil},
	})
}

func TestRequestChargeOfValues(t *testing.T) {
	t.Parallel()
	mug := domain.Item{SKU: "mug", Quantity: 1}
	for _, test := range []struct {
		name    string
		amount  int64
		items   []domain.Item
		refused error
	}{
		{"nothing is not an amount", 0, nil, domain.ErrInvalid},
		{"less than nothing is not an amount", -1, nil, domain.ErrInvalid},
		{"the smallest amount is one minor unit", 1, nil, nil},
		{"the largest amount is ten to the twelve", domain.MaxAmount, nil, nil},
		{"one more is refused", domain.MaxAmount + 1, nil, domain.ErrInvalid},
		{"one of an article is enough", 5, []domain.Item{mug}, nil},
		{"none of an article is refused", 5, []domain.Item{{SKU: "mug"}}, domain.ErrInvalid},
		{"minus one of an article is refused", 5, []domain.Item{{SKU: "mug", Quantity: -1}}, domain.ErrInvalid},
		{"an article stands in an order once", 5, []domain.Item{mug, mug}, domain.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			events, err := domain.Decide(domain.Charge{}, domain.RequestCharge{
				MerchantID: "acme", Amount: domain.Money{Amount: test.amount, Currency: "EUR"}, Items: test.items,
			})
			if !errors.Is(err, test.refused) || (err == nil) != (len(events) == 1) {
				t.Errorf("events %v, error %v, want %v", events, err, test.refused)
			}
		})
	}
}

func TestReserveInventory(t *testing.T) {
	t.Parallel()
	decides(t, domain.ReserveInventory{}, []verdict{
		{"there is no stock to hold for nothing", absent, nil, domain.ErrNoCharge},
		{"a requested charge holds its items", requested, []domain.Event{domain.InventoryReserved{Items: charge().Items}}, nil},
		{"also while it is to be canceled", canceling, []domain.Event{domain.InventoryReserved{Items: charge().Items}}, nil},
		{"a charge without items holds nothing", requestedBare, nil, nil},
		{"stock is not held twice", reserved, nil, nil},
		{"refused stock is not held later", rejected, nil, nil},
		{"a started payment has its stock", started, nil, nil},
		{"a started payment without items needs none", startedBare, nil, nil},
		{"a failed attempt keeps the stock", attemptFailed, nil, nil},
		{"a charge to be canceled has its stock or needs none", anyCanceling, nil, nil},
		{"a canceled charge holds no stock", anyCanceled, nil, nil},
		{"released stock is not held again", anyFailed, nil, nil},
		{"sold stock is not held again", anyCaptured, nil, nil},
	})
}

func TestRejectInventory(t *testing.T) {
	t.Parallel()
	decides(t, domain.RejectInventory{Code: domain.OutOfStock}, []verdict{
		{"no stock refuses nothing", absent, nil, domain.ErrNoCharge},
		{"a charge whose stock is refused fails", requested, history(rejected)[1:], nil},
		{"also while it is to be canceled", canceling, history(rejected)[1:], nil},
		{"a charge without items cannot lack stock", requestedBare, nil, domain.ErrOutOfOrder},
		{"held stock is not refused", reserved, nil, domain.ErrOutOfOrder},
		{"stock is not refused twice", rejected, nil, nil},
		{"stock is not refused under a started payment", started, nil, domain.ErrOutOfOrder},
		{"nor under one without items", startedBare, nil, domain.ErrOutOfOrder},
		{"nor under one with a failed attempt", attemptFailed, nil, domain.ErrOutOfOrder},
		{"nor once held under a charge to be canceled", anyCanceling, nil, domain.ErrOutOfOrder},
		{"nor under a canceled charge", anyCanceled, nil, domain.ErrOutOfOrder},
		{"released stock is not refused", anyFailed, nil, domain.ErrOutOfOrder},
		{"sold stock is not refused", anyCaptured, nil, domain.ErrOutOfOrder},
	})
}

func TestRejectInventorySaysWhy(t *testing.T) {
	t.Parallel()
	for code, message := range map[domain.FailureCode]string{
		domain.OutOfStock: "an item of the order is out of stock",
		domain.UnknownSKU: "an item of the order is not an article of the merchant",
	} {
		events, err := domain.Decide(in(requested), domain.RejectInventory{Code: code})
		want := []domain.Event{
			domain.InventoryRejected{Code: code},
			domain.ChargeFailed{Failure: domain.Failure{Code: code, Message: message}},
		}
		if diff := cmp.Diff(want, events); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", code, err, diff)
		}
	}
}

func TestStartPayment(t *testing.T) {
	t.Parallel()
	begun := []domain.Event{domain.PaymentStarted{Provider: "stripe", PaymentIntent: "pi_2"}}
	decides(t, domain.StartPayment{Provider: "stripe", PaymentIntent: "pi_2"}, []verdict{
		{"no payment starts for nothing", absent, nil, domain.ErrNoCharge},
		{"no payment starts before stock is held", requested, nil, domain.ErrOutOfOrder},
		{"nor while the charge is to be canceled", canceling, nil, domain.ErrOutOfOrder},
		{"a charge without items starts to pay at once", requestedBare, begun, nil},
		{"a charge that holds its stock starts to pay", reserved, begun, nil},
		{"an object made before the cancel was seen is recorded", cancelingReserved, begun, nil},
		{"also without items in the order", cancelingBare, begun, nil},
		{"the first payment intent stays the charge's own", anyOpen, nil, nil},
		{"a charge without stock is not paid", rejected, nil, domain.ErrFinished},
		{"a charge declined at once is not paid", declinedUnbegun, nil, domain.ErrFinished},
		{"a charge canceled at once is not paid", canceled, nil, domain.ErrFinished},
		{"nor one without items", canceledBare, nil, domain.ErrFinished},
		{"nor one that held stock", canceledReserved, nil, domain.ErrFinished},
		{"nor one whose merchant knows", canceledTold, nil, domain.ErrFinished},
		{"a payment that failed is not started again", anyFailed, nil, nil},
		{"nor one that is captured", anyCaptured, nil, nil},
	})
}

func TestStartPaymentNeedsAPaymentIntent(t *testing.T) {
	t.Parallel()
	events, err := domain.Decide(in(reserved), domain.StartPayment{Provider: "stripe"})
	if !errors.Is(err, domain.ErrInvalid) || len(events) != 0 {
		t.Errorf("a payment started on no payment intent: %v, %v", events, err)
	}
}

func TestFailAttempt(t *testing.T) {
	t.Parallel()
	failed := []domain.Event{domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 502, RequestID: "req_1"}}
	decides(t, domain.FailAttempt{Stage: domain.StageConfirm, StatusCode: 502, RequestID: "req_1"}, []verdict{
		{"no attempt fails for nothing", absent, nil, domain.ErrNoCharge},
		{"there is no attempt before stock is held", requested, nil, domain.ErrOutOfOrder},
		{"nor while the charge is to be canceled", canceling, nil, domain.ErrOutOfOrder},
		{"an attempt to create a payment intent fails", reserved, failed, nil},
		{"also without items", requestedBare, failed, nil},
		{"an attempt to confirm fails", started, failed, nil},
		{"also without items in the order", startedBare, failed, nil},
		{"a second attempt fails too", attemptFailed, failed, nil},
		{"an attempt fails while the charge is to be canceled", anyCanceling, failed, nil},
		{"a late failure adds nothing to a charge that failed", anyFailed, nil, nil},
		{"a late failure does not undo a capture", anyCaptured, nil, nil},
	})
}

func TestFailAttemptOpensTheNext(t *testing.T) {
	t.Parallel()
	for _, state := range []string{reserved, requestedBare, started, startedBare, attemptFailed} {
		c := in(state)
		events, err := domain.Decide(c, domain.FailAttempt{Stage: domain.StageConfirm, StatusCode: 502})
		after := domain.Fold(c, events...)
		if err != nil || after.AttemptVersion != c.Version+1 {
			t.Errorf("%s: the attempt's version is %d, want that of the failure, %d: %v", state, after.AttemptVersion, c.Version+1, err)
		}
	}
}

func TestCapturePayment(t *testing.T) {
	t.Parallel()
	taken := history(succeeded)[3:] // and the success
	decides(t, domain.CapturePayment{
		Provider: "stripe", PaymentIntent: "pi_1", Amount: domain.Money{Amount: 1000, Currency: "EUR"},
	}, []verdict{
		{"nothing is captured for nothing", absent, nil, domain.ErrNoCharge},
		{"nothing is captured without a payment intent", requested, nil, domain.ErrMismatch},
		{"nor for a charge without items", requestedBare, nil, domain.ErrMismatch},
		{"nor when stock alone is held", reserved, nil, domain.ErrMismatch},
		{"nor while such a charge is to be canceled", canceling, nil, domain.ErrMismatch},
		{"also without items in the order", cancelingBare, nil, domain.ErrMismatch},
		{"also with stock held", cancelingReserved, nil, domain.ErrMismatch},
		{"a started payment is captured, and the charge succeeds", started, taken, nil},
		{"also without items", startedBare, taken, nil},
		{"also after a failed attempt", attemptFailed, taken, nil},
		{"a capture is faster than a cancel", anyCanceling, taken, nil},
		{"nothing is captured when stock refused", rejected, nil, domain.ErrMismatch},
		{"nor once declined before there was a payment intent", declinedUnbegun, nil, domain.ErrMismatch},
		{"nor once canceled before", canceled, nil, domain.ErrMismatch},
		{"nor so without items", canceledBare, nil, domain.ErrMismatch},
		{"nor so with stock held", canceledReserved, nil, domain.ErrMismatch},
		{"nor so once the merchant knows", canceledTold, nil, domain.ErrMismatch},
		{"a payment that failed is not captured", anyFailed, nil, domain.ErrFinished},
		{"a captured charge is not captured again", anyCaptured, nil, nil},
	})
}

func TestCapturePaymentOfSomethingElse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		state  string
		intent string
		amount domain.Money
	}{
		{"another payment intent", started, "pi_2", domain.Money{Amount: 1000, Currency: "EUR"}},
		{"another amount", started, "pi_1", domain.Money{Amount: 1001, Currency: "EUR"}},
		{"another currency", started, "pi_1", domain.Money{Amount: 1000, Currency: "USD"}},
		{"another payment intent of a captured charge", succeeded, "pi_2", domain.Money{Amount: 1000, Currency: "EUR"}},
		{"no payment intent at all", reserved, "", domain.Money{Amount: 1000, Currency: "EUR"}},
		{"no payment intent at all before stock is held", requested, "", domain.Money{Amount: 1000, Currency: "EUR"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			events, err := domain.Decide(in(test.state), domain.CapturePayment{
				Provider: "stripe", PaymentIntent: test.intent, Amount: test.amount,
			})
			if !errors.Is(err, domain.ErrMismatch) || len(events) != 0 {
				t.Errorf("events %v, error %v, want ErrMismatch", events, err)
			}
		})
	}
}

func TestDeclinePayment(t *testing.T) {
	t.Parallel()
	compensated := history(declined)[3:]
	bare := []domain.Event{domain.PaymentDeclined{Failure: stolen()}, domain.ChargeFailed{Failure: stolen()}}
	decides(t, domain.DeclinePayment{Failure: stolen()}, []verdict{
		{"nothing is declined for nothing", absent, nil, domain.ErrNoCharge},
		{"nothing is declined before stock is held", requested, nil, domain.ErrOutOfOrder},
		{"nor while the charge is to be canceled", canceling, nil, domain.ErrOutOfOrder},
		{"a charge without items is declined and releases nothing", requestedBare, bare, nil},
		{"also while it is to be canceled", cancelingBare, bare, nil},
		{"a charge is declined before it has a payment intent", reserved, compensated, nil},
		{"a started payment is declined, its stock released, the charge failed", started, compensated, nil},
		{"without items there is no stock to release", startedBare, bare, nil},
		{"nor is there while it is to be canceled", cancelingStartedBare, bare, nil},
		{"a decline may follow a failed attempt", attemptFailed, compensated, nil},
		{"a decline may be faster than a cancel", anyCanceling, compensated, nil},
		{"a charge without stock was never paid", rejected, nil, domain.ErrFinished},
		{"nor was a charge canceled at once", canceled, nil, domain.ErrFinished},
		{"nor one without items", canceledBare, nil, domain.ErrFinished},
		{"nor one that held stock", canceledReserved, nil, domain.ErrFinished},
		{"nor one whose merchant knows", canceledTold, nil, domain.ErrFinished},
		{"a payment that failed is not declined again", anyFailed, nil, nil},
		{"a captured charge is not declined", anyCaptured, nil, domain.ErrFinished},
	})
}

func TestDecideNamesItsRefusals(t *testing.T) {
	t.Parallel()
	_, err := domain.Decide(in(started), domain.CapturePayment{
		PaymentIntent: "pi_9", Amount: domain.Money{Amount: 7, Currency: "USD"},
	})
	const want = "captured 7 USD by pi_9: the provider's object is not the charge's"
	if err == nil || err.Error() != want {
		t.Errorf("the refusal says %q, want %q", err, want)
	}
	if _, err := domain.Decide(in(started), nil); !cmp.Equal(err, domain.ErrInvalid, cmpopts.EquateErrors()) {
		t.Errorf("no command at all: %v, want ErrInvalid", err)
	}
}
