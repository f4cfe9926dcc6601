package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/fleet"
)

// TestAPI_SIGTERM_finishesRequestsInFlight stops an api while one request has been
// sent in part and others are in flight.
func TestAPI_SIGTERM_finishesRequestsInFlight(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1})
	api := d.APIs[0]
	key, body := "key-"+unique(), newOrder(visa).body(t)
	conn := beginRequest(t, d, api, key, len(body))
	f := d.flowing(t, 60, 8, visa)
	f.awaitAnswered(t, 20)

	stopped := make(chan error, 1)
	ctx := bounded(t)
	go func() { stopped <- api.Stop(ctx) }()
	await.True(t, "the api takes no new connection", func() bool {
		var dialer net.Dialer
		probe, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(api.URL(), "http://"))
		if err == nil {
			_ = probe.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("it ended with a request in flight: %v", err)
	default:
	}
	if _, err := conn.Write(body); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("the request in flight got no answer: %v", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	var c charge
	if err != nil || response.StatusCode != http.StatusAccepted || json.Unmarshal(text, &c) != nil {
		t.Fatalf("the request in flight was answered %s %s, %v", response.Status, text, err)
	}
	if err := await.Receive(t, "the api ends", stopped); err != nil {
		t.Error(err)
	}
	restart(t, api)
	f.finish(t, d)
	again, err := d.client.insist(t.Context(), request{key: key, body: body})
	if err != nil || !bytes.Equal(again.Body, text) {
		t.Errorf("its replay is %s, it was %s, %v", again.Body, text, err)
	}
}

// beginRequest sends the head of a charge and returns when the api has begun to
// read its body.
func beginRequest(t *testing.T, d *deployment, api *fleet.Process, key string, length int) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(api.URL(), "http://"))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	d.client.tenants.remember(key, d.Secrets.API)
	_, err = fmt.Fprintf(conn, "POST /v1/charges HTTP/1.1\r\nHost: payonce\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Idempotency-Key: %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", d.Secrets.API, key, length)
	must(t, err)
	const goOn = "HTTP/1.1 100 Continue\r\n\r\n"
	said := make([]byte, len(goOn))
	if _, err := io.ReadFull(conn, said); err != nil || string(said) != goOn {
		t.Fatalf("the api said %q, %v", said, err)
	}
	return conn
}

// TestAPI_refusedRequest_leavesNoRow sends requests of every problem type that a
// request can have, and compares the rows of all tables before and after. The tests
// of internal/httpapi send every way in which a request can be wrong.
func TestAPI_refusedRequest_leavesNoRow(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1})
	rows := d.count(t)
	t.Cleanup(func() {
		if diff := cmp.Diff(rows, d.count(t)); diff != "" {
			t.Errorf("rows before (-) and after (+) all refusals:\n%s", diff)
		}
	})
	const good = `{"order_id":"A-1","amount":1000,"currency":"USD","payment_method":"pm_card_visa"}`
	with := func(old, replaced string) []byte { return []byte(strings.Replace(good, old, replaced, 1)) }
	body := []byte(good)
	as := func(authorization ...string) http.Header { return http.Header{"Authorization": authorization} }
	charge := "/v1/charges/ch_" + unique()
	for name, c := range map[string]struct {
		send   request
		status int
		kind   string
		header string // that the answer must carry
	}{
		"no body":                     {request{key: unique(), body: []byte{}}, http.StatusBadRequest, "malformed", ""},
		"a NUL":                       {request{key: unique(), body: with("A-1", `A\u0000`)}, http.StatusBadRequest, "malformed", ""},
		"no content type":             {request{key: unique(), body: body, header: http.Header{"Content-Type": nil}}, http.StatusUnsupportedMediaType, "unsupported-media-type", ""},
		"a body of 65 KiB":            {request{key: unique(), body: with("A-1", strings.Repeat("x", 65<<10))}, http.StatusRequestEntityTooLarge, "too-large", ""},
		"an amount of 0":              {request{key: unique(), body: with("1000", "0")}, http.StatusUnprocessableEntity, "validation", ""},
		"a missing key":               {request{body: body}, http.StatusBadRequest, "idempotency-key-missing", "Link"},
		"a key with half a quote":     {request{body: body, header: http.Header{"Idempotency-Key": {`"key`}}}, http.StatusBadRequest, "idempotency-key-invalid", ""},
		"no API key":                  {request{key: unique(), body: body, header: as()}, http.StatusUnauthorized, "unauthorized", "Www-Authenticate"},
		"an unknown API key":          {request{key: unique(), body: body, header: as("Bearer sk_test_" + unique())}, http.StatusUnauthorized, "unauthorized", "Www-Authenticate"},
		"a charge that is not there":  {request{method: http.MethodGet, path: charge}, http.StatusNotFound, "not-found", ""},
		"a charge with bytes as name": {request{method: http.MethodGet, path: "/v1/charges/%00%ff"}, http.StatusNotFound, "not-found", ""},
		"a deletion":                  {request{method: http.MethodDelete, path: charge}, http.StatusMethodNotAllowed, "method-not-allowed", "Allow"},
		"an event unsigned":           {eventRequest("", intentEvent("payment_intent.succeeded", charge)), http.StatusBadRequest, "webhook-signature", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := d.do(t, c.send)
			if p := mustBeProblem(t, got, c.status, c.kind); p.Retryable {
				t.Errorf("it may be retried as it is: %s", got.Body)
			}
			if c.header != "" && got.Header.Get(c.header) == "" {
				t.Errorf("the answer lacks %s: %v", c.header, got.Header)
			}
			if c.send.key != "" && bytes.Contains(got.Body, []byte(c.send.key)) {
				t.Errorf("the answer repeats the key: %s", got.Body)
			}
		})
	}
}

// count is the number of rows of every table.
func (d *deployment) count(t *testing.T) map[string]int64 {
	t.Helper()
	const tables = `
select format('%I.%I', schemaname, relname)
  from pg_stat_user_tables`
	counts := map[string]int64{}
	for _, table := range rows[string](t, d, tables) {
		counts[table] = row[int64](t, d, "select count(*) from "+table)
	}
	if len(counts) < 5 {
		t.Errorf("there are but %d tables", len(counts))
	}
	return counts
}
