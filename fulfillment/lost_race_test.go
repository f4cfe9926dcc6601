package fulfillment_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
)

// TestLostRace is about versions that somebody else took between a walk's look at
// the charge and its commit.
func TestLostRace(t *testing.T) {
	t.Parallel()

	t.Run("requests that keep coming keep no refund from its outcome", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		const n = 12 // more than one delivery may lose races
		w.request(w.capture(), "re_1", 100)
		for i := 1; i <= n; i++ {
			answer := gives("succeeded", "id", fmt.Sprint("rp_", i), "amount", 100,
				"metadata", map[string]any{"refund_id": fmt.Sprint("re_", i)})
			if i < n {
				next := domain.RefundRequested{RefundID: fmt.Sprint("re_", i+1), Amount: 100}
				answer = meanwhile(func() { w.append(w.load(), next) }, answer)
			}
			w.provider.on("refunds", lists())
			w.provider.on("refund", answer)
		}
		w.expectKind(w.deliver(), "done")
		w.expectCalls(strings.TrimSpace(strings.Repeat("refunds refund ", n)))
		if c := w.load().Charge; c.Refunded() != n*100 || !c.Complete() {
			t.Errorf("%d went back, want %d", c.Refunded(), n*100)
		}
	})

	t.Run("the stock moves once with a capture that was decided again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.start()
		unrelated := domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500}
		w.provider.on("retrieve", shows("requires_confirmation"))
		w.provider.on("confirm", meanwhile(func() { w.append(s, unrelated) }, shows("succeeded")))
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted+" refund.attempt_failed"), "retrieve confirm")
	})

	t.Run("a refund that a rival has recorded is recorded once", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.refunding()
		rival := domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600}
		w.provider.on("refund", meanwhile(func() { w.append(s, rival) }, gives("succeeded")))
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "", "done"), "refunds refund")
	})

	t.Run("a refund that a rival recorded as a success, and the list shows as failed, is reversed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.request(w.capture(), "re_1", 600)
		rival := domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600}
		w.provider.on("refunds", meanwhile(func() { w.append(s, rival) }, lists(refundOf("failed"))))
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded+" refund.reversed", "refund.reversed", "done"), "refunds")
	})

	// The next attempt's key may be in use already: another one would let the
	// provider do it twice.
	t.Run("an attempt of a refund that a rival has ended is not ended again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.refunding()
		rival := domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500}
		w.provider.on("refund", meanwhile(func() { s = w.append(s, rival) }, breaks()), gives("succeeded"))
		w.provider.on("refunds", lists())
		w.expectKind(w.deliver(), "done")
		w.expect(back(asked+" refund.attempt_failed refund.succeeded", "refund.succeeded", "done"), "refunds refund refunds refund")
		want := []string{s.At(5).ID.String(), s.At(6).ID.String()}
		if diff := cmp.Diff(want, w.provider.keys("refund")); diff != "" {
			t.Errorf("the keys are not the two attempts' (-want +got):\n%s", diff)
		}
	})

	t.Run("an attempt of a payment that a rival has ended is not ended again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.start()
		rival := domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500}
		w.provider.on("retrieve", shows("requires_confirmation"), shows("requires_confirmation"))
		w.provider.on("confirm", meanwhile(func() { w.append(s, rival) }, breaks()), shows("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted+" payment.attempt_failed"), "retrieve confirm retrieve confirm")
	})

	t.Run("a decline that lost a race keeps its reason", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.start()
		unrelated := domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500}
		w.provider.on("retrieve", shows("requires_confirmation"), shows("canceled"))
		w.provider.on("confirm", declines())
		w.provider.on("cancel", meanwhile(func() { w.append(s, unrelated) }, shows("canceled")))
		w.expectKind(w.deliver(), "done")
		w.expect(failed(toStarted+" refund.attempt_failed", domain.CardDeclined), "retrieve confirm cancel")
	})

	t.Run("a refused creation fails no charge whose payment a rival has started", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.accept("ch_1", order())
		rival := domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"}
		w.provider.on("create", meanwhile(func() { w.append(w.load(), rival) },
			refuses(http.StatusBadRequest, "invalid_request_error", "resource_missing")))
		w.provider.on("retrieve", shows("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted), "create retrieve")
	})
}

// TestLostRace_always is about a stream that grows faster than anybody decides.
func TestLostRace_always(t *testing.T) {
	t.Parallel()

	t.Run("a refund waits, counts no attempt, and was sent once", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.refunding()
		w.loseEvery("refund.succeeded.v1")
		w.provider.on("refund", gives("succeeded"))
		w.expectKind(w.deliver(), "waits")
		w.expect(back(asked, "", "pending"), "refunds refund")
		w.expectAttempts("0")
		w.exec(`drop trigger lose on ledger_events`)
		w.provider.on("refunds", lists(refundOf("succeeded")))
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "refund.succeeded", "done"), "refunds")
	})

	t.Run("a payment waits, counts no attempt, and holds its stock", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.loseEvery("payment.captured.v1")
		w.provider.on("retrieve", shows("succeeded"), shows("succeeded"))
		w.expectKind(w.deliver(), "waits")
		w.expect(open(toStarted, "pending"), "retrieve")
		w.expectAttempts("0")
		w.exec(`drop trigger lose on ledger_events`)
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted), "retrieve")
	})

	t.Run("a notification waits, counts no attempt, and was told once", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.succeed(order())
		s.loseEvery("merchant.notified.v1")
		s.expectKind(s.deliver(), "waits")
		s.expectTold(1, paid, "pending")
		s.expectAttempts("0")
	})
}

// loseEvery lets every commit of a type of event find its version taken.
func (w *world) loseEvery(event string) {
	w.Helper()
	w.exec(`
create function lose() returns trigger language plpgsql as $$
begin
  raise unique_violation using constraint = 'ledger_events_version_once';
end $$`)
	w.exec(`create trigger lose before insert on ledger_events for each row when (new.type = '` + event + `') execute function lose()`)
}

func (w *world) expectAttempts(want string) {
	w.Helper()
	if got := w.text(`select string_agg(attempts::text, ' ') from inbox`); got != want {
		w.Errorf("the message has %s attempts, want %s", got, want)
	}
}

// TestUnknownOutcome is about a commit that was cut: it may be durable or not, and a standby
// may have it or not. The inbox delivers the message again, and nothing is done before.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := refundOf("succeeded", "id", "rp_2", "amount", 100, "metadata", map[string]any{"refund_id": "re_2"})
	w.request(w.refunding(), "re_2", 100)
	w.exec(`delete from inbox where id = (select max(id) from inbox)`)
	w.exec(`
create function cut() returns trigger language plpgsql as $$
begin
  perform pg_terminate_backend(pg_backend_pid());
  perform pg_sleep(10);
end $$`)
	w.exec(`create trigger cut before insert on ledger_events for each row when (new.type = 'refund.succeeded.v1') execute function cut()`)
	w.provider.on("refund", gives("succeeded"))
	if err := w.deliver(); !errors.Is(err, postgres.ErrUnknown) {
		t.Errorf("the handler returned %v, want an unknown outcome", err)
	}
	w.expectCalls("refunds refund")
	w.exec(`drop trigger cut on ledger_events`)
	w.provider.on("refunds", lists(refundOf("succeeded"), second), lists(refundOf("succeeded"), second))
	w.expectKind(w.deliver(), "done")
	w.expect(back(asked+asked+" refund.succeeded refund.succeeded", "refund.succeeded refund.succeeded", "done"), "refunds refunds")
}
