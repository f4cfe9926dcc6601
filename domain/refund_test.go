package domain_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// asks is what a request to refund causes.
func asks(amount int64) []domain.Event { return []domain.Event{back("re_9", amount)} }

func TestRequestRefundOfAllThatIsLeft(t *testing.T) {
	t.Parallel()
	decides(t, domain.RequestRefund{RefundID: "re_9", Reason: "a broken mug", Notify: true}, []verdict{
		{"nothing gives nothing back", absent, nil, domain.ErrNoCharge},
		{"a charge that is not captured gives nothing back", anyOpen, nil, domain.ErrNotCaptured},
		{"nor does one that failed", anyFailed, nil, domain.ErrNotCaptured},
		{"a captured charge gives all back", anyUnrefunded, asks(1000), nil},
		{"a pending refund is no longer left", refundPending, asks(600), nil},
		{"nor is one with a failed attempt", refundAttempted, asks(600), nil},
		{"nothing is left beside a refund of all", refundOfAll, nil, domain.ErrExceedsCaptured},
		{"nothing is left of a refunded charge", fullyRefunded, nil, domain.ErrExceedsCaptured},
		{"a refund that failed is left again", refundFailed, asks(1000), nil},
		{"also without a provider's object", refundRefused, asks(1000), nil},
		{"a refund that was reversed is left again", refundReversed, asks(1000), nil},
		{"of several refunds the failed one is left", refundsOfAllKind, asks(500), nil},
		{"a refund that succeeded is no longer left", anyRefund, asks(600), nil},
	})
}

func TestRequestRefundOfOneMoreThanIsLeft(t *testing.T) {
	t.Parallel()
	decides(t, domain.RequestRefund{RefundID: "re_9", Amount: 601, Reason: "a broken mug", Notify: true}, []verdict{
		{"nothing gives nothing back", absent, nil, domain.ErrNoCharge},
		{"a charge that is not captured gives nothing back", anyOpen, nil, domain.ErrNotCaptured},
		{"nor does one that failed", anyFailed, nil, domain.ErrNotCaptured},
		{"without refunds it is no more than is left", anyUnrefunded, asks(601), nil},
		{"nor when the only refund failed", refundFailed, asks(601), nil},
		{"nor when it failed without a provider's object", refundRefused, asks(601), nil},
		{"nor when it was reversed", refundReversed, asks(601), nil},
		{"a charge gives no more back than is left", anyRefund, nil, domain.ErrExceedsCaptured},
	})
}

func TestRequestRefundOfAnIDOnce(t *testing.T) {
	t.Parallel()
	decides(t, domain.RequestRefund{RefundID: "re_1", Amount: 5, Reason: "a broken mug", Notify: true}, []verdict{
		{"nothing gives nothing back", absent, nil, domain.ErrNoCharge},
		{"a charge that is not captured gives nothing back", anyOpen, nil, domain.ErrNotCaptured},
		{"nor does one that failed", anyFailed, nil, domain.ErrNotCaptured},
		{"the first request counts", anyUnrefunded, []domain.Event{back("re_1", 5)}, nil},
		{"whatever became of it and whatever its amount", anyRefund, nil, nil},
	})
}

func TestRequestRefundOfValues(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		state   string
		id      string
		amount  int64
		causes  []domain.Event
		refused error
	}{
		{"less than nothing is not refunded", succeeded, "re_9", -1, nil, domain.ErrInvalid},
		{"nor is it when nothing is left", fullyRefunded, "re_9", -1, nil, domain.ErrInvalid},
		{"a refund has an id", succeeded, "", 400, nil, domain.ErrInvalid},
		{"the smallest refund is one minor unit", succeeded, "re_9", 1, asks(1), nil},
		{"the largest is all", succeeded, "re_9", 1000, asks(1000), nil},
		{"one more is not", succeeded, "re_9", 1001, nil, domain.ErrExceedsCaptured},
		{"the last minor unit is refunded", refundsOfAllKind, "re_9", 500, asks(500), nil},
		{"and no other", refundsOfAllKind, "re_9", 501, nil, domain.ErrExceedsCaptured},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			events, err := domain.Decide(in(test.state), domain.RequestRefund{
				RefundID: test.id, Amount: test.amount, Reason: "a broken mug", Notify: true,
			})
			if diff := cmp.Diff(test.causes, events); diff != "" || !errors.Is(err, test.refused) {
				t.Errorf("error %v, want %v; events (-want +got):\n%s", err, test.refused, diff)
			}
		})
	}
}

func TestFailRefundAttempt(t *testing.T) {
	t.Parallel()
	failed := []domain.Event{domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 502, RequestID: "req_1"}}
	decides(t, domain.FailRefundAttempt{RefundID: "re_1", StatusCode: 502, RequestID: "req_1"}, []verdict{
		{"no attempt fails for nothing", absent, nil, domain.ErrNoCharge},
		{"there is no attempt without a refund", anyOpen, nil, domain.ErrNoRefund},
		{"nor of a charge that failed", anyFailed, nil, domain.ErrNoRefund},
		{"nor of one that only was captured", anyUnrefunded, nil, domain.ErrNoRefund},
		{"an attempt fails", refundPending, failed, nil},
		{"also one to refund all", refundOfAll, failed, nil},
		{"also one beside other refunds", refundsOfAllKind, failed, nil},
		{"a second attempt fails too", refundAttempted, failed, nil},
		{"a late failure changes no outcome", anyRefund, nil, nil},
	})
}

func TestSucceedRefund(t *testing.T) {
	t.Parallel()
	success := []domain.Event{gone("re_1", "rp_1", 400)}
	decides(t, domain.SucceedRefund{
		RefundID: "re_1", Provider: "stripe", ProviderRefund: "rp_1", Amount: eur(400),
	}, []verdict{
		{"nothing is not refunded", absent, nil, domain.ErrNoCharge},
		{"nor is what was not requested", anyOpen, nil, domain.ErrNoRefund},
		{"nor is a charge that failed", anyFailed, nil, domain.ErrNoRefund},
		{"nor is one that only was captured", anyUnrefunded, nil, domain.ErrNoRefund},
		{"a refund succeeds", refundPending, success, nil},
		{"also after a failed attempt", refundAttempted, success, nil},
		{"also beside other refunds", refundsOfAllKind, success, nil},
		{"a refund of another amount does not", refundOfAll, nil, domain.ErrMismatch},
		{"a refund that failed does not succeed", refundFailed, nil, domain.ErrFinished},
		{"nor by an object that it failed without", refundRefused, nil, domain.ErrMismatch},
		{"a late success does not undo a reversal", refundReversed, nil, nil},
		{"a refund succeeds once", anyRefund, nil, nil},
	})
}

func TestSucceedRefundOfSomethingElse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, state, object string
		amount              domain.Money
	}{
		{"another amount", refundPending, "rp_1", eur(401)},
		{"nothing at all", refundPending, "rp_1", eur(0)},
		{"another currency", refundPending, "rp_1", domain.Money{Amount: 400, Currency: "USD"}},
		{"no provider's object", refundPending, "", eur(400)},
		{"no provider's object of a refund that failed without one", refundRefused, "", eur(400)},
		{"another object than it succeeded by", partlyRefunded, "rp_2", eur(400)},
		{"another object than it was reversed by", refundReversed, "rp_2", eur(400)},
		{"another amount than it succeeded with", partlyRefunded, "rp_1", eur(399)},
		{"an object that is another refund's", refundsOfAllKind, "rp_2", eur(400)},
		{"an object that another refund failed by", refundsOfAllKind, "rp_3", eur(400)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			events, err := domain.Decide(in(test.state), domain.SucceedRefund{
				RefundID: "re_1", Provider: "stripe", ProviderRefund: test.object, Amount: test.amount,
			})
			if !errors.Is(err, domain.ErrMismatch) || len(events) != 0 {
				t.Errorf("events %v, error %v, want ErrMismatch", events, err)
			}
		})
	}
}

func TestFailRefund(t *testing.T) {
	t.Parallel()
	failed := []domain.Event{domain.RefundFailed{
		RefundID: "re_1", ProviderRefund: "rp_1", Code: domain.ProviderRefused, Message: "no",
	}}
	decides(t, domain.FailRefund{
		RefundID: "re_1", ProviderRefund: "rp_1", Code: domain.ProviderRefused, Message: "no",
	}, []verdict{
		{"nothing fails for nothing", absent, nil, domain.ErrNoCharge},
		{"what was not requested does not fail", anyOpen, nil, domain.ErrNoRefund},
		{"nor of a charge that failed", anyFailed, nil, domain.ErrNoRefund},
		{"nor of one that only was captured", anyUnrefunded, nil, domain.ErrNoRefund},
		{"a refund fails", refundPending, failed, nil},
		{"also one of all", refundOfAll, failed, nil},
		{"also after a failed attempt", refundAttempted, failed, nil},
		{"also beside other refunds", refundsOfAllKind, failed, nil},
		{"a refund fails once", refundFailed, nil, nil},
		{"also without a provider's object", refundRefused, nil, nil},
		{"a reversed refund has failed", refundReversed, nil, nil},
		{"a refund that succeeded is reversed, it does not fail", anyRefund, nil, domain.ErrFinished},
	})
}

func TestFailRefundByAnObjectOfAnotherRefund(t *testing.T) {
	t.Parallel()
	for _, object := range []string{"rp_2", "rp_3"} {
		events, err := domain.Decide(in(refundsOfAllKind), domain.FailRefund{RefundID: "re_1", ProviderRefund: object})
		if !errors.Is(err, domain.ErrMismatch) || len(events) != 0 {
			t.Errorf("%s: events %v, error %v, want ErrMismatch", object, events, err)
		}
	}
}

func TestSeveralRefundsFailWithoutAnObject(t *testing.T) {
	t.Parallel()
	c := domain.Fold(in(refundRefused), back("re_2", 100), back("re_3", 100))
	for _, id := range []string{"re_2", "re_3"} {
		events, err := domain.Decide(c, domain.FailRefund{RefundID: id, Code: domain.ProviderRefused})
		if err != nil || len(events) != 1 {
			t.Errorf("%s: events %v, error %v, want a failure", id, events, err)
		}
		c = domain.Fold(c, events...)
	}
	if len(c.PendingRefunds()) > 0 || c.Left() != 1000 {
		t.Errorf("%v are pending, %d is left", c.PendingRefunds(), c.Left())
	}
}

func TestReverseRefund(t *testing.T) {
	t.Parallel()
	reversed := []domain.Event{domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 400, Message: "no"}}
	decides(t, domain.ReverseRefund{RefundID: "re_1", ProviderRefund: "rp_1", Message: "no"}, []verdict{
		{"nothing is not reversed", absent, nil, domain.ErrNoCharge},
		{"nor is what was not requested", anyOpen, nil, domain.ErrNoRefund},
		{"nor on a charge that failed", anyFailed, nil, domain.ErrNoRefund},
		{"nor on one that only was captured", anyUnrefunded, nil, domain.ErrNoRefund},
		{"a pending refund is not reversed", refundPending, nil, domain.ErrOutOfOrder},
		{"nor is one of all", refundOfAll, nil, domain.ErrOutOfOrder},
		{"nor is one with a failed attempt", refundAttempted, nil, domain.ErrOutOfOrder},
		{"nor is one beside others", refundsOfAllKind, nil, domain.ErrOutOfOrder},
		{"a refund that failed has nothing to reverse", refundFailed, nil, nil},
		{"also without a provider's object", refundRefused, nil, nil},
		{"a refund is reversed once", refundReversed, nil, nil},
		{"a refund that succeeded is reversed", anyRefund, reversed, nil},
	})
}

func TestReverseRefundOfSomethingElse(t *testing.T) {
	t.Parallel()
	for _, object := range []string{"", "rp_2"} {
		events, err := domain.Decide(in(fullyRefunded), domain.ReverseRefund{RefundID: "re_1", ProviderRefund: object})
		if !errors.Is(err, domain.ErrMismatch) || len(events) != 0 {
			t.Errorf("%q: events %v, error %v, want ErrMismatch", object, events, err)
		}
	}
}

func TestAChargeHasAHundredRefundsAtMost(t *testing.T) {
	t.Parallel()
	c := in(succeeded)
	for i := range domain.MaxRefunds {
		id := fmt.Sprint("re_", i)
		events, err := domain.Decide(c, domain.RequestRefund{RefundID: id, Amount: 1})
		if err != nil {
			t.Fatalf("refund %d: %v", i+1, err)
		}
		c = domain.Fold(c, events...)
		if i%2 == 0 { // one that failed counts too
			c = domain.Fold(c, domain.RefundFailed{RefundID: id, Code: domain.ProviderRefused})
		}
	}
	if events, err := domain.Decide(c, domain.RequestRefund{RefundID: "re_more", Amount: 1}); !errors.Is(err, domain.ErrTooManyRefunds) {
		t.Errorf("one more: %v, %v", events, err)
	}
	if events, err := domain.Decide(c, domain.RequestRefund{RefundID: "re_1", Amount: 1}); err != nil || len(events) != 0 {
		t.Errorf("one of them again: %v, %v", events, err)
	}
}
