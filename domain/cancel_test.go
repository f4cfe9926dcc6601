package domain_test

import (
	"errors"
	"testing"

	"github.com/payonce/payonce/domain"
)

func TestCancelCharge(t *testing.T) {
	t.Parallel()
	decides(t, domain.CancelCharge{}, []verdict{
		{"nothing is not canceled", absent, nil, domain.ErrNoCharge},
		{"a charge is asked to be canceled once", anyCanceling, nil, nil},
		{"an open charge is asked to be canceled", anyOpen, []domain.Event{domain.ChargeCancelRequested{}}, nil},
		{"a failed charge is not canceled", anyFailed, nil, domain.ErrFinished},
		{"a captured charge is not canceled", anyCaptured, nil, domain.ErrFinished},
	})
}

func TestFailCanceled(t *testing.T) {
	t.Parallel()
	gone := []domain.Event{
		domain.PaymentDeclined{Failure: dropped()},
		domain.InventoryReleased{Items: charge().Items},
		domain.ChargeFailed{Failure: dropped()},
	}
	bare := []domain.Event{gone[0], gone[2]}
	decides(t, domain.FailCanceled{}, []verdict{
		{"nothing is not canceled", absent, nil, domain.ErrNoCharge},
		{"a charge that has done nothing fails", canceling, gone[2:], nil},
		{"also without items", cancelingBare, gone[2:], nil},
		{"held stock is released", cancelingReserved, gone[1:], nil},
		{"a started payment fails, its stock is released", cancelingStarted, gone, nil},
		{"without items there is no stock to release", cancelingStartedBare, bare, nil},
		{"a charge that nobody asked to cancel goes on", anyOpen, nil, domain.ErrOutOfOrder},
		{"a failed charge does not fail again", anyFailed, nil, nil},
		{"a captured charge is not canceled", anyCaptured, nil, domain.ErrFinished},
	})
}

func TestACanceledChargeShowsHowFarItWas(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		state              string
		inventory, payment domain.StepStatus
	}{
		{canceled, domain.StepSkipped, domain.StepSkipped},
		{canceledBare, domain.StepSkipped, domain.StepSkipped},
		{canceledReserved, domain.StepCompensated, domain.StepSkipped},
		{canceledStarted, domain.StepCompensated, domain.StepFailed},
		{canceledStartedBare, domain.StepSkipped, domain.StepFailed},
	} {
		c := in(test.state)
		if c.Status != domain.Failed || c.Failure == nil || *c.Failure != dropped() {
			t.Errorf("%s: the charge is %s because of %v", test.state, c.Status, c.Failure)
		}
		if c.Step(domain.Inventory) != test.inventory || c.Step(domain.Payment) != test.payment {
			t.Errorf("%s: inventory %s, payment %s, want %s and %s",
				test.state, c.Step(domain.Inventory), c.Step(domain.Payment), test.inventory, test.payment)
		}
	}
}

// Who asked is in the stream, so nobody else may give the reason.
func TestOnlyACancelMakesAChargeCanceled(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, state string
		cmd         domain.Command
	}{
		{"a decline is no cancel", started, domain.DeclinePayment{Failure: dropped()}},
		{"nor before a payment intent", reserved, domain.DeclinePayment{Failure: dropped()}},
		{"nor is refused stock", requested, domain.RejectInventory{Code: domain.Canceled}},
		{"refused stock is none while a cancel is requested either", canceling, domain.RejectInventory{Code: domain.Canceled}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if events, err := domain.Decide(in(test.state), test.cmd); !errors.Is(err, domain.ErrInvalid) || len(events) > 0 {
				t.Errorf("events %v, error %v, want ErrInvalid", events, err)
			}
		})
	}
}
