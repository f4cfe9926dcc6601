package domain_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/payonce/payonce/domain"
)

// verdict is what a command does to a charge in one state: causes events, is
// refused by a sentinel, or, where both are absent, has happened already.
type verdict struct {
	name    string
	state   string
	causes  []domain.Event
	refused error
}

// decides checks a command against every state there is.
func decides(t *testing.T, cmd domain.Command, verdicts []verdict) {
	t.Helper()
	missing := states()
	for _, v := range verdicts {
		missing = slices.DeleteFunc(missing, func(state string) bool { return state == v.state })
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			c := in(v.state)
			events, err := domain.Decide(c, cmd)
			if !errors.Is(err, v.refused) {
				t.Errorf("the error is %v, want %v", err, v.refused)
			}
			if diff := cmp.Diff(v.causes, events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(in(v.state), c); diff != "" {
				t.Errorf("Decide changed its argument (-want +got):\n%s", diff)
			}
			if err != nil {
				return
			}
			if again, err := domain.Decide(domain.Fold(c, events...), cmd); len(again) != 0 || err != nil {
				t.Errorf("the same command again returns %v and %v, want nothing", again, err)
			}
		})
	}
	if len(missing) > 0 {
		t.Errorf("no verdict for %T on a charge that is %q", cmd, missing)
	}
}

func TestRequestCharge(t *testing.T) {
	t.Parallel()
	first := charge()
	decides(t, domain.RequestCharge{
		MerchantID: "acme", OrderID: "order 1", Amount: domain.Money{Amount: 1000, Currency: "EUR"},
		Fees:          domain.FeeSchedule{BasisPoints: 300},
		PaymentMethod: "pm_card_visa", Items: first.Items,
		Description: "a mug", Metadata: first.Metadata, Notify: true,
	}, []verdict{
		{"a request opens a charge and freezes its fee", absent, []domain.Event{first}, nil},
		{"a requested charge is not requested again", requested, nil, nil},
		{"nor one without items", requestedBare, nil, nil},
		{"nor one that holds stock", reserved, nil, nil},
		{"nor one that stock refused", rejected, nil, nil},
		{"nor one whose payment started", started, nil, nil},
		{"nor one without items whose payment started", startedBare, nil, nil},
		{"nor one with a failed attempt", attemptFailed, nil, nil},
		{"nor one that succeeded", succeeded, nil, nil},
		{"nor one that was declined", declined, nil, nil},
		{"nor one that was declined at once", declinedUnbegun, nil, nil},
		{"nor one whose merchant knows", told, nil, nil},
		{"nor one whose merchant knows the failure", failedAndTold, nil, nil},
		{"nor one without webhook", succeededSilent, nil, nil},
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
		{"a charge without items holds nothing", requestedBare, nil, nil},
		{"stock is not held twice", reserved, nil, nil},
		{"refused stock is not held later", rejected, nil, nil},
		{"a started payment has its stock", started, nil, nil},
		{"a started payment without items needs none", startedBare, nil, nil},
		{"a failed attempt keeps the stock", attemptFailed, nil, nil},
		{"sold stock is not held again", succeeded, nil, nil},
		{"released stock is not held again", declined, nil, nil},
		{"nor is stock released at once", declinedUnbegun, nil, nil},
		{"nor is stock that the merchant knows sold", told, nil, nil},
		{"nor is stock that the merchant knows released", failedAndTold, nil, nil},
		{"nor is stock sold without webhook", succeededSilent, nil, nil},
	})
}

func TestRejectInventory(t *testing.T) {
	t.Parallel()
	decides(t, domain.RejectInventory{Code: domain.OutOfStock}, []verdict{
		{"no stock refuses nothing", absent, nil, domain.ErrNoCharge},
		{"a charge whose stock is refused fails", requested, history(rejected)[1:], nil},
		{"a charge without items cannot lack stock", requestedBare, nil, domain.ErrOutOfOrder},
		{"held stock is not refused", reserved, nil, domain.ErrOutOfOrder},
		{"stock is not refused twice", rejected, nil, nil},
		{"stock is not refused under a started payment", started, nil, domain.ErrOutOfOrder},
		{"nor under one without items", startedBare, nil, domain.ErrOutOfOrder},
		{"nor under one with a failed attempt", attemptFailed, nil, domain.ErrOutOfOrder},
		{"sold stock is not refused", succeeded, nil, domain.ErrOutOfOrder},
		{"released stock is not refused", declined, nil, domain.ErrOutOfOrder},
		{"nor stock released at once", declinedUnbegun, nil, domain.ErrOutOfOrder},
		{"nor stock that the merchant knows sold", told, nil, domain.ErrOutOfOrder},
		{"nor stock that the merchant knows released", failedAndTold, nil, domain.ErrOutOfOrder},
		{"nor stock sold without webhook", succeededSilent, nil, domain.ErrOutOfOrder},
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
		{"a charge without items starts to pay at once", requestedBare, begun, nil},
		{"a charge that holds its stock starts to pay", reserved, begun, nil},
		{"a charge without stock is not paid", rejected, nil, domain.ErrFinished},
		{"the first payment intent stays the charge's own", started, nil, nil},
		{"also without items", startedBare, nil, nil},
		{"also after a failed attempt", attemptFailed, nil, nil},
		{"also once captured", succeeded, nil, nil},
		{"also once declined", declined, nil, nil},
		{"a charge declined at once is not paid", declinedUnbegun, nil, domain.ErrFinished},
		{"a finished payment is not started", told, nil, nil},
		{"nor a declined one", failedAndTold, nil, nil},
		{"nor one without webhook", succeededSilent, nil, nil},
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
	cmd := domain.FailAttempt{Stage: domain.StageConfirm, StatusCode: 502, RequestID: "req_1"}
	failed := []domain.Event{domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 502, RequestID: "req_1"}}
	for _, test := range []verdict{
		{"no attempt fails for nothing", absent, nil, domain.ErrNoCharge},
		{"an attempt to create a payment intent fails", reserved, failed, nil},
		{"also without items", requestedBare, failed, nil},
		{"an attempt to confirm fails", started, failed, nil},
		{"also without items in the order", startedBare, failed, nil},
		{"a second attempt fails too", attemptFailed, failed, nil},
		{"there is no attempt before stock is held", requested, nil, domain.ErrOutOfOrder},
		{"a charge without stock has no attempt", rejected, nil, nil},
		{"a late failure does not undo a capture", succeeded, nil, nil},
		{"a late failure adds nothing to a decline", declined, nil, nil},
		{"nor to a decline at once", declinedUnbegun, nil, nil},
		{"nor to what the merchant knows", told, nil, nil},
		{"nor to a failure that the merchant knows", failedAndTold, nil, nil},
		{"nor to a capture without webhook", succeededSilent, nil, nil},
	} {
		// Unlike all others, this command has no "again": each is another attempt.
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := in(test.state)
			events, err := domain.Decide(c, cmd)
			if diff := cmp.Diff(test.causes, events); diff != "" || !errors.Is(err, test.refused) {
				t.Errorf("error %v, want %v; events (-want +got):\n%s", err, test.refused, diff)
			}
			after := domain.Fold(c, events...)
			if len(events) == 1 && after.AttemptVersion != after.Version {
				t.Errorf("the attempt's version is %d, want that of the failure, %d", after.AttemptVersion, after.Version)
			}
		})
	}
}

func TestCapturePayment(t *testing.T) {
	t.Parallel()
	taken := history(succeeded)[3:]
	decides(t, domain.CapturePayment{
		Provider: "stripe", PaymentIntent: "pi_1", Amount: domain.Money{Amount: 1000, Currency: "EUR"},
	}, []verdict{
		{"nothing is captured for nothing", absent, nil, domain.ErrNoCharge},
		{"nothing is captured without a payment intent", requested, nil, domain.ErrMismatch},
		{"nor for a charge without items", requestedBare, nil, domain.ErrMismatch},
		{"nor when stock alone is held", reserved, nil, domain.ErrMismatch},
		{"nor when stock refused", rejected, nil, domain.ErrMismatch},
		{"a started payment is captured, and the charge succeeds", started, taken, nil},
		{"also without items", startedBare, taken, nil},
		{"also after a failed attempt", attemptFailed, taken, nil},
		{"a captured charge is not captured again", succeeded, nil, nil},
		{"a declined charge is not captured", declined, nil, domain.ErrFinished},
		{"nor one declined before it had a payment intent", declinedUnbegun, nil, domain.ErrMismatch},
		{"nor one whose merchant knows", told, nil, nil},
		{"nor a declined one whose merchant knows", failedAndTold, nil, domain.ErrFinished},
		{"nor one without webhook", succeededSilent, nil, nil},
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
		{"a charge without items is declined and releases nothing", requestedBare, bare, nil},
		{"a charge is declined before it has a payment intent", reserved, compensated, nil},
		{"a charge without stock was never paid", rejected, nil, domain.ErrFinished},
		{"a started payment is declined, its stock released, the charge failed", started, compensated, nil},
		{"without items there is no stock to release", startedBare, bare, nil},
		{"a decline may follow a failed attempt", attemptFailed, compensated, nil},
		{"a captured charge is not declined", succeeded, nil, domain.ErrFinished},
		{"a declined charge is not declined again", declined, nil, nil},
		{"nor one declined at once", declinedUnbegun, nil, nil},
		{"nor a captured one whose merchant knows", told, nil, domain.ErrFinished},
		{"nor a declined one whose merchant knows", failedAndTold, nil, nil},
		{"nor a captured one without webhook", succeededSilent, nil, domain.ErrFinished},
	})
}

func TestNotifyMerchant(t *testing.T) {
	t.Parallel()
	notified := []domain.Event{domain.MerchantNotified{EventID: "e", Type: "charge.succeeded"}}
	decides(t, domain.NotifyMerchant{EventID: "e", Type: "charge.succeeded"}, []verdict{
		{"nobody is told of nothing", absent, nil, domain.ErrNoCharge},
		{"nobody is told of a request", requested, nil, domain.ErrOutOfOrder},
		{"nor of one without items", requestedBare, nil, domain.ErrOutOfOrder},
		{"nor of held stock", reserved, nil, domain.ErrOutOfOrder},
		{"the merchant is told of refused stock", rejected, notified, nil},
		{"nobody is told of a started payment", started, nil, domain.ErrOutOfOrder},
		{"nor of one without items in the order", startedBare, nil, domain.ErrOutOfOrder},
		{"nor of a failed attempt", attemptFailed, nil, domain.ErrOutOfOrder},
		{"the merchant is told of a success", succeeded, notified, nil},
		{"the merchant is told of a decline", declined, notified, nil},
		{"the merchant is told of a decline at once", declinedUnbegun, notified, nil},
		{"the merchant is told once", told, nil, nil},
		{"the merchant is told of a failure once", failedAndTold, nil, nil},
		{"a merchant without webhook is not told", succeededSilent, nil, nil},
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
