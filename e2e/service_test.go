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

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// promise is something that the running service does for its callers.
type promise struct {
	name string
	keep func(*testing.T, *deployment)
}

var promises = []promise{
	{"a charge succeeds and is posted to the ledger", chargeSucceeds},
	{"64 requests under one key at once make one charge", sameRequestAtOnce},
	{"a replay shows what was accepted", replayAfterTheEnd},
	{"a refund returns a part, another one the rest", refundInParts},
	{"a provider event delivered 200 times is one event", repeatedProviderEvent},
	{"a customer authenticates, and another one misses the deadline", customersAct},
	{"health and readiness need no API key", probesNeedNoKey},
}

// TestService keeps every promise that needs no failure, on one deployment with two
// apis and two workers. Each promise uses charges and keys of its own.
func TestService(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 2, workers: 2, providerEvents: true, workerEnv: longLease()})
	for _, p := range promises {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.keep(t, d)
		})
	}
}

func chargeSucceeds(t *testing.T, d *deployment) {
	t.Helper()
	start := time.Now()
	o := newOrder(visa, item{"tshirt", 2}, item{"mug", 1})
	got := d.insist(t, request{key: "key-" + unique(), body: o.body(t)})
	accepted := acceptedCharge(t, got)
	if location := got.Header.Get("Location"); location != "/v1/charges/"+accepted.ID {
		t.Errorf("accepted %s at %q", accepted.ID, location)
	}
	if age := accepted.CreatedAt.Sub(start); age < -time.Minute || age > time.Minute {
		t.Errorf("created at %s, sent at %s", accepted.CreatedAt, start)
	}
	want := charge{
		ID: accepted.ID, OrderID: o.OrderID, Amount: 1000, Currency: "USD", Status: "pending", CreatedAt: accepted.CreatedAt,
		Steps: []step{{"inventory", "pending"}, {"payment", "pending"}, {"notification", "pending"}},
	}
	testrun.Same(t, "the accepted charge", want, accepted)
	want.Status = "succeeded"
	want.Steps = []step{{"inventory", "done"}, {"payment", "done"}, {"notification", "done"}}
	testrun.Same(t, "the charge in the end", want, d.await(t, accepted.ID))
	testrun.Same(t, "its events", []string{
		"charge.requested", "inventory.reserved", "payment.started", "payment.captured", "charge.succeeded", "merchant.notified",
	}, d.story(t, accepted.ID))
	d.mustSucceedOnce(t, accepted.ID)
	balances := []string{"fee_revenue:payonce:USD -30", "merchant_payable:" + d.merchantOf(t, accepted.ID) + ":USD -970", "psp_receivable:stripe:USD 1000"}
	testrun.Same(t, "balances", balances, openBalances(t, d, accepted.ID))
}

// openBalances are the accounts on which a charge left a balance that is not zero,
// with its currency's smallest units.
func openBalances(t *testing.T, d *deployment, id string) []string {
	t.Helper()
	return rows[string](t, d, `
select format('%s %s', account, sum(amount))
  from (
        select debit as account, amount
          from ledger_postings
         where stream_id = $1
         union all
        select credit, -amount
          from ledger_postings
         where stream_id = $1) legs
 group by account
having sum(amount) <> 0
 order by account`, id)
}

// allDone are the steps of a charge that succeeded.
const allDone = "inventory done, payment done, notification done"

// sameRequestAtOnce repeats the race for several keys: there is one charge for each,
// and every answer is that charge, byte for byte.
func sameRequestAtOnce(t *testing.T, d *deployment) {
	t.Helper()
	const rounds, clients = 6, 64
	for range rounds {
		o := newOrder(visa)
		r := request{key: "key-" + unique(), body: o.body(t)}
		answers := make([]answer, clients)
		start := make(chan struct{})
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() {
				<-start
				var err error
				if answers[i], err = d.client.insist(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		all.Wait()
		firsts := 0
		for _, a := range answers {
			if a.Status != http.StatusAccepted || string(a.Body) != string(answers[0].Body) {
				t.Fatalf("answered %d %s, want the bytes of another answer: %s", a.Status, a.Body, answers[0].Body)
			}
			if a.Header.Get("Idempotent-Replayed") == "" {
				firsts++
			}
			if a.Header.Get("Idempotency-Key") != r.key || a.Header.Get("Idempotency-Expires") == "" {
				t.Errorf("an answer to a request with a key has the headers %v", a.Header)
			}
		}
		// The first answer may have been lost with its connection, so none is legal.
		if firsts > 1 {
			t.Errorf("%d of %d answers are not marked as replays, want 1", firsts, clients)
		}
		mustRead(t, d, "1 key, 1 event, 1 message", `
with requested as (select event_id::text from ledger_events where version = 1 and data ->> 'order_id' = $2)
select format('%s key, %s event, %s message',
         (select count(*) from idempotency_keys where key = $1),
         (select count(*) from requested),
         (select count(*)
            from (select message_id from outbox union all select message_id from inbox where receiver = 'fulfillment') m
           where message_id in (table requested)))`, r.key, o.OrderID)
	}
}

func replayAfterTheEnd(t *testing.T, d *deployment) {
	t.Helper()
	r := request{key: "key-" + unique(), body: newOrder(cardDeclined).body(t)}
	first := d.insist(t, r)
	d.await(t, acceptedCharge(t, first).ID)
	for _, api := range d.client.apis {
		r.to = at(api)
		again := d.insist(t, r)
		if c := acceptedCharge(t, again); c.Status != "pending" || again.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("the replay says %s, replayed %q", c.Status, again.Header.Get("Idempotent-Replayed"))
		}
	}
	var now charge
	if d.get(t, first.Header.Get("Location"), &now); now.outcome() != "card_declined" {
		t.Errorf("at its location: %+v", now)
	}
}

func probesNeedNoKey(t *testing.T, d *deployment) {
	t.Helper()
	for _, p := range []*harness.Process{d.APIs[0], d.Workers[0]} {
		if got := fetch(t, p, "/healthz"); got.Status != http.StatusOK {
			t.Errorf("/healthz of %s answers %d %s", p.Name(), got.Status, got.Body)
		}
		await.True(t, p.Name()+" is ready", func() bool { return fetch(t, p, "/readyz").Status == http.StatusOK })
	}
}

// repeatedProviderEvent delivers one event many times: the inbox counts the others as
// duplicates, and the charge does not change.
func repeatedProviderEvent(t *testing.T, d *deployment) {
	t.Helper()
	const n = 200
	c := d.process(t, newOrder(visa))
	await.Row(t, d.tables, `select exists (select from inbox where type like 'stripe.%')`) // the provider sends events
	before := d.story(t, c.ID)
	intent := intentIn(d.records(t), c.ID)
	event := eventAbout("payment_intent.created", intent)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range n / 8 {
				d.deliverEvent(t, event)
			}
		})
	}
	all.Wait()
	// A page that was stored and not deleted is delivered, and counted, once more.
	const received = `select count(*) = 1 and sum(duplicates) >= $2 - 1 from inbox where message_id = 'evt_' || $1`
	await.Row(t, d.tables, received, intent, n)
	await.Row(t, d.tables, `select bool_and(status = 'done') from inbox where type like 'stripe.%' and ordering_key = $1`, c.ID)
	testrun.Same(t, "its events afterwards", before, d.story(t, c.ID))
}

func customersAct(t *testing.T, d *deployment) {
	t.Helper()
	acts, late := d.send(t, newAction()), newAction()
	late.ExpiresAt = time.Now().Add(8 * time.Second).Format(time.RFC3339Nano)
	misses := d.send(t, late)
	await.True(t, "the charge waits for its customer", func() bool {
		acts = d.charge(t.Context(), acts.ID)
		return acts.Status == "requires_action"
	})
	must(t, authenticate(t.Context(), acts, "succeeded"))
	d.mustEnd(t, acts.ID, "succeeded")
	d.mustEnd(t, misses.ID, "expired")
	if got := len(d.recordsOf(t, acts.ID).Captures) - len(d.recordsOf(t, misses.ID).Captures); got != 1 {
		t.Errorf("the customer who authenticated was charged %d times more often than the other one", got)
	}
}

// eventAbout is an event of the provider about a payment intent.
func eventAbout(kind, intent string) string {
	return fmt.Sprintf(`{"id":"evt_%s","object":"event","type":%q,"data":{"object":{"id":"obj_1","payment_intent":%q}}}`, intent, kind, intent)
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
	if got := d.do(t, eventRequest(signed(d.Secrets.Events, time.Now(), event), event)); got.Status != http.StatusOK {
		t.Errorf("answered %d %s, want 200", got.Status, got.Body)
	}
}

// eventRequest sends an event, without a signature where that is empty.
func eventRequest(signature, event string) request {
	header := http.Header{"Authorization": nil, "Content-Type": {"application/json"}, "Stripe-Signature": {signature}}
	if signature == "" {
		delete(header, "Stripe-Signature")
	}
	return request{path: "/v1/webhooks/stripe", body: []byte(event), header: header}
}
