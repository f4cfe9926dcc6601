package domain_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

// TestPostings compares the postings of each event, of a charge of 1000 of which 30 are the fee, with
// testdata/postings.txt. They are stored books, so its lines do not change.
func TestPostings(t *testing.T) {
	t.Parallel()
	after := map[string]string{
		"charge.requested.v1": "absent",
		"refund.requested.v1": "succeeded", "refund.attempt_failed.v1": "refund pending", "refund.succeeded.v1": "refund pending",
		"refund.failed.v1": "refund pending", "refund.reversed.v1": "refunded in part",
		"charge.dispute_opened.v1": "succeeded", "charge.dispute_withdrawn.v2": "disputed", "charge.dispute_reinstated.v2": "dispute won",
		"charge.dispute_updated.v1": "disputed", "charge.dispute_closed.v2": "dispute withdrawn",
	}
	var lines []string
	all := stored()
	all["payment.captured.v1 without fee"] = event(`payment.captured.v1 {"fee":0}`)
	all["payment.captured.v1 whose fee is all"] = event(`payment.captured.v1 {"fee":1000}`)
	for name, e := range all {
		for leg, p := range domain.Postings(in(cmp.Or(after[name], "started")), e) {
			lines = append(lines, fmt.Sprintf("%s %d | %s → %s %d %s", name, leg+1, p.Debit, p.Credit, p.Amount, p.Currency))
		}
	}
	slices.Sort(lines)
	testrun.Golden(t, "postings.txt", append(lines, "")...)
}

func TestFeeSchedule(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		schedule domain.FeeSchedule
		amount   int64
		want     int64
	}{
		{"three percent of ten euros", fees(300, 0), 1000, 30},
		{"less than half a cent is nothing", fees(300, 0), 16, 0},
		{"half a cent is a cent", fees(100, 0), 50, 1},
		{"a hundredth less than half a cent is nothing", fees(1, 0), 4999, 0},
		{"exactly half of the smallest unit is rounded up", fees(1, 0), 5000, 1},
		{"the fixed part is added after rounding", fees(100, 25), 50, 26},
		{"the fee is never above the amount", fees(300, 500), 100, 100},
		{"all of it may be the fee", fees(10_000, 0), 1, 1},
		{"no schedule is no fee", domain.FeeSchedule{}, 1000, 0},
		{"a fixed part below zero lowers the fee", fees(300, -10), 1000, 20},
		{"the fee is never below nothing", fees(0, -10), 1000, 0},
		{"the largest amount does not overflow", fees(10_000, 0), domain.MaxAmount, domain.MaxAmount},
		{"the largest fixed part does not overflow", fees(10_000, math.MaxInt64), domain.MaxAmount, domain.MaxAmount},
		{"the smallest fixed part does not overflow", fees(0, math.MinInt64), 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := test.schedule.Of(test.amount); got != test.want {
				t.Errorf("the fee is %d, want %d", got, test.want)
			}
		})
	}
}

func fees(basisPoints, fixed int64) domain.FeeSchedule {
	return domain.FeeSchedule{BasisPoints: basisPoints, Fixed: fixed}
}
