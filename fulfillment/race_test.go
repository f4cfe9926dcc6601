package fulfillment_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
)

func TestRace(t *testing.T) {
	t.Parallel()

	t.Run("a run that lost the version continues with what the provider answered", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.start()
		attempt := domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500}
		w.provider.on("retrieve", shows("requires_confirmation"))
		w.provider.on("confirm", meanwhile(func() { w.append(s, attempt) }, shows("succeeded")))
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted+" payment.attempt_failed"), "retrieve confirm")
	})

	t.Run("who lost the outcome has nothing left to do", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.start()
		capture := domain.PaymentCaptured{
			Provider: domain.Provider, PaymentIntent: "pi_1", Amount: 1999, Currency: "EUR", Fee: 90,
		}
		w.provider.on("retrieve", shows("requires_confirmation"))
		w.provider.on("confirm", meanwhile(func() { w.append(s, capture, domain.ChargeSucceeded{}) }, shows("succeeded")))
		w.expectKind(w.deliver(), "done")
		// The rival of this test left the sale and the message out: that they are
		// missing shows that the loser's commit brought nothing.
		want := open(toStarted+captured, "done")
		w.expect(want, "retrieve confirm")
	})

	t.Run("the intent of the first who recorded one is the charge's", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.accept("ch_1", order())
		w.provider.on("create", meanwhile(func() {
			w.append(w.load(), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_2"})
		}, shows("requires_confirmation")))
		w.provider.on("retrieve", shows("requires_confirmation", "id", "pi_2"))
		w.provider.on("confirm", shows("succeeded", "id", "pi_2"))
		w.expectKind(w.deliver(), "done")
		for _, c := range w.provider.all[1:] {
			if c.intent != "pi_2" {
				t.Errorf("%s was asked of %s, want pi_2: it is the recorded one", c.op, c.intent)
			}
		}
		w.expect(succeeded(toStarted), "create retrieve confirm")
	})
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	const takeOver = `update inbox set fence = fence + 1`
	for name, tc := range map[string]struct {
		script func(*world)
		calls  string
		then   sight
	}{
		"a capture after the message was taken over is refused as a whole": {
			script: func(w *world) {
				w.provider.on("retrieve", shows("requires_confirmation"), shows("succeeded"))
				w.provider.on("confirm", meanwhile(func() { w.exec(takeOver) }, shows("succeeded")))
			},
			calls: "retrieve confirm", then: succeeded(toStarted),
		},
		"a failure after the message was taken over is refused as a whole": {
			script: func(w *world) {
				w.provider.on("retrieve", shows("requires_action"), shows("canceled"))
				w.provider.on("cancel", meanwhile(func() { w.exec(takeOver) }, shows("canceled")))
			},
			calls: "retrieve cancel", then: failed(toStarted, domain.ProviderRefused),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start()
			tc.script(w)
			before := w.text(`select count(*)::text from ledger_postings`)
			w.expectKind(w.deliver(), "lost")
			w.expect(open(toStarted, "running"), tc.calls)
			if after := w.text(`select count(*)::text from ledger_postings`); after != before {
				t.Errorf("there are %s postings, were %s", after, before)
			}
			w.expectKind(w.deliver(), "done")
			w.expect(tc.then, "retrieve")
		})
	}

	t.Run("eight holders at once come to one outcome", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.provider.behind = newSandbox(t)
		s := w.accept("ch_1", order())
		for i := range 7 {
			w.put(fulfillment.ChargeReceiver, s, 1, strconv.Itoa(i))
		}
		w.exec(`update inbox set ordering_key = message_id`) // one key is never worked on side by side
		aside := func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			d.OrderingKey = "ch_1"
			return w.charge(ctx, d)
		}
		waiting := 8
		for range 8 { // one of them comes through each time
			open := waiting
			waiting = 0
			for _, err := range w.deliverAll(fulfillment.ChargeReceiver, aside, open) {
				if err != nil {
					w.expectKind(err, "waits")
					waiting++
				}
			}
			if waiting == 0 {
				break
			}
		}
		want := succeeded(toStarted)
		want.Message = "done done done done done done done done"
		if diff := cmp.Diff(want, w.see()); diff != "" {
			t.Errorf("afterwards (-want +got):\n%s", diff)
		}
		if b := booksOf(t, w.provider.behind); len(b.Captures) != 1 || b.Captures[0].Amount != 1999 {
			t.Errorf("the provider's captures are %+v, want one", b.Captures)
		}
	})
}
