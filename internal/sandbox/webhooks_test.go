package sandbox_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

// receiver receives the provider's events and verifies their signature by Stripe's published scheme.
type receiver struct {
	*httptest.Server
	t         *testing.T
	mu        sync.Mutex
	down      bool
	elsewhere string // where it sends requests while it is down; "": it answers 500
	refused   int
	bodies    map[string][]string // by event id, as they came
	types     []string
}

const eventSecret = "whsec_events"

func receive(t *testing.T) (*receiver, sandbox.Options) {
	t.Helper()
	r := &receiver{t: t, bodies: make(map[string][]string)}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r, sandbox.Options{WebhookURL: r.URL, WebhookSecret: eventSecret, ShopSecret: shopSecret, ProcessingTime: 100 * time.Millisecond}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		r.refused++
		if r.elsewhere != "" {
			http.Redirect(w, request, r.elsewhere, http.StatusFound)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	body, err := io.ReadAll(request.Body)
	var e struct {
		ID, Object, Type string
		APIVersion       string `json:"api_version"`
	}
	if err := errors.Join(err, json.Unmarshal(body, &e)); err != nil || !signedNow(request.Header.Get("Stripe-Signature"), body) ||
		!strings.HasPrefix(e.ID, "evt_") || e.Object != "event" || e.APIVersion == "" {
		r.t.Errorf("received %q under %v: %v", body, request.Header, err)
	}
	known := r.bodies[e.ID]
	if len(known) == 0 {
		r.types = append(r.types, e.Type)
	} else if known[0] != string(body) {
		r.t.Errorf("event %s came with two bodies", e.ID)
	}
	r.bodies[e.ID] = append(known, string(body))
}

func signedNow(header string, body []byte) bool {
	t, v1, _ := strings.Cut(header, ",v1=")
	at, err := strconv.ParseInt(strings.TrimPrefix(t, "t="), 10, 64)
	mac := hmac.New(sha256.New, []byte(eventSecret))
	mac.Write(fmt.Appendf(nil, "%d.%s", at, body))
	return err == nil && time.Since(time.Unix(at, 0)).Abs() < time.Minute && hex.EncodeToString(mac.Sum(nil)) == v1
}

// setDown makes the receiver answer 500 or not, and returns how often it has done so.
func (r *receiver) setDown(down bool) (refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
	return r.refused
}

// seen returns the number of events and of deliveries.
func (r *receiver) seen() (events, deliveries int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, bodies := range r.bodies {
		deliveries += len(bodies)
	}
	return len(r.bodies), deliveries
}

// await waits until so many events came.
func (r *receiver) await(n int) {
	r.t.Helper()
	testrun.True(r.t, fmt.Sprintf("%d events came", n), func() bool { events, _ := r.seen(); return events == n })
}

// sent waits for events of these types, in any order, and no other.
func (r *receiver) sent(want ...string) {
	r.t.Helper()
	r.await(len(want))
	r.mu.Lock()
	defer r.mu.Unlock()
	testrun.Same(r.t, "types", want, r.types, cmpopts.SortSlices(strings.Compare))
}

func TestEvents_eachChangeSendsOneSignedEvent(t *testing.T) {
	t.Parallel()
	r, o := receive(t)
	f := start(t, o)
	id := f.captured("pm_card_visa")
	for range 3 { // a replayed request sends no second event
		f.post("/v1/refunds", "refund", "payment_intent", id, "amount", "400")
	}
	f.post(confirmation(f.create("pm_card_chargeDeclined")), "")
	f.post(confirmation(f.create("pm_card_authenticationRequired")), "", "return_url", "https://shop.example/back")
	f.post(intents+"/"+f.create("")+"/cancel", "")
	f.post(confirmation(f.create("pm_card_processing")), "")
	r.sent("payment_intent.created", "payment_intent.succeeded", "charge.refunded",
		"payment_intent.created", "payment_intent.payment_failed",
		"payment_intent.created", "payment_intent.requires_action",
		"payment_intent.created", "payment_intent.canceled",
		"payment_intent.created", "payment_intent.processing", "payment_intent.succeeded")
	data, _ := f.get("/v1/events?type=charge.refunded").at("data").([]any)
	if len(data) != 1 {
		t.Fatalf("%d events of a refund", len(data))
	}
	answered{object: data[0].(members), status: 200}.want(t, 200, members{ //nolint:forcetypeassert // it is a list of events
		"data.object.object": "charge", "data.object.amount_refunded": 400.0, "data.object.refunded": false, "data.object.payment_intent": id,
	})
}

func TestEvents_areSentAgainUntilTheyAreTaken(t *testing.T) {
	t.Parallel()
	r, o := receive(t)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect is followed") }))
	t.Cleanup(elsewhere.Close)
	r.setDown(true)
	r.elsewhere = elsewhere.URL // answered 200, which would take an event
	f := start(t, o)
	for range 3 {
		f.create("")
	}
	testrun.True(t, "each was tried twice", func() bool { return r.setDown(true) >= 6 })
	testrun.True(t, "those that were sent and not taken are repeated", func() bool {
		return f.control(http.MethodPost, "/duplicate-webhooks", `{"times":1}`).at("events") == 3.0
	})
	r.setDown(false)
	r.await(3)
	_, first := r.seen()
	for times, want := range map[int]float64{4: 12, 1: 3} {
		f.control(http.MethodPost, "/duplicate-webhooks", fmt.Sprintf(`{"times":%d}`, times)).want(t, 200, members{"events": 3.0, "sent": want, "delivered": want})
	}
	if events, deliveries := r.seen(); events != 3 || deliveries != first+15 {
		t.Errorf("%d events came %d times", events, deliveries)
	}
	r.setDown(true)
	f.control(http.MethodPost, "/duplicate-webhooks", `{"times":2}`).want(t, 200, members{"events": 3.0, "sent": 6.0, "delivered": 0.0})
	f.stop()
	f.control(http.MethodPost, "/duplicate-webhooks", `{"times":2}`).want(t, 200, members{"events": 3.0, "sent": 0.0, "delivered": 0.0})
	f = start(t, sandbox.Options{}) // which sends no event
	f.create("")
	f.control(http.MethodPost, "/duplicate-webhooks", `{"times":2}`).want(t, 200, members{"events": 0.0, "sent": 0.0, "delivered": 0.0})
}

// TestDashboardRefundsAndDisputes_areListedAndSent: disputes and refunds of the dashboard are in the lists, in
// `GET /books` and in signed events.
func TestDashboardRefundsAndDisputes_areListedAndSent(t *testing.T) {
	t.Parallel()
	r, o := receive(t)
	f := start(t, o)
	outside := func(path, id, more string) answered {
		return f.control(http.MethodPost, path, fmt.Sprintf(`{"payment_intent":%q%s}`, id, more))
	}
	id, lost := f.captured("pm_card_visa"), f.captured("pm_card_visa")
	opened := outside("/dispute", id, "")
	opened.want(t, 200, members{"object": "dispute", "status": "needs_response", "amount": 1000.0, "payment_intent": id})
	won := outside("/dispute", id, `,"outcome":"won"`)
	won.want(t, 200, members{"id": opened.text("id"), "status": "won"})
	if n := strings.Count(won.raw, `"balance_transaction"`); n != 2 || f.get("/v1/disputes/"+won.text("id")).raw != won.raw {
		t.Errorf("%d balance transactions: %s", n, won.raw)
	}
	for _, outcome := range []string{"lost", "won", "lost"} {
		outside("/dispute", lost, `,"outcome":"`+outcome+`"`).want(t, 200, members{"status": outcome})
	}
	if listed := f.get("/v1/disputes?payment_intent=" + lost); strings.Count(listed.raw, `"balance_transaction"`) != 3 ||
		strings.Count(listed.raw, `"dispute"`) != 1 {
		t.Errorf("listed: %s", listed.raw)
	}
	for _, again := range []string{"", `,"outcome":"won"`} {
		outside("/dispute", id, again).want(t, 200, members{"id": won.text("id"), "status": "won"})
	}
	made := outside("/refund", id, `,"amount":400`)
	made.want(t, 200, members{"object": "refund", "status": "succeeded", "amount": 400.0, "metadata": members{}})
	outside("/refund", id, `,"amount":601`).want(t, 400, members{"error.param": "amount"})
	refunds := f.books().Refunds
	if len(refunds) != 1 || refunds[0].Reference != made.text("id") || refunds[0].PaymentIntent != id {
		t.Errorf("the books have %+v", refunds)
	}
	r.sent("payment_intent.created", "payment_intent.succeeded", "payment_intent.created", "payment_intent.succeeded",
		"charge.dispute.created", "charge.dispute.funds_withdrawn", "charge.dispute.closed", "charge.dispute.funds_reinstated",
		"charge.dispute.created", "charge.dispute.funds_withdrawn", "charge.dispute.closed",
		"charge.dispute.closed", "charge.dispute.funds_reinstated", "charge.dispute.closed", "charge.dispute.funds_withdrawn", "charge.refunded")
}

const shopSecret = "whsec_YSBrZXkgb2YgdGhlIHNob3AsIDMyIGJ5dGVzIGxvbmc="

// notice is a merchant's webhook about reference.
func notice(reference string) string {
	return `{"id":"evt_1","type":"charge.succeeded","created_at":"2026-01-02T03:04:05Z","data":{"id":"` + reference + `","amount":1000}}`
}

// notify sends a notification to the shop, signed now.
func (f *fixture) notify(secret, id, body string) (answered, error) {
	signer, err := standardwebhooks.NewWebhook(secret)
	testrun.Must(f.t, err)
	now := time.Now()
	signature, err := signer.Sign(id, now, []byte(body))
	testrun.Must(f.t, err)
	return f.do(http.MethodPost, "/shop/webhooks", body, http.Header{
		"Webhook-Id": {id}, "Webhook-Timestamp": {strconv.FormatInt(now.Unix(), 10)}, "Webhook-Signature": {signature},
	})
}

func TestShop(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{ShopSecret: shopSecret})
	for name, tc := range map[string]struct {
		secret, body string
		status       int
	}{
		"another key":      {"whsec_YW5vdGhlcg==", notice("ch_1"), 401},
		"not JSON":         {shopSecret, "x", 400},
		"no type":          {shopSecret, `{"data":{"id":"ch_1"}}`, 400},
		"no data":          {shopSecret, `{"type":"a"}`, 400},
		"no body":          {shopSecret, "", 400},
		"a body too large": {shopSecret, `{"type":"` + strings.Repeat("x", 70_000) + `"}`, 413},
	} {
		if a := f.must(f.notify(tc.secret, "msg_1", tc.body)); a.status != tc.status {
			t.Errorf("%s: answered %d %s, want %d", name, a.status, a.raw, tc.status)
		}
	}
	f.control(http.MethodPost, "/shop/webhooks", notice("ch_1")).want(t, http.StatusUnauthorized, nil) // without headers
	if came := f.books().Notifications; len(came) != 0 {
		t.Errorf("what does not verify or cannot be read leaves %v", came)
	}
	for range 20 {
		f.must(f.notify(shopSecret, "msg_1", notice("ch_1"))).want(t, 200, nil)
	}
	f.must(f.notify(shopSecret, "msg_2", notice("re_1")))
	b := f.books().Notifications
	if len(b) != 2 || b[0].Reference != "ch_1" || b[0].Deliveries != 20 || b[0].Effects != 1 || b[1].Reference != "re_1" || b[1].Deliveries != 1 {
		t.Errorf("each arrival is counted and the effect happens once: %+v", b)
	}
	without := start(t, sandbox.Options{})
	if a := without.must(without.notify(shopSecret, "msg_1", notice("ch_1"))); a.status != http.StatusServiceUnavailable {
		t.Errorf("without a secret it answers %d %s", a.status, a.raw)
	}
}
