package httpapi_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// large is the request of a charge of about 40 KiB.
func large() string {
	var metadata strings.Builder
	for i := range 20 {
		fmt.Fprintf(&metadata, `,"name-%d":"%s"`, i, strings.Repeat("😀", 500))
	}
	return body("metadata", "{"+metadata.String()[1:]+"}")
}

func TestListCharges_endsAPageByItsBytes(t *testing.T) {
	t.Parallel()
	w := serve(t)
	var want, got []string
	for i := range 30 {
		want = append([]string{idOf(w.accept(t, fmt.Sprintf("key-%d", i), large()).header.Get("Location"))}, want...)
	}
	for after, more, pages := "", true, 0; more; pages++ {
		page := w.list(t, "?limit=100&starting_after="+after)
		size := 0
		for _, raw := range page.Data {
			size += len(raw)
			id, _ := members(t, string(raw))["id"].(string)
			got = append(got, id)
		}
		after = page.Next
		if more = page.HasMore; size > ledger.MaxPage || more && size < ledger.MaxPage/2 || pages > 2 {
			t.Fatalf("page %d has %d charges of %d bytes", pages, len(page.Data), size)
		}
	}
	testrun.Same(t, "charges", want, got)
}

// TestAnswers_theirBytesInFlightAreBounded: a client that does not read its answers holds its
// merchant's share of the bytes, keeps no other merchant from its answers, and is cut off.
func TestAnswers_theirBytesInFlightAreBounded(t *testing.T) {
	t.Parallel()
	w := serveBare(t, func(*http.Server) {}, func(c *httpapi.Config) { c.Limits.AnswerBytes = 150_000 })
	location := w.accept(t, "key-1", large()).header.Get("Location")
	theirs := w.accepted(t, post("key-1", large()).as(strangerKey)).header.Get("Location")
	w.dial(t, strings.Repeat("GET "+location+" HTTP/1.1\r\n"+mine+"\r\n", 400)) // more than the kernel keeps
	await.Progress(t, "the share is in use", func() (string, bool) {
		a := w.send(t, get(location))
		return http.StatusText(a.status), a.status == http.StatusServiceUnavailable
	})
	w.read(t, get("/v1/balances"))
	w.read(t, get(theirs).as(strangerKey))
	await.Progress(t, "the client that does not read is cut off", func() (string, bool) {
		a := w.send(t, get(location))
		return http.StatusText(a.status), a.status == http.StatusOK
	})
}

// TestEvents_ofOneAddressKeepNoOthersOut: slow senders of unsigned events have the share of
// their address and are cut off, while an event from elsewhere is received.
func TestEvents_ofOneAddressKeepNoOthersOut(t *testing.T) {
	t.Parallel()
	const sockets = 40 // more than are read at once
	w := serveBare(t, func(*http.Server) {}, takesEvents, func(c *httpapi.Config) {
		c.Limits = httpapi.Limits{InFlight: 3, UnsignedTime: time.Second}
	})
	slow := "POST /v1/webhooks/stripe HTTP/1.1\r\nHost: payonce\r\nContent-Length: 65536\r\n\r\nx"
	ended := make(chan int, sockets)
	for range sockets {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Skipf("this machine has one address of the loopback interface: %v", err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, slow); err != nil {
			t.Fatal(err)
		}
		go func() {
			status := 0
			if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
				status = response.StatusCode
				_ = response.Body.Close()
			}
			ended <- status
		}()
		wantReceived(t, w.send(t, signed(event("evt_1", "customer.created", "{}"))))
	}
	answered := map[int]int{}
	for range sockets { // without the end of any body
		answered[await.Receive(t, "the end of a slow sender", ended)]++
	}
	if answered[http.StatusServiceUnavailable]+answered[http.StatusBadRequest] != sockets {
		t.Errorf("slow senders are answered by status: %v", answered)
	}
}

// TestUnauthorized_isAnsweredBeforeTheBody: a client without a key cannot hold a connection by
// a body that never ends.
func TestUnauthorized_isAnsweredBeforeTheBody(t *testing.T) {
	t.Parallel()
	w := serveBare(t, func(s *http.Server) { s.ReadTimeout = time.Hour })
	conn := w.dial(t, "POST /v1/charges HTTP/1.1\r\nHost: payonce\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{")
	from := bufio.NewReader(conn)
	wantProblem(t, readAnswer(t, from), "/problems/unauthorized")
	if _, err := from.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection is not closed: %v", err)
	}
}

func TestHSTS_isSentOverTLS(t *testing.T) {
	t.Parallel()
	handler := httpapi.New(*newAPI(t, nil, io.Discard)).Handler()
	for _, secure := range []bool{true, false} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil)
		if secure {
			r.TLS = &tls.ConnectionState{}
		}
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, r)
		if got := recorder.Header().Get("Strict-Transport-Security"); (got == "max-age=31536000") != secure {
			t.Errorf("TLS %t: Strict-Transport-Security is %q", secure, got)
		}
	}
}
