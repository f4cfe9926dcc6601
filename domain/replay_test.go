package domain_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	first := charge()
	free, dear, huge, gift := first, first, first, first
	free.Amount = 0
	dear.Fee = first.Amount + 1
	huge.Amount = domain.MaxAmount + 1
	gift.Fee = -1
	held := domain.InventoryReserved{Items: first.Items}
	begun := domain.PaymentStarted{Provider: "stripe", PaymentIntent: "pi_1"}
	taken := domain.PaymentCaptured{Provider: "stripe", PaymentIntent: "pi_1", Amount: 1000, Currency: "EUR", Fee: 30}
	foreign, cheap, yen, feeless := taken, taken, taken, taken
	foreign.PaymentIntent = "pi_2"
	cheap.Amount = 999
	yen.Currency = "JPY"
	feeless.Fee = 0
	refusal := domain.PaymentDeclined{Failure: stolen()}
	notified := domain.MerchantNotified{EventID: "e", Type: "charge.succeeded"}
	for _, test := range []struct {
		name  string
		state string
		next  domain.Event
	}{
		{"a stream that begins in the middle", absent, held},
		{"a charge of nothing", absent, free},
		{"a charge beyond the bound", absent, huge},
		{"a fee above the amount", absent, dear},
		{"a fee below nothing", absent, gift},
		{"a stream that is opened twice", requested, first},
		{"stock held for an order without items", requestedBare, held},
		{"stock held twice", reserved, held},
		{"stock held after it was refused", rejected, held},
		{"stock refused after it was held", reserved, domain.InventoryRejected{Code: domain.OutOfStock}},
		{"stock refused twice", rejected, domain.InventoryRejected{Code: domain.OutOfStock}},
		{"stock released while the payment is open", reserved, domain.InventoryReleased{Items: first.Items}},
		{"stock released after the sale", succeeded, domain.InventoryReleased{Items: first.Items}},
		{"stock released twice", declined, domain.InventoryReleased{Items: first.Items}},
		{"a payment before stock is held", requested, begun},
		{"a payment after stock was refused", rejected, begun},
		{"a second payment intent", started, domain.PaymentStarted{Provider: "stripe", PaymentIntent: "pi_2"}},
		{"a payment without payment intent", reserved, domain.PaymentStarted{Provider: "stripe"}},
		{"a failed attempt before stock is held", requested, domain.PaymentAttemptFailed{}},
		{"a failed attempt after the capture", succeeded, domain.PaymentAttemptFailed{}},
		{"a failed attempt after the decline", declined, domain.PaymentAttemptFailed{}},
		{"a capture without payment intent", reserved, taken},
		{"a capture of another payment intent", started, foreign},
		{"a capture of another amount", started, cheap},
		{"a capture in another currency", started, yen},
		{"a capture with another fee", started, feeless},
		{"a second capture", succeeded, taken},
		{"a capture after a decline", declined, taken},
		{"a decline before stock is held", requested, refusal},
		{"a decline after the capture", succeeded, refusal},
		{"a second decline", declined, refusal},
		{"a success without capture", started, domain.ChargeSucceeded{}},
		{"a second success", succeeded, domain.ChargeSucceeded{}},
		{"a success after a failure", declined, domain.ChargeSucceeded{}},
		{"a failure without reason", started, domain.ChargeFailed{}},
		{"a failure after a success", succeeded, domain.ChargeFailed{}},
		{"a second failure", declined, domain.ChargeFailed{}},
		{"a webhook before the outcome", started, notified},
		{"a second webhook", told, notified},
		{"a webhook to nobody", succeededSilent, notified},
		{"an event of no kind", requested, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			events := append(history(test.state), test.next)
			c, err := domain.Replay(events)
			if !errors.Is(err, domain.ErrIllegal) {
				t.Fatalf("the error is %v, want ErrIllegal", err)
			}
			want := domain.Fold(domain.Charge{}, history(test.state)...)
			if diff := cmp.Diff(want, c); diff != "" {
				t.Errorf("the fold stops before the illegal event (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReplayRefusesAFailureThatKeepsItsStock(t *testing.T) {
	t.Parallel()
	events := append(history(started), domain.PaymentDeclined{Failure: stolen()}, domain.ChargeFailed{Failure: stolen()})
	if _, err := domain.Replay(events); !errors.Is(err, domain.ErrIllegal) {
		t.Errorf("the error is %v, want ErrIllegal", err)
	}
}

func TestEvolve(t *testing.T) {
	t.Parallel()

	t.Run("every event moves the version by one", func(t *testing.T) {
		t.Parallel()
		for _, state := range states() {
			if got, want := in(state).Version, len(history(state)); got != want {
				t.Errorf("%s: version %d, want %d", state, got, want)
			}
		}
	})

	t.Run("its argument stays as it was", func(t *testing.T) {
		t.Parallel()
		for _, state := range states() {
			before := in(state)
			for _, e := range history(declined) {
				_ = domain.Evolve(before, e)
			}
			if diff := cmp.Diff(in(state), before); diff != "" {
				t.Errorf("%s (-want +got):\n%s", state, diff)
			}
		}
	})

	t.Run("what the events say is in the charge", func(t *testing.T) {
		t.Parallel()
		failure := stolen()
		want := domain.Charge{
			ID: "ch_1", MerchantID: "acme", OrderID: "order 1",
			Amount: domain.Money{Amount: 1000, Currency: "EUR"}, Fee: 30, PaymentMethod: "pm_card_visa",
			Items: []domain.Item{{SKU: "mug", Quantity: 2}}, Description: "a mug",
			Metadata: map[string]string{"basket": "7"},
			Status:   domain.Failed, Inventory: domain.StepCompensated, Payment: domain.StepFailed,
			Notification: domain.StepDone, Failure: &failure,
			PaymentIntent: "pi_1", Version: 7, AttemptVersion: 3, OutcomeVersion: 6,
		}
		if diff := cmp.Diff(want, in(failedAndTold)); diff != "" {
			t.Errorf("charge (-want +got):\n%s", diff)
		}
	})

	t.Run("each attempt has the version of the event that opened it", func(t *testing.T) {
		t.Parallel()
		for state, want := range map[string]int{
			requestedBare: 1, reserved: 2, started: 3, startedBare: 2, attemptFailed: 4, succeeded: 3,
		} {
			if got := in(state).AttemptVersion; got != want {
				t.Errorf("%s: attempt version %d, want %d", state, got, want)
			}
		}
	})
}

func TestCharge(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		state                     string
		exists, started, terminal bool
	}{
		{absent, false, false, false},
		{requested, true, false, false},
		{rejected, true, false, true},
		{started, true, true, false},
		{succeeded, true, true, true},
		{declined, true, true, true},
		{declinedUnbegun, true, false, true},
	} {
		c := in(test.state)
		if c.Exists() != test.exists || c.Started() != test.started || c.Terminal() != test.terminal {
			t.Errorf("%s: exists %v, started %v, terminal %v", test.state, c.Exists(), c.Started(), c.Terminal())
		}
	}
}
