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

	"github.com/payonce/payonce/internal/await"
)

// repeatedProviderEvent delivers one event many times: the inbox counts the others as
// duplicates, and the charge does not change.
func repeatedProviderEvent(t *testing.T, d *deployment) {
	t.Helper()
	const n = 200
	c := d.process(t, newOrder(visa))
	await.Row(t, d.tables, `select exists (select from inbox where type like 'stripe.%')`) // the provider sends events
	before := d.story(t, c.ID)
	event := intentEvent("payment_intent.succeeded", c.ID)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range n / 8 {
				d.deliverEvent(t, event)
			}
		})
	}
	all.Wait()
	mustRead(t, d, spaced(1, n-1), `select concat_ws(' ', count(*), sum(duplicates)) from inbox where message_id = 'evt_' || $1`, c.ID)
	await.Row(t, d.tables, `select bool_and(status = 'done') from inbox where type like 'stripe.%' and ordering_key = $1`, c.ID)
	if diff := cmp.Diff(before, d.story(t, c.ID)); diff != "" {
		t.Errorf("its events before (-) and after (+):\n%s", diff)
	}
}

// intentEvent is an event about a charge, as the provider sends it.
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

// deliverEvent sends a signed event.
func (d *deployment) deliverEvent(t *testing.T, event string) {
	t.Helper()
	if got := d.postEvent(t, signed(d.Secrets.Events, time.Now(), event), event); got.Status != http.StatusOK {
		t.Errorf("answered %d %s, want 200", got.Status, got.Body)
	}
}

func (d *deployment) postEvent(t *testing.T, signature, event string) answer {
	t.Helper()
	return d.do(t, eventRequest(signature, event))
}

// eventRequest sends an event, without a signature where that is empty.
func eventRequest(signature, event string) request {
	header := http.Header{"Authorization": nil, "Content-Type": {"application/json"}, "Stripe-Signature": {signature}}
	if signature == "" {
		delete(header, "Stripe-Signature")
	}
	return request{path: "/v1/webhooks/stripe", body: []byte(event), header: header}
}
