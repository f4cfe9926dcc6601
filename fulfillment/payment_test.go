package fulfillment_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
)

// The tables of what payment decides: a history of the charge, the calls and their answers, and what is
// recorded. "captured" is a capture with its outcome, "declined" a decline that returns the stock, with
// the reason. internal/stripe's TestCall_classifiesEveryAnswer says which answer of the provider is which error.

// unanswered are the errors after which the provider may still execute the same key, and how the delivery ends.
var unanswered = map[string]string{"a cut": "cut waits", "a refused secret key": "wrong_key blocked"}

func TestAttempt_create(t *testing.T) {
	t.Parallel()
	rows := []row{
		given("an error of the provider is recorded and opens a new key", "accepted",
			"create/0:500 | create/1:500 | create/2:requires_confirmation confirm/5:succeeded",
			"inventory.reserved payment.attempt_failed waits | payment.attempt_failed waits | payment.started captured"),
		given("a charge without items begins with its creation", "bare", "create/0:requires_confirmation confirm/2:succeeded", "payment.started captured"),
		given("a refused creation fails the charge, and there is nothing to cancel", "reserved", "create/0:rejected", "declined(provider_refused)"),
		given("a declined creation fails the charge, and there is nothing to cancel", "reserved", "create/0:declined", "declined(card_declined)"),
		given("an intent that a declined creation has left is recorded, and canceled before the charge fails", "reserved",
			"create/0:declined_intent cancel:canceled", "payment.started declined(card_declined)"),
		given("a first key of other parameters fails the charge", "reserved", "create/0:other_parameters", "declined(provider_refused)"),
		given("a later key of other parameters opens the next", "reserved", "create/0:500 | create/1:other_parameters | create/2:succeeded",
			"payment.attempt_failed waits | payment.attempt_failed waits | payment.started captured"),
	}
	for name, kind := range unanswered {
		answer, end, _ := strings.Cut(kind, " ")
		rows = append(rows, row{
			name + " records nothing and keeps the key", "reserved",
			"create/0:" + answer + " | create/0:requires_confirmation confirm/3:succeeded", end + " | payment.started captured",
		})
	}
	decides(t, "", rows...)
}

func TestAttempt_confirm(t *testing.T) {
	t.Parallel()
	const look = "retrieve:requires_confirmation "
	rows := []row{
		given("an error of the provider opens a new key, after a look at the intent", "started",
			look+"confirm/3:500 | "+look+"confirm/4:succeeded", "payment.attempt_failed waits | captured"),
		given("a key of other parameters opens the next, if no money moved", "started",
			look+"confirm/3:other_parameters | "+look+"confirm/4:succeeded", "payment.attempt_failed waits | captured"),
		given("an error of a look records no attempt", "started", "retrieve:500", "waits"),
	}
	for name, kind := range unanswered {
		answer, end, _ := strings.Cut(kind, " ")
		rows = append(rows, row{
			name + " records nothing, keeps the key, and the intent is asked first", "started",
			look + "confirm/3:" + answer + " | " + look + "confirm/3:succeeded", end + " | captured",
		})
	}
	decides(t, "", rows...)
}

// TestResume begins where a worker died: the payment has started, and the provider knows the state of the
// intent.
func TestResume(t *testing.T) {
	t.Parallel()
	rows := []row{
		given("an intent that was not confirmed is confirmed", "started", "retrieve:requires_confirmation confirm/3:succeeded", "captured"),
		given("an intent without a payment method that was never attempted is confirmed", "started",
			"retrieve:requires_payment_method confirm/3:succeeded", "captured"),
		given("a declined intent is canceled and the charge fails", "started",
			"retrieve:requires_payment_method@declined cancel:canceled", "declined(card_declined)"),
		given("an intent declined for authentication is canceled and the charge fails", "started",
			"retrieve:requires_payment_method@authentication cancel:canceled", "declined(authentication_required)"),
		given("an attempted intent that forgot its decline is canceled and the charge fails", "started",
			"retrieve:requires_payment_method@attempted cancel:canceled", "declined(provider_refused)"),
		given("an intent that wants the customer is canceled and the charge fails", "started",
			"retrieve:requires_action cancel:canceled", "declined(authentication_required)"),
		given("a live card that a test key declined waits for an operator", "started", "retrieve:requires_payment_method@test_key", "blocked"),
		given("an intent that is processing is read later", "started", "retrieve:processing | retrieve:processing | retrieve:succeeded", "polls | polls | captured"),
		given("an intent that succeeded is recorded and not confirmed", "started", "retrieve:succeeded", "captured"),
		given("a canceled intent fails the charge", "started", "retrieve:canceled", "declined(provider_refused)"),
		given("a canceled intent that remembers its decline fails the charge with it", "started", "retrieve:canceled@declined", "declined(card_declined)"),
		given("an intent that waits to be captured makes a dead letter", "started", "retrieve:requires_capture", "dead"),
		given("an intent of another amount makes a dead letter", "started", "retrieve:succeeded@amount", "dead"),
		given("an intent of another currency makes a dead letter", "started", "retrieve:succeeded@currency", "dead"),
		given("an intent of another charge makes a dead letter", "started", "retrieve:succeeded@reference", "dead"),
		given("an intent that took less than its amount makes a dead letter", "started", "retrieve:succeeded@less", "dead"),
		given("a second message of a finished charge calls no provider", "captured", "", ""),
	}
	decides(t, "", rows...)
}

func TestDecline(t *testing.T) {
	t.Parallel()
	const declines = "retrieve:requires_confirmation confirm/3:declined "
	decides(t, "",
		given("the intent is canceled before the charge fails", "reserved",
			"create/0:requires_confirmation confirm/3:declined cancel:canceled", "payment.started declined(card_declined)"),
		given("if the money was taken after all the charge succeeds", "started", declines+"cancel:succeeded", "captured"),
		given("if the money is on its way the charge waits", "started", declines+"cancel:processing | retrieve:succeeded", "polls | captured"),
		given("a cancel that has no answer does not fail the charge", "started",
			declines+"cancel:cut | retrieve:requires_payment_method@declined cancel:canceled", "waits | declined(card_declined)"),
		given("a refused confirmation of an intent that stays open is canceled", "started",
			"retrieve:requires_confirmation confirm/3:rejected retrieve:requires_confirmation cancel:canceled", "declined(provider_refused)"),
		given("a confirmation refused because another one succeeded is a capture", "started",
			"retrieve:requires_confirmation confirm/3:rejected retrieve:succeeded", "captured"),
		given("as long as the intent cannot be canceled nothing is believed", "started",
			"retrieve:requires_confirmation confirm/3:rejected retrieve:cut", "waits"),
	)
}

// TestFailure_says is the whole reason, as the merchant sees it.
func TestFailure_says(t *testing.T) {
	t.Parallel()
	for calls, want := range map[string]domain.Failure{
		"create/0:rejected":         {Code: domain.ProviderRefused, Message: "for people"},
		"create/0:declined":         {Code: domain.CardDeclined, Message: "no money", DeclineCode: "insufficient_funds"},
		"create/0:other_parameters": {Code: domain.ProviderRefused, Message: "this key was used for another payment"},
		"create/0:requires_action cancel:canceled": {
			Code: domain.AuthenticationRequired, Message: "the payment needs the customer's authentication",
		},
		"create/0:requires_payment_method@attempted cancel:canceled": {
			Code: domain.ProviderRefused, Message: "the provider ended the payment without a reason",
		},
		"create/0:requires_payment_method@authentication cancel:canceled": {
			Code: domain.AuthenticationRequired, Message: "the card was declined", DeclineCode: "authentication_required",
		},
	} {
		m := newScripted(t, "reserved")
		m.play("", calls, 1)
		if diff := cmp.Diff(&want, m.stream.Charge.Failure); diff != "" {
			t.Errorf("%s (-want +got):\n%s", calls, diff)
		}
	}
}

func TestAction(t *testing.T) {
	t.Parallel()
	decides(t, "",
		given("a customer who fails is declined", "acting",
			"retrieve:requires_payment_method@authentication cancel:canceled", "declined(authentication_required)"),
		given("a customer who has not acted is waited for, and announced once", "acting",
			"retrieve:requires_action@page | retrieve:requires_action@page", "polls | polls"),
		given("a customer who takes too long has the stock returned", "timed out", "cancel:canceled", "declined(authentication_timeout)"),
		given("a capture before the time-out wins", "timed out", "cancel:succeeded", "captured"),
		given("a worker that dies after the confirmation is taken over", "interactive",
			"create/0:requires_confirmation confirm/3:cut | retrieve:succeeded", "inventory.reserved payment.started waits | captured"),
	)
	t.Run("the webhook names where the customer acts", func(t *testing.T) {
		t.Parallel()
		m := newScripted(t, "interactive started")
		got := m.play("", "retrieve:requires_action@page", 1)
		want := domain.PaymentActionRequired{URL: "https://bank.example/3ds", ExpiresAt: nine.Add(time.Hour)}
		if diff := cmp.Diff(domain.Event(want), m.stream.Head().Event); diff != "" || got != "payment.action_required polls" {
			t.Errorf("it records %s (-want +got):\n%s", got, diff)
		}
		if !slices.ContainsFunc(m.sent, func(s sentMessage) bool { return s.to == "notification payment.action_required.v1" }) {
			t.Errorf("it sends %v", m.sent)
		}
	})
}

// TestDeadline is about charges whose expires_at has passed.
func TestDeadline(t *testing.T) {
	t.Parallel()
	decides(t, "",
		given("before the first step nothing is undone and the provider is not called", "expired", "", "charge.failed(expired)"),
		given("the intent is canceled before the charge fails", "expired started", "cancel:canceled", "declined(expired)"),
		given("a capture before the deadline wins", "expired started", "cancel:succeeded", "captured"),
		given("if the money is on its way the charge waits for it", "expired started", "cancel:processing | cancel:succeeded", "polls | captured"),
		given("a charge that waits is canceled at its deadline", "unexpired started",
			"retrieve:processing | +1h cancel:canceled", "polls | declined(expired)"),
	)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	rows := []row{
		given("before the first step nothing is undone and the provider is not called", "canceling accepted", "", "charge.failed(canceled)"),
		given("before the payment started the stock is released and the provider is not called", "canceling reserved", "",
			"inventory.released charge.failed(canceled)"),
		given("the intent is canceled before the charge fails", "canceling", "cancel:canceled", "declined(canceled)"),
		given("if the money was taken the cancel has lost", "canceling", "cancel:succeeded", "captured"),
		given("if the money is on its way the charge waits for it", "canceling", "cancel:processing | cancel:succeeded", "polls | captured"),
		given("a holder that dies between cancel and commit is taken over", "canceling", "cancel:canceled^takeover | cancel:canceled", "lost | declined(canceled)"),
	}
	for name, answer := range map[string]string{"a cut": "cut", "a 500": "500", "an intent that is open": "requires_action"} {
		rows = append(rows, row{
			"a cancel that ends in " + name + " does not fail the charge", "canceling",
			"cancel:" + answer + " | cancel:canceled", "waits | declined(canceled)",
		})
	}
	decides(t, "", rows...)
}

// TestAttempt_retry_after_is_honoured: by every call, and not at the same moment by all charges.
func TestAttempt_retry_after_is_honoured(t *testing.T) {
	t.Parallel()
	asked := map[time.Duration]bool{}
	for op, r := range map[string]row{
		"create":   {after: "reserved", calls: "create/0:late"},
		"retrieve": {after: "started", calls: "retrieve:late"},
		"confirm":  {after: "started", calls: "retrieve:requires_confirmation confirm/3:late"},
		"cancel":   {after: "canceling", calls: "cancel:late"},
		"refund":   {after: "refunding", calls: "refunds: refund/0:late"},
		"refunds":  {after: "refunding", calls: "refunds:late"},
	} {
		m := newScripted(t, r.after)
		m.script.calls = strings.Fields(r.calls)
		wait, ok := errors.AsType[*inbox.WaitError](m.deliver(""))
		if !ok || wait.AtLeast < 500*time.Second || wait.AtLeast > 625*time.Second || asked[wait.AtLeast] {
			t.Errorf("%s waits %+v, want 500 seconds and up to a quarter more, and another time than the others", op, wait)
			continue
		}
		asked[wait.AtLeast] = true
	}
}

// TestKeys_areBounded: at the last of domain.MaxKeys keys nothing is recorded, so the stream does not grow for as
// long as the provider fails, and the key is sent until the provider has forgotten what it saved.
func TestKeys_areBounded(t *testing.T) {
	t.Parallel()
	decides(t, "",
		given("of a creation", "last creation", "create/49:500 | create/49:requires_action cancel:canceled", "waits | payment.started declined(authentication_required)"),
		given("of a confirmation", "last confirmation", "retrieve:requires_confirmation confirm/52:500 | retrieve:succeeded", "waits | captured"),
		given("of a refund", "last refund", "refunds: refund/49:500 | refunds: refund/49:succeeded", "waits | refund.succeeded"),
	)
}

// TestStop_ofTheWorker: the end of the context is no error of the provider.
func TestStop_ofTheWorker(t *testing.T) {
	t.Parallel()
	m := newScripted(t, "started")
	ctx, stop := context.WithCancelCause(t.Context())
	reason := errors.New("no time left")
	stop(reason)
	m.script.calls = []string{"retrieve:cut"}
	if err := m.deliverIn(ctx, ""); !errors.Is(err, reason) {
		t.Errorf("the handler returned %v, want the cause", err)
	}
}
