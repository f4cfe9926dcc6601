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
	"github.com/payonce/payonce/internal/testrun"
)

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
		testrun.Same(t, calls, &want, m.stream.Charge.Failure)
	}
}

// TestAction_webhook names where the customer acts.
func TestAction_webhook(t *testing.T) {
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
