package traffic

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

// TestPost_sendsTheSameKeyUntilTheAnswerIsDefinitive: after each of these answers it is
// unknown whether the request was carried out.
func TestPost_sendsTheSameKeyUntilTheAnswerIsDefinitive(t *testing.T) {
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
		status, text := http.StatusAccepted, `{"id":"ch_1"}`
		if n := int(requests.Add(1)); n <= len(unsure) {
			status, text = unsure[n-1].status, unsure[n-1].body
		} else {
			w.Header().Set("Location", "/v1/charges/ch_1")
		}
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	defer api.Close()

	counts := &Tally{}
	client := New(Target{APIs: []string{api.URL}, APIKey: "sk_test_1"}, counts)
	got, err := client.post(t.Context(), "/v1/charges", "key-1", []byte(`{"amount":1}`))
	if err != nil || got.Status != http.StatusAccepted || got.member("id") != "ch_1" {
		t.Errorf("answer: %+v, %v", got, err)
	}
	if want := int64(len(unsure) + 1); requests.Load() != want || counts.Requests.Load() != want {
		t.Errorf("the server counted %d requests, the client %d, should be %d", requests.Load(), counts.Requests.Load(), want)
	}
	if counts.Unanswered.Load() != 1 || counts.TurnedAway.Load() != int64(len(unsure)-1) {
		t.Errorf("%d unanswered, %d turned away", counts.Unanswered.Load(), counts.TurnedAway.Load())
	}
	for _, status := range []int{
		http.StatusAccepted, http.StatusBadRequest, http.StatusUnauthorized,
		http.StatusConflict, http.StatusGone, http.StatusUnprocessableEntity,
	} {
		if !(Answer{Status: status, Location: "/v1/charges/ch_1", Body: `{"type":"/problems/conflict"}`}).definitive() {
			t.Errorf("%d is not definitive", status)
		}
	}
}

func TestMain(m *testing.M) { testrun.Main(m) }
