package httpapi_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/httpapi"
)

// TestEvents_fewUnsignedBodiesAreReadAtATime: of those who send an event without its end, as
// many are listened to as requests may be in flight. The others are refused
// before they have sent all.
func TestEvents_fewUnsignedBodiesAreReadAtATime(t *testing.T) {
	t.Parallel()
	const sockets, listened = 20, 4
	w := serveBare(t, func(api *httpapi.Config) {
		api.Limits = httpapi.Limits{InFlight: listened, PerMerchant: listened, Authenticating: 2}
		api.Now = time.Now
	}, func(*http.Server) {})
	event := "POST /v1/webhooks/stripe HTTP/1.1\r\nHost: payonce\r\nContent-Length: 65536\r\n\r\n" +
		strings.Repeat("x", 65535)
	type heard struct{ socket, status int }
	answers := make(chan heard, sockets)
	conns := make([]io.Writer, sockets)
	for i := range sockets {
		conn := w.dial(t, event)
		conns[i] = conn
		go func() {
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				answers <- heard{i, 0}
				return
			}
			defer response.Body.Close()
			answers <- heard{i, response.StatusCode}
		}()
	}
	refused := map[int]bool{}
	for range sockets - listened {
		a := <-answers
		if a.status != http.StatusServiceUnavailable {
			t.Errorf("before its end an event is answered by %d", a.status)
		}
		refused[a.socket] = true
	}
	w.accept(t, "key-1", body()) // the others hold no place of a merchant

	for i, conn := range conns {
		if refused[i] {
			continue
		}
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Error(err)
		}
	}
	for range listened {
		if a := <-answers; a.status != http.StatusBadRequest {
			t.Errorf("at its end an event is answered by %d", a.status)
		}
	}
	wantProblem(t, w.send(t, to("/v1/webhooks/stripe", "", "{}")), "/problems/webhook-signature")
}
