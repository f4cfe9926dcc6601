package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
)

// lines are the access log's.
func (l *transcript) lines(t *testing.T) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for line := range strings.Lines(l.String()) {
		fields := members(t, line)
		if fields["msg"] == "request" {
			lines = append(lines, fields)
		}
	}
	return lines
}

func TestAccessLog(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.send(t, post("key-1", body()).with("X-Request-Id", "req-1"))
	w.send(t, post("key-1", body()).with("X-Request-Id", "req-2"))
	w.send(t, get("/v1/charges/ch_1").with("X-Request-Id", "req-3"))
	w.send(t, get("/nowhere").with("X-Request-Id", "req-4"))
	hash := idempotency.Hash("key-1")
	want := []map[string]any{
		{"method": "POST", "route": "/v1/charges", "status": 202.0, "request_id": "req-1", "key_hash": hash, "replayed": false},
		{"method": "POST", "route": "/v1/charges", "status": 202.0, "request_id": "req-2", "key_hash": hash, "replayed": true},
		{"method": "GET", "route": "/v1/charges/:id", "status": 404.0, "request_id": "req-3"},
		{"method": "GET", "route": "", "status": 404.0, "request_id": "req-4"},
	}
	got := w.log.lines(t)
	for _, line := range got {
		if ms, ok := line["milliseconds"].(float64); !ok || ms < 0 {
			t.Errorf("milliseconds is %v", line["milliseconds"])
		}
		for _, name := range []string{"time", "level", "msg", "milliseconds"} {
			delete(line, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// What a client sends under its keys is its own: no line repeats a key of either
// kind, nor what it buys.
func TestLogsHoldNothingOfTheClients(t *testing.T) {
	t.Parallel()
	w := serve(t)
	const private = "private-7c1f"
	request := body("order_id", `"`+private+`-order"`, "description", `"`+private+`-text"`,
		"payment_method", `"`+private+`-pm"`, "metadata", `{"`+private+`-name":"`+private+`-value"}`,
		"items", `[{"sku":"`+private+`-sku","quantity":1}]`)
	key := private + "-key"
	calls := []call{
		post(key, request),
		post(key, request),
		post(`"`+key+`"`, strings.Replace(request, "2000", "2001", 1)),
		post(key+" "+key, request),
		post(key, request).with("Authorization", "Bearer "+private+"-api-key"),
		post(key, request).with("Authorization", "Basic "+private+"-basic"),
		post(key, strings.Replace(request, "2000", "0", 1)),
		post(key, strings.Replace(request, "2000", `"`+private+`"`, 1)),
		post(key, request+private),
		post(key, strings.Replace(request, "amount", private, 1)),
		get("/v1/charges/" + private),
		get("/" + private + "?q=" + private),
	}
	statuses := map[int]bool{}
	for _, c := range calls {
		statuses[w.send(t, c).status] = true
	}
	held := hold(t, w.db, key+"-held")
	answers := make(chan answer, 1)
	go func() {
		a, err := w.try(t, post(key+"-held", request))
		if err != nil {
			t.Error(err)
		}
		answers <- a
	}()
	waiting(t, w.db, 1)
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	statuses[(<-answers).status] = true
	w.api.Close()
	for _, c := range calls {
		statuses[w.send(t, c).status] = true
	}
	want := map[int]bool{
		http.StatusAccepted: true, http.StatusBadRequest: true, http.StatusUnauthorized: true, http.StatusNotFound: true,
		http.StatusUnprocessableEntity: true, http.StatusServiceUnavailable: true,
	}
	if diff := cmp.Diff(want, statuses); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	log := w.log.String()
	for _, secret := range []string{private, apiKey, strangerKey} {
		if at := strings.Index(log, secret); at >= 0 {
			t.Errorf("the log holds %s: …%s", secret, log[max(at-200, 0):at+len(secret)])
		}
	}
	for line := range strings.Lines(log) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line is not JSON: %s", line)
		}
	}
}

// An id that was refused is not logged either.
func TestAccessLogNamesTheRequestAsItIsStored(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{"a card number": "4242424242424242", "a long text": strings.Repeat("x", 500), "not ASCII": "gr\u00fc\u00dfe"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(t)
			a := w.send(t, get("/v1/balances").with("X-Request-Id", id))
			line := w.log.lines(t)[0]
			if line["request_id"] != a.header.Get("X-Request-Id") || strings.Contains(w.log.String(), id) {
				t.Errorf("logged as %v, answered as %q", line["request_id"], a.header.Get("X-Request-Id"))
			}
		})
	}
}
