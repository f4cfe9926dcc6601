package sandbox_test

import (
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
	"github.com/stripe/stripe-go/v85/webhook"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

// receiver receives the provider's events and verifies their signature by Stripe's own code.
type receiver struct {
	*httptest.Server
	t       testing.TB
	mu      sync.Mutex
	down    bool // it sends requests elsewhere
	refused int
	bodies  map[string][]string // by event id, as they came
	types   []string
}

const eventSecret = "whsec_events"

func receive(tb testing.TB) (*receiver, sandbox.Options) {
	tb.Helper()
	r := &receiver{t: tb, bodies: make(map[string][]string)}
	r.Server = httptest.NewServer(r)
	tb.Cleanup(r.Close)
	return r, sandbox.Options{WebhookURL: r.URL, WebhookSecret: eventSecret, ShopSecret: shopSecret, ProcessingTime: 100 * time.Millisecond}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		r.refused++
		http.Redirect(w, request, "/elsewhere", http.StatusFound)
		if request.URL.Path != "/" {
			r.t.Error("a redirect is followed")
		}
		return
	}
	body, err := io.ReadAll(request.Body)
	var e struct {
		ID, Object, Type string
		APIVersion       string `json:"api_version"`
	}
	signature := request.Header.Get("Stripe-Signature")
	signed := webhook.ValidatePayloadWithTolerance(body, signature, eventSecret, time.Minute)
	var second int64
	if _, err := fmt.Sscanf(signature, "t=%d,", &second); err != nil || second > time.Now().Add(25*time.Hour).Unix() { // the clock of a script goes ahead by a day
		r.t.Errorf("signed for second %d, %v", second, err)
	}
	if err := errors.Join(err, signed, json.Unmarshal(body, &e)); err != nil ||
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

// setDown makes the receiver refuse events or not, and returns how often it has done so.
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

func TestEvents_areSentAgainUntilTheyAreTaken(t *testing.T) {
	testrun.Long(t, "it waits for repetitions")
	t.Parallel()
	r, o := receive(t)
	r.setDown(true)
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
	repeat := func(times, events, sent, delivered int) {
		t.Helper()
		f.control(http.MethodPost, "/duplicate-webhooks", fmt.Sprintf(`{"times":%d}`, times)).
			want(t, 200, fmt.Sprint("events=", events), fmt.Sprint("sent=", sent), fmt.Sprint("delivered=", delivered))
	}
	repeat(4, 3, 12, 12)
	repeat(1, 3, 3, 3)
	if events, deliveries := r.seen(); events != 3 || deliveries != first+15 {
		t.Errorf("%d events came %d times", events, deliveries)
	}
	r.setDown(true)
	repeat(2, 3, 6, 0)
	f.stop()
	repeat(2, 3, 0, 0)
	f = start(t, sandbox.Options{}) // which sends no event, and has no shop
	f.create("")
	f.must(f.notify(shopSecret, "msg_1", notice("ch_1"))).want(t, http.StatusServiceUnavailable)
	repeat(2, 0, 0, 0)
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
