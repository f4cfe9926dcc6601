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

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// receiver receives the provider's events and verifies their signature by Stripe's
// published scheme.
type receiver struct {
	*httptest.Server
	t       *testing.T
	mu      sync.Mutex
	down    bool
	refused int
	bodies  map[string][]string // by event id, as they came
	types   []string
}

type event struct {
	ID, Object, Type string
	APIVersion       string `json:"api_version"`
	Livemode         bool
	Data             struct{ Object map[string]any }
}

const eventSecret = "whsec_events"

func receive(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, bodies: make(map[string][]string)}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		r.refused++
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	body, err := io.ReadAll(request.Body)
	var e event
	if err := errors.Join(err, json.Unmarshal(body, &e)); err != nil || !signedNow(request.Header.Get("Stripe-Signature"), body) {
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

// setDown makes the receiver answer 500 or not.
func (r *receiver) setDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

func (r *receiver) refusals() int {
	r.mu.Lock()
	defer r.mu.Unlock()
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
	await.True(r.t, fmt.Sprintf("%d events came", n), func() bool { events, _ := r.seen(); return events == n })
}

func TestEvents(t *testing.T) {
	t.Parallel()

	t.Run("every change sends one signed event", func(t *testing.T) {
		t.Parallel()
		r := receive(t)
		f := start(t, sandbox.Options{WebhookURL: r.URL, WebhookSecret: eventSecret, ProcessingTime: 100 * time.Millisecond})
		id := f.captured("pm_card_visa")
		f.post("/v1/refunds", "refund", "payment_intent", id, "amount", "400")
		f.post(confirmation(f.create("pm_card_chargeDeclined")), "")
		f.post(confirmation(f.create("pm_card_authenticationRequired")), "", "return_url", "https://shop.example/back")
		f.post(intents+"/"+f.create("")+"/cancel", "")
		f.post(confirmation(f.create("pm_card_processing")), "")
		want := []string{
			"payment_intent.created", "payment_intent.succeeded", "charge.refunded",
			"payment_intent.created", "payment_intent.payment_failed",
			"payment_intent.created", "payment_intent.requires_action",
			"payment_intent.created", "payment_intent.canceled",
			"payment_intent.created", "payment_intent.processing", "payment_intent.succeeded",
		}
		r.await(len(want))
		r.mu.Lock()
		defer r.mu.Unlock()
		testrun.Same(t, "types", want, r.types, cmpopts.SortSlices(strings.Compare))
		for _, bodies := range r.bodies {
			var e event
			testrun.Must(t, json.Unmarshal([]byte(bodies[0]), &e))
			if !strings.HasPrefix(e.ID, "evt_") || e.Object != "event" || e.APIVersion == "" || e.Livemode {
				t.Errorf("event %s", bodies[0])
			}
			if o := e.Data.Object; e.Type == "charge.refunded" &&
				(o["object"] != "charge" || o["amount_refunded"] != 400.0 || o["refunded"] != false || o["payment_intent"] != id) {
				t.Errorf("refunded charge %v", o)
			}
		}
	})

	t.Run("a replayed request sends no second event", func(t *testing.T) {
		t.Parallel()
		r := receive(t)
		f := start(t, sandbox.Options{WebhookURL: r.URL, WebhookSecret: eventSecret})
		for range 5 {
			f.post(intents, "k", eur("100")...)
		}
		f.post(intents, "", eur("200")...)
		r.await(2)
		if events, _ := f.get("/v1/events").at("data").([]any); len(events) != 2 {
			t.Errorf("%d events", len(events))
		}
	})

	t.Run("an event is sent again until it is taken", func(t *testing.T) {
		testdb.Long(t, "it waits for pauses")
		t.Parallel()
		r := receive(t)
		r.setDown(true)
		f := start(t, sandbox.Options{WebhookURL: r.URL, WebhookSecret: eventSecret})
		f.create("")
		await.True(t, "it was tried twice", func() bool { return r.refusals() >= 2 })
		r.setDown(false)
		r.await(1)
	})
}

func TestDuplicateWebhooks(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	r := receive(t)
	f := start(t, sandbox.Options{WebhookURL: r.URL, WebhookSecret: eventSecret})
	for range 3 {
		f.create("")
	}
	r.await(3)
	f.control(http.MethodPost, "/duplicate-webhooks", `{"times":4}`).
		want(t, 200, members{"events": 3.0, "sent": 12.0, "delivered": 12.0})
	f.control(http.MethodPost, "/duplicate-webhooks", `{"times":1}`).
		want(t, 200, members{"events": 3.0, "sent": 3.0, "delivered": 3.0})
	if events, deliveries := r.seen(); events != 3 || deliveries != 18 {
		t.Errorf("%d events came %d times", events, deliveries)
	}
	r.setDown(true)
	f.control(http.MethodPost, "/duplicate-webhooks", `{"times":2}`).
		want(t, 200, members{"events": 3.0, "sent": 6.0, "delivered": 0.0})
	for _, body := range []string{``, `{}`, `{"times":0}`, `{"times":-1}`, `{"times":1001}`, `{"times":"1"}`, `{"times":1,"x":1}`} {
		if a := f.control(http.MethodPost, "/duplicate-webhooks", body); a.status != http.StatusBadRequest {
			t.Errorf("%s: answered %d", body, a.status)
		}
	}
}
