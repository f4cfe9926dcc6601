package domain_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// Without a version the charge's own outcome is meant: so it was written before
// there were refunds, and so a message of that time still asks.
func TestNotifyMerchant(t *testing.T) {
	t.Parallel()
	notified := []domain.Event{domain.MerchantNotified{EventID: "e", Type: "charge.succeeded"}}
	decides(t, domain.NotifyMerchant{EventID: "e", Type: "charge.succeeded"}, []verdict{
		{"nobody is told of nothing", absent, nil, domain.ErrNoCharge},
		{"nobody is told of a charge without outcome", anyOpen, nil, domain.ErrOutOfOrder},
		{"the merchant is told of a failure once", failedAndTold, nil, nil},
		{"also of a cancel", canceledTold, nil, nil},
		{"the merchant is told of a failure", anyFailed, notified, nil},
		{"the merchant is told once", told, nil, nil},
		{"also when there are refunds", refundTold, nil, nil},
		{"also when it was late", toldLate, nil, nil},
		{"a merchant without webhook is not told", succeededSilent, nil, nil},
		{"the merchant is told of a success, refunded or not", anyCaptured, notified, nil},
	})
}

func TestTheMerchantIsToldInAnyOrder(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{5, 7, 8}, {8, 7, 5}, {7, 5, 8}, {7, 8, 0}} {
		c := in(refundReversed)
		if diff := cmp.Diff([]int{5, 7, 8}, c.Unnotified); diff != "" {
			t.Fatalf("untold (-want +got):\n%s", diff)
		}
		for i, version := range order {
			outcome := version
			if outcome == 0 {
				outcome = c.OutcomeVersion
			}
			if !c.NeedsWebhook(outcome) {
				t.Errorf("%v: the merchant is not told of version %d", order, outcome)
			}
			events, err := domain.Decide(c, domain.NotifyMerchant{EventID: "e", Version: version})
			if err != nil || len(events) != 1 {
				t.Fatalf("%v: %v, %v", order, events, err)
			}
			c = domain.Fold(c, events...)
			if c.NeedsWebhook(outcome) || len(c.Unnotified) != len(order)-i-1 {
				t.Errorf("%v: told of version %d, %v is untold", order, outcome, c.Unnotified)
			}
			if charges := c.Step(domain.Notification) == domain.StepDone; charges == c.NeedsWebhook(c.OutcomeVersion) {
				t.Errorf("%v: the notification is %s, %v is untold", order, c.Step(domain.Notification), c.Unnotified)
			}
		}
		if c.Status != domain.Succeeded {
			t.Errorf("%v: being told made the charge %s", order, c.Status)
		}
	}
}

func TestARefundIsToldOfWhereTheChargeWasNot(t *testing.T) {
	t.Parallel()
	c := domain.Fold(in(succeededSilent), back("re_1", 400), gone("re_1", "rp_1", 400))
	if diff := cmp.Diff([]int{7}, c.Unnotified); diff != "" {
		t.Errorf("untold (-want +got):\n%s", diff)
	}
	for _, version := range []int{-1, 1, 6, 8} {
		if events, err := domain.Decide(c, domain.NotifyMerchant{Version: version}); !errors.Is(err, domain.ErrOutOfOrder) || len(events) > 0 {
			t.Errorf("told of version %d: %v, %v", version, events, err)
		}
	}
	told := domain.Fold(c, domain.MerchantNotified{EventID: "e", Version: 7})
	if len(told.Unnotified) > 0 || told.Step(domain.Notification) != domain.StepSkipped {
		t.Errorf("%v is untold, the charge's notification is %s", told.Unnotified, told.Step(domain.Notification))
	}
}
