package traffic

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

func TestClient(t *testing.T) {
	t.Parallel()

	// unsure are the answers after which it is unknown whether the request was
	// carried out.
	unsure := []http.HandlerFunc{
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooEarly) },
		func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"type":"/problems/idempotency-key-in-use"}`)
		},
		func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusAccepted) // in flight, under the policy 202
			_, _ = io.WriteString(w, `{}`)
		},
	}

	t.Run("a request is sent with the same key until the answer is definitive", func(t *testing.T) {
		t.Parallel()
		var requests atomic.Int64
		seen := make(chan string, 100)
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			seen <- r.Header.Get("Idempotency-Key") + " " + string(body)
			if n := int(requests.Add(1)); n <= len(unsure) {
				unsure[n-1](w, r)
				return
			}
			w.Header().Set("Location", "/v1/charges/ch_1")
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, `{"id":"ch_1"}`)
		}))
		defer api.Close()

		counts := &Tally{}
		client := New(Target{APIs: []string{api.URL}, APIKey: "sk_test_1"}, counts)
		client.pause = time.Millisecond
		got, err := client.post(t.Context(), "/v1/charges", "key-1", []byte(`{"amount":1}`))
		if err != nil {
			t.Fatal(err)
		}
		if got.Status != http.StatusAccepted || got.member("id") != "ch_1" {
			t.Errorf("answer: %+v", got)
		}
		close(seen)
		for request := range seen {
			if request != `key-1 {"amount":1}` {
				t.Errorf("request: %s", request)
			}
		}
		if want := int64(len(unsure) + 1); requests.Load() != want || counts.Requests.Load() != want {
			t.Errorf("the server counted %d requests, the client %d, should be %d", requests.Load(), counts.Requests.Load(), want)
		}
		if counts.Unanswered.Load() != 1 || counts.TurnedAway.Load() != int64(len(unsure)-1) {
			t.Errorf("%d unanswered, %d turned away", counts.Unanswered.Load(), counts.TurnedAway.Load())
		}
	})

	for _, status := range []int{
		http.StatusAccepted, http.StatusBadRequest, http.StatusUnauthorized,
		http.StatusConflict, http.StatusGone, http.StatusUnprocessableEntity,
	} {
		t.Run(http.StatusText(status)+" is definitive", func(t *testing.T) {
			t.Parallel()
			if !(Answer{Status: status, Location: "/v1/charges/ch_1", Body: `{"type":"/problems/conflict"}`}).definitive() {
				t.Error("it is not")
			}
		})
	}
}
