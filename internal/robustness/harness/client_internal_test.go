package harness

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// TestInsist_sendsTheSameKeyUntilTheAnswerIsDefinitive: after each of these answers it is
// unknown whether the request was carried out.
func TestInsist_sendsTheSameKeyUntilTheAnswerIsDefinitive(t *testing.T) {
	t.Parallel()
	unsure := []struct {
		status int // 0 where the connection is cut
		body   string
	}{
		{0, ""},
		{http.StatusServiceUnavailable, ""},
		{http.StatusTooManyRequests, ""},
		{http.StatusTooEarly, ""},
		{http.StatusConflict, `{"type":"/problems/idempotency-key-in-use"}`},
		{http.StatusAccepted, `{}`}, // in flight, under the policy 202
	}
	var requests atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if request := r.Header.Get("Idempotency-Key") + " " + string(body); err != nil || request != `key-1 {"amount":1}` {
			t.Errorf("request: %s, %v", request, err)
		}
		status, text := http.StatusConflict, `{"type":"/problems/conflict"}`
		if n := int(requests.Add(1)); n <= len(unsure) {
			status, text = unsure[n-1].status, unsure[n-1].body
		}
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	defer api.Close()
	client := NewClient("sk_test_1", api.URL)
	got, err := client.Insist(t.Context(), Request{Key: "key-1", Body: []byte(`{"amount":1}`)})
	if err != nil || answerOf(got).Problem() != "/problems/conflict" {
		t.Errorf("answer: %+v, %v", got, err)
	}
	if sent := client.Requests.Load(); sent != int64(len(unsure)+1) || sent != requests.Load() {
		t.Errorf("the client counted %d requests, the server %d", sent, requests.Load())
	}
	if client.Unanswered.Load() != 1 || client.TurnedAway.Load() != int64(len(unsure)-1) {
		t.Errorf("%d unanswered, %d turned away", client.Unanswered.Load(), client.TurnedAway.Load())
	}
}
