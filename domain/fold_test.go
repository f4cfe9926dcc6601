package domain_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/payonce/payonce/domain"
)

func TestFold(t *testing.T) {
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
			for _, e := range stored() {
				_ = domain.Fold(before, e)
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
			Status:   domain.Failed, Failure: &failure,
			Steps: []domain.StepState{
				{Name: "inventory", Status: domain.StepCompensated},
				{Name: "payment", Status: domain.StepFailed},
				{Name: "notification", Status: domain.StepDone},
			},
			PaymentIntent: "pi_1", Version: 7, AttemptVersion: 3, OutcomeVersion: 6,
		}
		if diff := cmp.Diff(want, in(failedAndTold), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("charge (-want +got):\n%s", diff)
		}
	})

	t.Run("each attempt has the version of the event that opened it", func(t *testing.T) {
		t.Parallel()
		for state, want := range map[string]int{
			requestedBare: 1, reserved: 2, started: 3, startedBare: 2, attemptFailed: 4, succeeded: 3,
			cancelingStarted: 3, refundAttempted: 3,
		} {
			if got := in(state).AttemptVersion; got != want {
				t.Errorf("%s: attempt version %d, want %d", state, got, want)
			}
		}
	})

	t.Run("two continuations of one charge share nothing", func(t *testing.T) {
		t.Parallel()
		c := in(succeeded)
		for i, id := range []string{"re_1", "re_2", "re_3", "re_4", "re_5", "re_6"} {
			left := domain.Fold(c, back("left", 1))
			right := domain.Fold(c, back("right", 2))
			if left.Refunds[i].ID != "left" || right.Refunds[i].ID != "right" {
				t.Errorf("after %d refunds the next are %s and %s", i, left.Refunds[i].ID, right.Refunds[i].ID)
			}
			c = domain.Fold(c, back(id, 10))
		}
		for i, id := range []string{"re_1", "re_2", "re_3", "re_4", "re_5", "re_6"} {
			soon := domain.Fold(c, gone(id, "rp_"+id, 10))
			late := domain.Fold(c, domain.RefundAttemptFailed{RefundID: id}, gone(id, "rp_"+id, 10))
			if got := []int{soon.Unnotified[i+1], late.Unnotified[i+1]}; got[0] != c.Version+1 || got[1] != c.Version+2 {
				t.Errorf("after %d outcomes those of version %d and %d are untold", i+1, got[0], got[1])
			}
			c = soon
		}
	})

	t.Run("two ends of one refund share nothing", func(t *testing.T) {
		t.Parallel()
		before := in(refundPending)
		good := domain.Fold(before, gone("re_1", "rp_1", 400))
		bad := domain.Fold(before, domain.RefundFailed{RefundID: "re_1", Code: domain.ProviderRefused})
		ends := []domain.RefundStatus{before.Refunds[0].Status, good.Refunds[0].Status, bad.Refunds[0].Status}
		want := []domain.RefundStatus{domain.RefundStatusPending, domain.RefundStatusSucceeded, domain.RefundStatusFailed}
		if diff := cmp.Diff(want, ends); diff != "" {
			t.Errorf("before, good and bad (-want +got):\n%s", diff)
		}
	})

	t.Run("two webhooks of one charge share nothing", func(t *testing.T) {
		t.Parallel()
		before := in(refundReversed)
		for _, version := range []int{5, 7, 8} {
			_ = domain.Fold(before, domain.MerchantNotified{EventID: "e", Version: version})
		}
		if diff := cmp.Diff([]int{5, 7, 8}, before.Unnotified); diff != "" {
			t.Errorf("untold (-want +got):\n%s", diff)
		}
	})

	t.Run("an event about a refund that there is not changes nothing but the version", func(t *testing.T) {
		t.Parallel()
		want := in(succeeded)
		want.Version++
		for _, e := range []domain.Event{
			gone("re_9", "rp_9", 1),
			domain.RefundAttemptFailed{RefundID: "re_9"},
			domain.RefundFailed{RefundID: "re_9"},
			domain.RefundReversed{RefundID: "re_9"},
		} {
			if diff := cmp.Diff(want, domain.Fold(in(succeeded), e)); diff != "" {
				t.Errorf("%T (-want +got):\n%s", e, diff)
			}
		}
	})
}
