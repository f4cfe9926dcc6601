package stripe_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/stripe"
)

// The sandbox's own tests hold its behavior; these hold that the client understands
// a provider that keeps state.

func TestSandbox_chargesOnce(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	in := o.created("pm_card_visa")
	want := stripe.Intent{ID: in.ID, Status: stripe.RequiresConfirmation, Amount: 1999, Currency: "EUR", Reference: "ch_1", Created: in.Created}
	for _, got := range []stripe.Intent{in, o.created("pm_card_visa")} { // the second is replayed
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("created (-want +got):\n%s", diff)
		}
	}
	want.Status, want.AmountReceived, want.Attempted = stripe.Succeeded, 1999, true
	for i, call := range []func() (stripe.Intent, error){
		func() (stripe.Intent, error) { return o.ConfirmIntent(t.Context(), "confirm", in.ID) },
		func() (stripe.Intent, error) { return o.ConfirmIntent(t.Context(), "confirm", in.ID) },
		func() (stripe.Intent, error) { return o.RetrieveIntent(t.Context(), in.ID) },
		func() (stripe.Intent, error) { return o.CancelIntent(t.Context(), in.ID) },
	} {
		got, err := call()
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("call %d: %v (-want +got):\n%s", i, err, diff)
		}
	}
	o.refusesAConfirmation(in.ID)
	if b := o.books(); len(b.Captures) != 1 || b.Captures[0].Amount != 1999 || b.Requests != 7 {
		t.Errorf("books are %+v, want one capture after 7 requests", b)
	}
}

// refusesAConfirmation confirms under a new key.
func (o outside) refusesAConfirmation(id string) {
	o.t.Helper()
	var rejected *stripe.RejectedError
	if _, err := o.ConfirmIntent(o.t.Context(), "another_key", id); !errors.As(err, &rejected) || rejected.Code != stripe.CodeUnexpectedState {
		o.t.Errorf("second confirmation: %v, want it rejected for the state", err)
	}
}

func TestSandbox_declines(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]stripe.Decline{
		"pm_card_chargeDeclined":                  {Code: "card_declined", DeclineCode: "generic_decline"},
		"pm_card_chargeDeclinedInsufficientFunds": {Code: "card_declined", DeclineCode: "insufficient_funds"},
		"pm_card_authenticationRequired":          {Code: "authentication_required", DeclineCode: "authentication_required"},
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			o := newOutside(t)
			in := o.created(method)
			_, err := o.ConfirmIntent(t.Context(), "confirm", in.ID)
			var declined *stripe.DeclinedError
			if !errors.As(err, &declined) {
				t.Fatalf("confirm: %v, want a decline", err)
			}
			want.Message = declined.Decline.Message
			if diff := cmp.Diff(want, declined.Decline); diff != "" || want.Message == "" {
				t.Errorf("decline (-want +got):\n%s", diff)
			}
			retrieved, err := o.RetrieveIntent(t.Context(), in.ID)
			if diff := cmp.Diff(declined.Intent, retrieved); err != nil || diff != "" {
				t.Errorf("retrieved: %v, differs from the declined (-declined +retrieved):\n%s", err, diff)
			}
			if retrieved.Status != stripe.RequiresPaymentMethod || !retrieved.Attempted || retrieved.Decline == nil {
				t.Errorf("retrieved is %+v, want an attempted and declined one", retrieved)
			}
			o.refusesAConfirmation(in.ID) // it has no payment method any more
			for range 2 {                 // the second finds it canceled
				if canceled, err := o.CancelIntent(t.Context(), in.ID); err != nil || canceled.Status != stripe.Canceled {
					t.Errorf("cancel: %+v, %v", canceled, err)
				}
			}
			if b := o.books(); len(b.Captures) != 0 {
				t.Errorf("books are %+v, want no capture", b)
			}
		})
	}
}

func TestSandbox_refunds(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]stripe.Refund{
		"pm_card_visa":       {Status: stripe.RefundSucceeded},
		"pm_card_refundFail": {Status: stripe.RefundFailed, FailureReason: "expired_or_canceled_card"},
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			o := newOutside(t)
			in := o.created(method)
			if _, err := o.CreateRefund(t.Context(), "early", refundParams(in.ID)); kinds(err) != "rejected" {
				t.Errorf("refund before the capture: %v, want a rejection", err)
			}
			if _, err := o.ConfirmIntent(t.Context(), "confirm", in.ID); err != nil {
				t.Fatal(err)
			}
			var got []stripe.Refund
			for range 2 { // the second is replayed
				r, err := o.CreateRefund(t.Context(), "refund", refundParams(in.ID))
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, r)
			}
			listed, err := collect(o.RefundsOf(t.Context(), in.ID))
			if err != nil {
				t.Fatal(err)
			}
			want.ID, want.PaymentIntent, want.Reference, want.Amount, want.Currency = got[0].ID, in.ID, "re_ours", 500, "EUR"
			if diff := cmp.Diff([]stripe.Refund{want, want, want}, append(got, listed...)); diff != "" {
				t.Errorf("made, replayed and listed (-want +got):\n%s", diff)
			}
		})
	}
}
