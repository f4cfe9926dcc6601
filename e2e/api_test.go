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

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// TestAPI_SIGTERM_finishesRequestsInFlight stops an api while one request has been
// sent in part and others are in flight.
func TestAPI_SIGTERM_finishesRequestsInFlight(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1})
	api := d.APIs[0]
	key, body := "key-"+unique(), newOrder(visa).body(t)
	f := d.flowing(t, 60, 8, visa)
	f.awaitAnswered(t, 20)
	conn := beginRequest(t, d, api, key, len(body)) // whose body the api waits for, but not long

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
func beginRequest(t *testing.T, d *deployment, api *harness.Process, key string, length int) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(api.URL(), "http://"))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
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
