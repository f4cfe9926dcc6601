package fulfillment_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

func TestAttempt_refund(t *testing.T) {
	t.Parallel()

	t.Run("an error of the provider is recorded and opens a new key, after a look at the list", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.refunding()
		w.provider.on("refund", breaks(), breaks(), gives("succeeded"))
		w.provider.on("refunds", lists(), lists())
		for range 2 {
			w.expectKind(w.deliver(), "waits")
		}
		failures := asked + " refund.attempt_failed refund.attempt_failed"
		w.expect(back(failures, "", "pending"), "refunds refund refunds refund")
		w.expectKind(w.deliver(), "done")
		w.expect(back(failures+" refund.succeeded", "refund.succeeded", "done"), "refunds refund")
		s := w.load()
		want := []string{s.At(5).ID.String(), s.At(6).ID.String(), s.At(7).ID.String()}
		if diff := cmp.Diff(want, w.provider.keys("refund")); diff != "" {
			t.Errorf("the keys are not the ids of the events that opened the attempts (-want +got):\n%s", diff)
		}
		failure := domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500, RequestID: "req_provider"}
		if diff := cmp.Diff(failure, s.At(6).Event); diff != "" {
			t.Errorf("recorded (-want +got):\n%s", diff)
		}
	})

	t.Run("an error of the provider that gave the money back is not tried again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.refunding()
		w.provider.on("refund", breaks())
		w.provider.on("refunds", lists(refundOf("succeeded")))
		w.expectKind(w.deliver(), "waits")
		w.expectKind(w.deliver(), "done")
		w.expect(back(asked+" refund.attempt_failed refund.succeeded", "refund.succeeded", "done"), "refunds refund refunds")
	})

	for name, answer := range interruptions() {
		t.Run(name+" records nothing, keeps the key, and the list is asked first", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.refunding()
			w.provider.on("refund", answer, gives("succeeded"))
			w.provider.on("refunds", lists())
			w.expectKind(w.deliver(), "waits")
			w.expect(back(asked, "", "pending"), "refunds refund")
			w.expectKind(w.deliver(), "done")
			w.expect(back(refunded, "refund.succeeded", "done"), "refunds refund")
			if keys := w.provider.keys("refund"); keys[0] != keys[1] || keys[0] == "" {
				t.Errorf("the keys are %q, want one", keys)
			}
		})
	}

	t.Run("waiting for the provider counts no attempt", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.refunding()
		w.provider.on("refund", gives("pending"))
		w.provider.on("refunds", lists(refundOf("pending")), lists(refundOf("pending")), lists(refundOf("succeeded")))
		for range 3 {
			w.expectKind(w.deliver(), "waits")
		}
		if got := w.text(`select format('%s %s', attempts, waits) from inbox`); got != "0 3" {
			t.Errorf("attempts and waits are %s, want 0 3", got)
		}
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "refund.succeeded", "done"), "refunds refund refunds refunds refunds")
	})
}
