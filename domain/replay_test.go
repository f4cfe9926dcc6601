package domain_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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
	foreign, cheap, yen, feeless := taken(), taken(), taken(), taken()
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
		{"a capture without payment intent", reserved, taken()},
		{"a capture of another payment intent", started, foreign},
		{"a capture of another amount", started, cheap},
		{"a capture in another currency", started, yen},
		{"a capture with another fee", started, feeless},
		{"a second capture", succeeded, taken()},
		{"a capture after a decline", declined, taken()},
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
		{"a webhook about a request", succeeded, domain.MerchantNotified{EventID: "e", Version: 1}},
		{"a webhook about what has not happened", succeeded, domain.MerchantNotified{EventID: "e", Version: 6}},
		{"a second webhook that names its version", told, domain.MerchantNotified{EventID: "e", Version: 5}},
		{"a second webhook that does not", canceledTold, notified},
		{"an event of no kind", requested, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			refuses(t, history(test.state), test.next)
		})
	}
}

// refuses holds that Replay stops before an event that cannot follow a stream.
func refuses(t *testing.T, stream []domain.Event, next domain.Event) {
	t.Helper()
	c, err := domain.Replay(append(slices.Clone(stream), next))
	if !errors.Is(err, domain.ErrIllegal) {
		t.Fatalf("the error is %v, want ErrIllegal", err)
	}
	if diff := cmp.Diff(domain.Fold(domain.Charge{}, stream...), c); diff != "" {
		t.Errorf("the fold stops before the illegal event (-want +got):\n%s", diff)
	}
	if want := fmt.Sprintf("%T at version %d", next, len(stream)+1); !strings.Contains(err.Error(), want) {
		t.Errorf("the error says %q, not %q", err, want)
	}
}

func TestReplayRefusesAFailureThatKeepsItsStock(t *testing.T) {
	t.Parallel()
	refuses(t, after(started, domain.PaymentDeclined{Failure: stolen()}), domain.ChargeFailed{Failure: stolen()})
}
