package domain_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// candidates are events that Append meets after every state: one of each type, and some
// with other values.
func candidates() map[string]domain.Event {
	all := map[string]domain.Event{
		"charge.requested.v1 of the largest amount":        with(charge(), func(e *domain.ChargeRequested) { e.Amount = domain.MaxAmount }),
		"charge.requested.v1 of more":                      with(charge(), func(e *domain.ChargeRequested) { e.Amount = domain.MaxAmount + 1 }),
		"charge.requested.v1 of nothing":                   with(charge(), func(e *domain.ChargeRequested) { e.Amount = 0 }),
		"charge.requested.v1 whose fee is all":             with(charge(), func(e *domain.ChargeRequested) { e.Fee = e.Amount }),
		"charge.requested.v1 whose fee is more":            with(charge(), func(e *domain.ChargeRequested) { e.Fee = e.Amount + 1 }),
		"charge.requested.v1 whose fee is below zero":      with(charge(), func(e *domain.ChargeRequested) { e.Fee = -1 }),
		"inventory.rejected.v1 as canceled":                domain.InventoryRejected{Code: domain.Canceled},
		"payment.started.v1 with another payment intent":   domain.PaymentStarted{Provider: "stripe", PaymentIntent: "pi_2"},
		"payment.started.v1 without payment intent":        domain.PaymentStarted{Provider: "stripe"},
		"payment.captured.v1 of another payment intent":    with(taken(), func(e *domain.PaymentCaptured) { e.PaymentIntent = "pi_2" }),
		"payment.captured.v1 of another amount":            with(taken(), func(e *domain.PaymentCaptured) { e.Amount = 999 }),
		"payment.captured.v1 in another currency":          with(taken(), func(e *domain.PaymentCaptured) { e.Currency = "JPY" }),
		"payment.captured.v1 with another fee":             with(taken(), func(e *domain.PaymentCaptured) { e.Fee = 0 }),
		"payment.declined.v1 as canceled":                  domain.PaymentDeclined{Failure: dropped()},
		"charge.failed.v1 as canceled":                     domain.ChargeFailed{Failure: dropped()},
		"charge.failed.v1 as expired":                      domain.ChargeFailed{Failure: failed(domain.Expired)},
		"charge.failed.v1 as timed out":                    domain.ChargeFailed{Failure: failed(domain.AuthenticationTimeout)},
		"charge.failed.v1 without reason":                  domain.ChargeFailed{},
		"refund.requested.v1 without id":                   back("", 400),
		"refund.succeeded.v1 of another amount":            gone("re_1", "rp_1", 401),
		"refund.succeeded.v1 without object":               gone("re_1", "", 400),
		"refund.succeeded.v1 by another refund's object":   gone("re_1", "rp_2", 400),
		"refund.failed.v1 by another refund's object":      notGone("re_1", "rp_2"),
		"refund.failed.v1 without object":                  notGone("re_1", ""),
		"refund.failed.v1 of the last refund, without one": notGone("re_3", ""),
		"refund.reversed.v1 of another amount":             domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 399},
		"refund.reversed.v1 by another object":             domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_2", Amount: 400},
	}
	for _, amount := range []int64{-1, 0, 1, 500, 501, 600, 601, 1000, 1001} {
		all[fmt.Sprint("refund.requested.v1 of ", amount)] = back("re_9", amount)
	}
	for version := -1; version <= 9; version++ {
		all[fmt.Sprint("merchant.notified.v1 about ", version)] = domain.MerchantNotified{EventID: "e", Version: version}
	}
	all["charge.requested.v1 without a payment"] = with(charge(), func(e *domain.ChargeRequested) { e.Steps = []string{domain.Inventory} })
	maps.Copy(all, stored())
	return all
}

// TestAppend compares the states that each event may follow with testdata/validate.txt.
// What no line names is refused.
func TestAppend(t *testing.T) {
	t.Parallel()
	var lines []string
	for name, e := range candidates() {
		var after []string
		for _, s := range states {
			stream := history(s.name)
			c, err := domain.Charge{}.Append(append(slices.Clone(stream), e)...)
			if err == nil {
				after = append(after, s.name)
				continue
			}
			if diff := cmp.Diff(domain.Fold(domain.Charge{}, stream...), c); diff != "" {
				t.Errorf("%s after %s: the fold stops before the illegal event (-want +got):\n%s", name, s.name, diff)
			}
			want := fmt.Sprintf("%s at version %d", domain.TypeOf(e), len(stream)+1)
			if !errors.Is(err, domain.ErrIllegal) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s after %s: the error is %v, want ErrIllegal: %s", name, s.name, err, want)
			}
		}
		if len(after) > 0 {
			lines = append(lines, name+" | "+strings.Join(after, ", "))
		}
	}
	slices.Sort(lines)
	golden(t, "validate.txt", lines)
}
