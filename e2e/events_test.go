package e2e_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestProviderEvents sends what the provider has to say, as often as it likes.
func TestProviderEvents(t *testing.T) {
	t.Parallel()
	long(t)

	t.Run("an event wakes a charge that waits for the provider", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{apis: 1, workers: 1, workerEnv: map[string]string{"BACKOFF_CAP": "1h", "BACKOFF_BASE": "1h"}})
		w.breakOutside(t, faults{DropBefore: 1})
		c := w.send(t, newOrder(visa))
		const waits = `
select coalesce(max(waits), 0) > 0
  from inbox
 where ordering_key = $1`
		eventually(t, "the charge waits for the provider", func() bool { return row[bool](t, w, waits, c.ID) })
		w.mendOutside(t)
		// The charge would wait for most of an hour.
		w.tell(t, intentEvent("payment_intent.created", c.ID))
		if got := w.await(t, c.ID); got.Status != "succeeded" {
			t.Errorf("the charge is %s", got.Status)
		}
	})

	t.Run("an event a thousand times is one event, and adds nothing to a finished charge", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{apis: 2, workers: 1, told: true})
		c := w.carry(t, newOrder(visa))
		eventually(t, "the provider has told of it", func() bool { return w.postman.delivered() > 0 })
		before := w.story(t, c.ID)
		n := 1000
		event := intentEvent("payment_intent.succeeded", c.ID)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range n / 8 {
					w.tell(t, event)
				}
			})
		}
		all.Wait()
		const received = `
select concat_ws(' ', count(*), sum(duplicates))
  from inbox
 where message_id = 'evt_' || $1`
		if got, want := row[string](t, w, received, c.ID), spaced(1, n-1); got != want {
			t.Errorf("messages and duplicates are %s, want %s", got, want)
		}
		w.control(t, http.MethodPost, "/duplicate-webhooks", map[string]int{"times": 10}, nil)
		const done = `
select bool_and(status = 'done')
  from inbox
 where type like 'stripe.%'`
		eventually(t, "all events are done", func() bool { return row[bool](t, w, done) })
		if diff := cmp.Diff(before, w.story(t, c.ID)); diff != "" {
			t.Errorf("its events before (-) and after (+):\n%s", diff)
		}
	})

	t.Run("what nobody signed is refused and leaves no row", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{apis: 1})
		c := w.send(t, newOrder(visa))
		event := intentEvent("payment_intent.succeeded", c.ID)
		for name, header := range map[string]string{
			"no signature": "", "another secret": signed("whsec_other", time.Now(), event),
			"an old one":          signed(w.keys.events, time.Now().Add(-6*time.Minute), event),
			"one of another body": signed(w.keys.events, time.Now(), event+" "),
		} {
			got := w.post(t, header, event)
			if p := mustBeProblem(t, got, http.StatusBadRequest, "webhook-signature"); p.Retryable {
				t.Errorf("%s: %s", name, got.Body)
			}
		}
		if n := row[int64](t, w, `select count(*) from inbox`); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		// An event that claims what the ledger does not know is only a wake-up.
		w.tell(t, event)
		w.tell(t, intentEvent("payment_intent.succeeded", "ch_of_nobody"))
		if n := row[int64](t, w, `select count(*) from inbox`); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
	})
}

// intentEvent is an event about a charge, as the provider writes it.
func intentEvent(kind, chargeID string) string {
	return fmt.Sprintf(`{"id":"evt_%s","object":"event","type":%q,"pending_webhooks":1,"data":{"object":{"object":"payment_intent","id":"pi_1","metadata":{"charge_id":%q}}}}`,
		chargeID, kind, chargeID)
}

func signed(secret string, at time.Time, body string) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(seconds + "." + body))
	return "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

// tell sends a signed event.
func (w *world) tell(t *testing.T, event string) {
	t.Helper()
	if got := w.post(t, signed(w.keys.events, time.Now(), event), event); got.Status != http.StatusOK {
		t.Errorf("answered %d %s, want 200", got.Status, got.Body)
	}
}

func (w *world) post(t *testing.T, signature, event string) answer {
	t.Helper()
	header := http.Header{"Authorization": nil, "Content-Type": {"application/json"}, "Stripe-Signature": {signature}}
	if signature == "" {
		delete(header, "Stripe-Signature")
	}
	got, err := w.client.do(t.Context(), request{path: "/v1/webhooks/stripe", body: []byte(event), header: header})
	if err != nil {
		t.Fatal(err)
	}
	return got
}
