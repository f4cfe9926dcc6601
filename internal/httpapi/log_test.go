package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testrun"
)

func TestAccessLog_holdsHashesOfKeys(t *testing.T) {
	t.Parallel()
	w := serve(t)
	routes := w.routes(t)
	const secret = "secret-5e1a"
	const key = secret + "-key"
	type logged struct{ Route, Status, Hash, Replayed, Method, ID any }
	var want []logged
	// send expects the line of a request that a key was read of, if there is one.
	send := func(c call, status int, route, key string, replayed bool) {
		t.Helper()
		a := w.send(t, c)
		if a.status != status {
			t.Fatalf("%s %s: status %d, want %d: %s", c.method, c.path, a.status, status, a.body)
		}
		line := logged{Route: route, Status: float64(status), Method: c.method, ID: a.header.Get("X-Request-Id")}
		if key != "" {
			line.Hash, line.Replayed = idempotency.Hash(key), replayed
		}
		want = append(want, line)
	}
	before := len(lines(t, w))
	for _, r := range routes {
		route := strings.TrimPrefix(r.operation, "POST ")
		other := strings.Replace(r.path, "ch_", "ch_x", 1)
		send(r.under(key), http.StatusAccepted, route, key, false)
		send(r.under(`"`+key+`"`), http.StatusAccepted, route, key, true)
		if other != r.path {
			send(to(other, key, r.body), http.StatusUnprocessableEntity, route, key, false)
			send(to(other, key+"-2", r.body), http.StatusNotFound, route, key+"-2", false)
			send(to(other, key+"-2", r.body), http.StatusNotFound, route, key+"-2", true)
		}
		send(r.under(key+" "+key), http.StatusBadRequest, route, "", false)
		send(r.under(key).with("Authorization", "Bearer "+secret), http.StatusUnauthorized, route, "", false)
		send(to(r.path, key, `{"`+secret+`":1}`), http.StatusBadRequest, route, "", false)
		send(r.under(key).with("Prefer", secret+", wait="+secret), http.StatusAccepted, route, key, true)
	}
	const charges, ofKey = "/v1/charges", "/v1/idempotency-keys/:key"
	refund := to(routes[2].path, secret+"-reason", `{"amount":1,"reason":"`+secret+`"}`)
	send(refund, http.StatusAccepted, "/v1/charges/:id/refunds", secret+"-reason", false)
	order := body("order_id", `"`+secret+`"`, "description", `"`+secret+`"`, "payment_method", `"`+secret+`"`, "customer", `"`+secret+`"`,
		"metadata", `{"`+secret+`":"`+secret+`"}`, "items", `[{"sku":"`+secret+`","quantity":1}]`)
	send(post(secret+"-order", order), http.StatusAccepted, charges, secret+"-order", false)
	send(get("/v1/charges/"+secret), http.StatusNotFound, "/v1/charges/:id", "", false)
	send(get("/"+secret+"?q="+secret), http.StatusNotFound, "", "", false)
	send(get("/v1/idempotency-keys/"+key+"?q="+secret), http.StatusOK, ofKey, "", false)
	send(get("/v1/idempotency-keys/"+secret), http.StatusNotFound, ofKey, "", false)
	exec(t, w.db, `alter table idempotency_keys add constraint planted check (key = '') not valid`)
	send(post(key+"-new", body()), http.StatusServiceUnavailable, charges, key+"-new", false)
	w.api.Close()
	send(post(key, body()), http.StatusServiceUnavailable, charges, "", false)
	send(get("/v1/idempotency-keys/"+key), http.StatusServiceUnavailable, ofKey, "", false)

	var got []logged
	for _, line := range lines(t, w)[before:] {
		if ms, ok := line["milliseconds"].(float64); !ok || ms < 0 {
			t.Errorf("milliseconds is %v", line["milliseconds"])
		}
		got = append(got, logged{line["route"], line["status"], line["key_hash"], line["replayed"], line["method"], line["request_id"]})
	}
	testrun.Same(t, "lines", want, got)
	wantNoneOf(t, w, secret, apiKey)
}

// What the provider sends is its customers' business: an event leaves a line with
// its route and status, whatever becomes of it.
func TestAccessLog_holdsNothingOfEvents(t *testing.T) {
	t.Parallel()
	w := serve(t, takesEvents)
	charge := idOf(w.captured(t, "key-1"))
	const secret = "secret-5e1a"
	e := event("evt_"+secret, "payment_intent.succeeded", strings.Replace(intentOf(charge), `"ref_1"`, `"`+secret+`"`, 1))
	statuses := map[int]int{}
	send := func(c call) { statuses[w.send(t, c).status]++ }
	send(signed(e))
	send(signed(e))
	send(signed(strings.Replace(e, ".succeeded", ".canceled", 1))) // the same id with another content
	send(signed(event("evt_1", "customer.created", `{"name":"`+secret+`"}`)))
	send(signed(event("evt_2", "payment_intent.succeeded", intentOf("ch_"+secret))))
	send(signed(event("evt_3", "payment_intent."+secret, intentOf(charge))))
	send(unsigned(e))
	send(unsigned(e).with("Stripe-Signature", "t="+secret+",v1="+secret))
	send(signed(e).with("Authorization", "Bearer "+secret).with("Idempotency-Key", secret))
	send(signed(e[1:]))
	send(signed(strings.Replace(e, `"evt_`, `"evt `, 1)))
	send(signed(e + strings.Repeat(" ", 1<<20)))
	c := signed(e)
	c.path += "?q=" + secret
	send(c)
	exec(t, w.db, `alter table outbox add constraint planted check (message_id = '') not valid`)
	send(signed(strings.Replace(e, "evt_", "evt_new_", 1)))
	w.api.Close()
	send(signed(e))
	want := map[int]int{
		http.StatusOK: 8, http.StatusBadRequest: 4, http.StatusRequestEntityTooLarge: 1, http.StatusServiceUnavailable: 2,
	}
	testrun.Same(t, "statuses", want, statuses)
	wantNoneOf(t, w, secret, "evt_", stripeSecret, olderSecret, "qwx7", "billing_details", mac(stripeSecret, unix(0), e))
	known := strings.Fields("time level msg method route status milliseconds request_id error bytes client")
	for _, line := range lines(t, w) {
		if line["route"] != "/v1/webhooks/stripe" {
			continue
		}
		for name := range line {
			if !slices.Contains(known, name) {
				t.Errorf("a line says %s: %v", name, line)
			}
		}
	}
}

// wantNoneOf looks through all that was logged.
func wantNoneOf(t *testing.T, w *world, secrets ...string) {
	t.Helper()
	log := w.log.String()
	for _, secret := range secrets {
		if at := strings.Index(log, secret); at >= 0 {
			t.Errorf("the log holds %s: …%s", secret, log[max(at-300, 0):at+len(secret)])
		}
	}
}

// lines are the access log's. A line that is not JSON ends the test.
func lines(t *testing.T, w *world) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(w.log.String()) {
		fields := members(t, line)
		if fields["msg"] == "request" {
			all = append(all, fields)
		}
	}
	return all
}

// TestRequestID_isInAnswerAndLog: the caller's own id, or else one of ours, is in every answer and
// in the line that is logged for it.
func TestRequestID_isInAnswerAndLog(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for name, test := range map[string]struct {
		w      *world
		call   call
		status int
	}{
		"what is accepted, and its replay": {w, post("key-1", body()), http.StatusAccepted},
		"health":                           {w, get("/healthz"), http.StatusOK},
		"no API key":                       {w, get("/v1/balances").with("Authorization"), http.StatusUnauthorized},
		"no such path":                     {w, get("/nowhere"), http.StatusNotFound},
		"a large body":                     {w, post("key-2", padded(maxBody+1)), http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			wantLogged(t, test.w, test.call.with("X-Request-Id", "req-"+strings.NewReplacer(" ", "_", ",", "").Replace(name)), true, test.status)
			wantLogged(t, test.w, test.call, false, test.status)
		})
	}
	for id, kept := range map[string]bool{
		"req-1_A.b": true, "4242-4242-4242-4242": true, strings.Repeat("r", 128): true,
		"": false, "req-1/A": false, "req-1,req-2": false, strings.Repeat("r", 129): false, "req 1": false, "réq": false, "req\xff": false,
	} {
		wantLogged(t, w, get("/v1/balances").with("X-Request-Id", id), kept, http.StatusOK)
		if !kept && id != "" && strings.Contains(w.log.String(), id) {
			t.Errorf("%q was refused, and is logged", id)
		}
	}
	wantLogged(t, w, get("/v1/balances").with("X-Request-Id", "req-1", "req-2"), false, http.StatusOK)
	w.api.Close()
	wantLogged(t, w, get("/v1/balances").with("X-Request-Id", "req-of-mine"), true, http.StatusServiceUnavailable)
}

// wantLogged sends a call whose id is kept or replaced, and finds the id of the
// answer in the log.
func wantLogged(t *testing.T, w *world, c call, kept bool, status int) {
	t.Helper()
	a := w.send(t, c)
	got := a.header.Values("X-Request-Id")
	if a.status != status || len(got) != 1 {
		t.Fatalf("status %d, want %d; X-Request-Id %q: %s", a.status, status, got, a.body)
	}
	if kept != (got[0] == c.header.Get("X-Request-Id")) || !kept && uuid.Validate(got[0]) != nil {
		t.Errorf("X-Request-Id is %q, sent was %q", got, c.header.Get("X-Request-Id"))
	}
	for _, line := range lines(t, w) {
		if line["request_id"] == got[0] && line["status"] == float64(status) {
			return
		}
	}
	t.Errorf("no line has %q and %d:\n%s", got, status, w.log)
}
