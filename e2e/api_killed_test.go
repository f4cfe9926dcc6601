package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/fleet"
)

// killedAPI kills the only api again and again while requests flow. What clients
// were told and what is there must be the same in the end, which every world is
// asked; here are the parts of one charge, counted.
func killedAPI(t *testing.T) {
	t.Helper()
	w := newWorld(t, setup{apis: 1, workers: 1})
	n, kills := 240, 6
	f := w.flowing(t, n, 24, visa)
	for i := range kills {
		f.awaitAnswered(t, (i+1)*n/(kills+1))
		if err := w.apis[0].Kill(); err != nil {
			t.Fatal(err)
		}
		restart(t, w.apis[0])
	}
	f.finish(t, w)
	if f.retries.Load() == 0 {
		t.Error("the kills left no request without an answer: they showed nothing")
	}
	const parts = `
select concat_ws(' ',
         (select count(*)
            from idempotency_keys),
         (select count(*)
            from ledger_events
           where type = 'charge.requested.v1'),
         (select count(distinct stream_id)
            from ledger_postings
           where version = 1),
         (select count(*)
            from outbox
           where message_id in (
                 select event_id::text
                   from ledger_events
                  where type = 'charge.requested.v1')))`
	if got, want := row[string](t, w, parts), spaced(n, n, n, n); got != want {
		t.Errorf("keys, events, postings and messages are %s, want %s", got, want)
	}
	t.Logf("%d charges, %d kills, %d sendings without an answer", n, kills, f.retries.Load())
}

// storeDown cuts the api from its database, while nothing and while much is
// under way.
func storeDown(t *testing.T) {
	t.Helper()
	var link *wire
	w := newWorld(t, setup{apis: 1, workers: 1, apiDatabase: func(database string) string {
		link = newWire(t, database)
		return link.url(database)
	}})
	r := request{key: "key-" + unique(), body: newOrder(visa).body(t)}
	earlier := w.send(t, newOrder(visa))

	link.set(true)
	for range 3 {
		got, err := w.client.do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if p := mustBeProblem(t, got, http.StatusServiceUnavailable, "unavailable"); !p.Retryable || p.RetryWith != "same-key" {
			t.Errorf("how to go on is not told: %s", got.Body)
		}
		if got.Header.Get("Retry-After") == "" {
			t.Errorf("when to go on is not told: %v", got.Header)
		}
	}
	read, err := w.client.do(t.Context(), request{method: http.MethodGet, path: "/v1/charges/" + earlier.ID})
	if err != nil {
		t.Fatal(err)
	}
	mustBeProblem(t, read, http.StatusServiceUnavailable, "unavailable")
	answers := func(path string, want int) bool {
		got, err := w.client.do(t.Context(), request{method: http.MethodGet, path: path})
		return err == nil && got.Status == want
	}
	if !answers("/healthz", http.StatusOK) {
		t.Error("/healthz does not answer 200")
	}
	// An answer of /readyz holds for a second.
	if !within(10*time.Second, func() bool { return answers("/readyz", http.StatusServiceUnavailable) }) {
		t.Error("/readyz does not answer 503")
	}
	link.set(false)
	got, _, err := w.client.insist(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	acceptedCharge(t, got)

	n, cuts := 120, 5
	f := w.flowing(t, n, 16, visa)
	for i := range cuts {
		f.awaitAnswered(t, (i+1)*n/(cuts+1))
		link.set(true)
		pause(t.Context(), 100*time.Millisecond)
		link.set(false)
	}
	f.finish(t, w)
	if f.retries.Load() == 0 {
		t.Error("the cuts left no request without an answer: they showed nothing")
	}
	t.Logf("%d charges, %d cuts, %d sendings without a definitive answer", n, cuts, f.retries.Load())
}

// drainedAPI tells an api to stop while one request has been begun and others
// flow.
func drainedAPI(t *testing.T) {
	t.Helper()
	w := newWorld(t, setup{apis: 1, workers: 1})
	api := w.apis[0]
	key, body := "key-"+unique(), newOrder(visa).body(t)
	conn := beginRequest(t, w, api, key, len(body))
	f := w.flowing(t, 100, 8, visa)
	f.awaitAnswered(t, 20)

	stopped := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), stopPatience)
	defer cancel()
	go func() { stopped <- api.Stop(ctx) }()
	eventually(t, "the api takes no new connection", func() bool {
		var d net.Dialer
		probe, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(api.URL(), "http://"))
		if err == nil {
			_ = probe.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("it ended with a request under way: %v", err)
	default:
	}
	if _, err := conn.Write(body); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("the request under way got no answer: %v", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	var c charge
	if err != nil || response.StatusCode != http.StatusAccepted || json.Unmarshal(text, &c) != nil {
		t.Fatalf("the request under way was answered %s %s, %v", response.Status, text, err)
	}
	if err := next(t, "the api ends", stopped); err != nil {
		t.Error(err)
	}
	restart(t, api)
	f.finish(t, w)
	again, _, err := w.client.insist(t.Context(), request{key: key, body: body})
	if err != nil || !bytes.Equal(again.Body, text) {
		t.Errorf("its replay is %s, it was %s, %v", again.Body, text, err)
	}
}

// beginRequest sends the head of a charge and returns when the api has begun to
// read its body.
func beginRequest(t *testing.T, w *world, api *fleet.Process, key string, length int) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(api.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	w.client.tenants.remember(key, w.keys.api)
	_, err = fmt.Fprintf(conn, "POST /v1/charges HTTP/1.1\r\nHost: payonce\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Idempotency-Key: %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", w.keys.api, key, length)
	if err != nil {
		t.Fatal(err)
	}
	const goOn = "HTTP/1.1 100 Continue\r\n\r\n"
	said := make([]byte, len(goOn))
	if _, err := io.ReadFull(conn, said); err != nil || string(said) != goOn {
		t.Fatalf("the api said %q, %v", said, err)
	}
	return conn
}
