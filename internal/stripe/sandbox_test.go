package stripe_test

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/stripe"
)

func TestSandbox_charges_once(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	in := o.created("pm_card_visa")
	want := stripe.Intent{ID: in.ID, Status: stripe.RequiresConfirmation, Amount: 1999, Currency: "EUR", Reference: "ch_1", Created: in.Created}
	if diff := cmp.Diff(want, in); diff != "" {
		t.Errorf("created (-want +got):\n%s", diff)
	}
	if again := o.created("pm_card_visa"); again != in {
		t.Errorf("the same key made %+v, want %+v again", again, in)
	}
	want.Status, want.AmountReceived, want.Attempted = stripe.Succeeded, 1999, true
	for range 2 { // the second is replayed
		confirmed, err := o.ConfirmIntent(t.Context(), "confirm", in.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, confirmed); diff != "" {
			t.Errorf("confirmed (-want +got):\n%s", diff)
		}
	}
	retrieved, err := o.RetrieveIntent(t.Context(), in.ID)
	if diff := cmp.Diff(want, retrieved); err != nil || diff != "" {
		t.Errorf("retrieved: %v (-want +got):\n%s", err, diff)
	}
	canceled, err := o.CancelIntent(t.Context(), in.ID)
	if diff := cmp.Diff(want, canceled); err != nil || diff != "" {
		t.Errorf("cancel of a captured intent: %v (-want +got):\n%s", err, diff)
	}
	var rejected *stripe.RejectedError
	if _, err := o.ConfirmIntent(t.Context(), "another_key", in.ID); !errors.As(err, &rejected) || rejected.Code != stripe.CodeUnexpectedState {
		t.Errorf("second confirmation: %v, want it rejected for the state", err)
	}
	if b := o.books(); len(b.Captures) != 1 || b.Captures[0].Amount != 1999 || b.Requests != 7 {
		t.Errorf("books are %+v, want one capture after 7 requests", b)
	}
}

func TestSandbox_declines(t *testing.T) {
	t.Parallel()
	for method, tc := range map[string]struct {
		decline        stripe.Decline
		authentication bool
	}{
		"pm_card_chargeDeclined":                  {stripe.Decline{Code: "card_declined", DeclineCode: "generic_decline"}, false},
		"pm_card_chargeDeclinedInsufficientFunds": {stripe.Decline{Code: "card_declined", DeclineCode: "insufficient_funds"}, false},
		"pm_card_authenticationRequired":          {stripe.Decline{Code: "authentication_required", DeclineCode: "authentication_required"}, true},
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
			tc.decline.Message = declined.Decline.Message
			if diff := cmp.Diff(tc.decline, declined.Decline); diff != "" || tc.decline.Message == "" {
				t.Errorf("decline (-want +got):\n%s", diff)
			}
			if declined.Decline.AuthenticationRequired() != tc.authentication {
				t.Errorf("authentication required is %t, want %t", !tc.authentication, tc.authentication)
			}
			retrieved, err := o.RetrieveIntent(t.Context(), in.ID)
			if diff := cmp.Diff(declined.Intent, retrieved); err != nil || diff != "" {
				t.Errorf("retrieved: %v, differs from the declined (-declined +retrieved):\n%s", err, diff)
			}
			if retrieved.Status != stripe.RequiresPaymentMethod || !retrieved.Attempted || retrieved.Decline == nil {
				t.Errorf("retrieved is %+v, want an attempted and declined one", retrieved)
			}
			// It brings no payment method, so it cannot try again, under any key.
			var rejected *stripe.RejectedError
			if _, err := o.ConfirmIntent(t.Context(), "another_key", in.ID); !errors.As(err, &rejected) || rejected.Code != stripe.CodeUnexpectedState {
				t.Errorf("second confirmation: %v, want it rejected for the state", err)
			}
			for range 2 { // the second finds it canceled
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

func TestSandbox_rejects_an_unknown_payment_method(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	_, err := o.CreateIntent(t.Context(), "create", stripe.CreateParams{Reference: "ch_1", Amount: 1999, Currency: "EUR", PaymentMethod: "pm_none"})
	var rejected *stripe.RejectedError
	if !errors.As(err, &rejected) || rejected.StatusCode != http.StatusBadRequest || rejected.Code != "resource_missing" {
		t.Errorf("create: %v, want resource_missing", err)
	}
	if _, err := o.RetrieveIntent(t.Context(), "pi_none"); kinds(err) != "rejected" {
		t.Errorf("retrieve: %v, want a rejection", err)
	}
}

func TestSandbox_processes_for_a_while(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	in := o.created("pm_card_processing")
	confirmed, err := o.ConfirmIntent(t.Context(), "confirm", in.ID)
	if err != nil || confirmed.Status != stripe.Processing {
		t.Fatalf("confirm: %+v, %v", confirmed, err)
	}
	await.True(t, "the intent succeeds", func() bool {
		now, err := o.RetrieveIntent(t.Context(), in.ID)
		if err != nil || (now.Status != stripe.Processing && now.Status != stripe.Succeeded) {
			t.Fatalf("retrieved: %+v, %v", now, err)
		}
		return now.Status == stripe.Succeeded
	})
}

func TestSandbox_refunds(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	in := o.created("pm_card_visa")
	if _, err := o.CreateRefund(t.Context(), "early", refundParams(in.ID)); kinds(err) != "rejected" {
		t.Errorf("refund before the capture: %v, want a rejection", err)
	}
	if _, err := o.ConfirmIntent(t.Context(), "confirm", in.ID); err != nil {
		t.Fatal(err)
	}
	r, err := o.CreateRefund(t.Context(), "refund", refundParams(in.ID))
	want := stripe.Refund{ID: r.ID, PaymentIntent: in.ID, Reference: "re_ours", Status: stripe.RefundSucceeded, Amount: 500, Currency: "EUR"}
	if diff := cmp.Diff(want, r); err != nil || diff != "" {
		t.Fatalf("refund: %v (-want +got):\n%s", err, diff)
	}
	if again, err := o.CreateRefund(t.Context(), "refund", refundParams(in.ID)); err != nil || again != r {
		t.Errorf("the same key: %+v, %v, want %+v again", again, err, r)
	}
	if retrieved, err := o.RetrieveRefund(t.Context(), r.ID); err != nil || retrieved != r {
		t.Errorf("retrieved: %+v, %v", retrieved, err)
	}
	for name, seq := range map[string]func(func(stripe.Refund, error) bool){
		"of the intent": o.RefundsOf(t.Context(), in.ID), "of the account": o.Refunds(t.Context()),
	} {
		var listed []stripe.Refund
		for r, err := range seq {
			if err != nil {
				t.Fatalf("refunds %s: %v", name, err)
			}
			listed = append(listed, r)
		}
		if diff := cmp.Diff([]stripe.Refund{want}, listed); diff != "" {
			t.Errorf("refunds %s (-want +got):\n%s", name, diff)
		}
	}
	if b := o.books(); len(b.Refunds) != 1 || b.Refunds[0].Reference != "re_ours" {
		t.Errorf("books are %+v, want one refund", b)
	}
}

func TestSandbox_a_refund_that_fails_is_no_error(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	in := o.created("pm_card_refundFail")
	if _, err := o.ConfirmIntent(t.Context(), "confirm", in.ID); err != nil {
		t.Fatal(err)
	}
	if r, err := o.CreateRefund(t.Context(), "refund", refundParams(in.ID)); err != nil || r.Status != stripe.RefundFailed ||
		r.FailureReason != "expired_or_canceled_card" {
		t.Errorf("refund: %+v, %v, want one that failed", r, err)
	}
	if b := o.books(); len(b.Refunds) != 0 {
		t.Errorf("books are %+v, want no refund", b)
	}
}

func TestSandbox_a_saved_failure_is_told_from_a_first_one(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	in := o.created("pm_card_visa")
	o.faults(`{"error_500":1}`)
	var failed *stripe.FailedError
	if _, err := o.ConfirmIntent(t.Context(), "confirm", in.ID); !errors.As(err, &failed) || failed.StatusCode != http.StatusInternalServerError || failed.Replayed {
		t.Fatalf("first: %v, want a failure that is not replayed", err)
	}
	o.faults(`{}`)
	for range 2 { // the key is wedged
		if _, err := o.ConfirmIntent(t.Context(), "confirm", in.ID); !errors.As(err, &failed) || !failed.Replayed {
			t.Errorf("same key: %v, want the saved failure", err)
		}
	}
	// The intent knows how it went; a new key goes on where it stands.
	now, err := o.RetrieveIntent(t.Context(), in.ID)
	if err != nil {
		t.Fatal(err)
	}
	if now.Status == stripe.RequiresConfirmation {
		if now, err = o.ConfirmIntent(t.Context(), "another_key", in.ID); err != nil {
			t.Fatal(err)
		}
	}
	if now.Status != stripe.Succeeded || len(o.books().Captures) != 1 {
		t.Errorf("intent is %+v and the books %+v, want one capture", now, o.books())
	}
}

func TestSandbox_a_key_with_other_parameters_leaves_the_outcome_open(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	o.created("pm_card_visa")
	_, err := o.CreateIntent(t.Context(), "create", stripe.CreateParams{Reference: "ch_1", Amount: 2000, Currency: "EUR", PaymentMethod: "pm_card_visa"})
	if kinds(err) != "unavailable" {
		t.Errorf("%v, want unavailable", err)
	}
}

func TestSandbox_an_answer_that_is_lost_is_found_by_retrieving(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		faults string
		want   stripe.Status
	}{
		"cut before the effect": {`{"drop_before":1}`, stripe.RequiresConfirmation},
		"cut after the effect":  {`{"drop_after":1}`, stripe.Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutside(t)
			in := o.created("pm_card_visa")
			before := o.books().Requests
			o.faults(tc.faults)
			if _, err := o.ConfirmIntent(t.Context(), "confirm", in.ID); kinds(err) != "unavailable" {
				t.Errorf("confirm: %v, want unavailable", err)
			}
			if got := o.books().Requests - before; got != 1 {
				t.Errorf("the provider saw %d requests, want 1", got)
			}
			o.faults(`{}`)
			if now, err := o.RetrieveIntent(t.Context(), in.ID); err != nil || now.Status != tc.want {
				t.Errorf("retrieved: %+v, %v, want %s", now, err, tc.want)
			}
			if again, err := o.ConfirmIntent(t.Context(), "confirm", in.ID); err != nil || again.Status != stripe.Succeeded {
				t.Errorf("the same key: %+v, %v", again, err)
			}
			if b := o.books(); len(b.Captures) != 1 {
				t.Errorf("books are %+v, want one capture", b)
			}
		})
	}
}

func TestSandbox_a_key_in_flight_keeps_its_outcome_open(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	hasty := newClient(t, o.base, 100*time.Millisecond)
	in := o.created("pm_card_visa")
	o.faults(`{"slow":{"p":1,"ms":60000}}`)
	before := o.books().Requests
	await.True(t, "the sandbox has the request", func() bool {
		if _, err := hasty.ConfirmIntent(t.Context(), "confirm", in.ID); kinds(err) != "unavailable" {
			t.Fatalf("time-out: %v, want unavailable", err)
		}
		return o.books().Requests > before
	})
	o.faults(`{}`)
	_, err := o.ConfirmIntent(t.Context(), "confirm", in.ID)
	if kinds(err) != "unavailable" || !strings.Contains(err.Error(), "409") {
		t.Errorf("same key: %v, want unavailable by 409", err)
	}
	o.endDelays()
	await.True(t, "the same key is answered", func() bool {
		again, err := o.ConfirmIntent(t.Context(), "confirm", in.ID)
		if err != nil && kinds(err) != "unavailable" {
			t.Fatalf("in the end: %v", err)
		}
		return err == nil && again.Status == stripe.Succeeded
	})
	if b := o.books(); len(b.Captures) != 1 {
		t.Errorf("books are %+v, want one capture", b)
	}
}

func TestSandbox_lists_all_intents(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	const n = 103
	made := map[string]bool{}
	for i := range n {
		in, err := o.CreateIntent(t.Context(), "create_"+strconv.Itoa(i), stripe.CreateParams{
			Reference: "ch_1", Amount: int64(i + 1), Currency: "eur", PaymentMethod: "pm_card_visa",
		})
		if err != nil {
			t.Fatal(err)
		}
		made[in.ID] = true
	}
	listed := 0
	for in, err := range o.Intents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if !made[in.ID] {
			t.Errorf("%s is unknown or listed twice", in.ID)
		}
		delete(made, in.ID)
		listed++
	}
	if listed != n {
		t.Errorf("%d listed, want %d", listed, n)
	}
}
