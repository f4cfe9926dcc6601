package webhook_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/webhook"
)

// TestObserve: a delivery is told with its host and its status, and the headers of
// who is told go along without taking the place of what is signed.
func TestObserve(t *testing.T) {
	t.Parallel()
	var in inbox
	status := http.StatusNoContent
	r := newReceiver(t, "127.0.0.1:0", func(w http.ResponseWriter, req *http.Request) {
		in.receive(headers{w}, req)
		w.WriteHeader(status)
	})
	var hosts []string
	var statuses []int
	s := newSender(t, webhook.Config{
		AllowCIDRs: loopback(),
		Observe: func(ctx context.Context, host string) (map[string]string, func(int)) {
			if ctx.Value(callers{}) == nil {
				t.Error("it is told in another context than the caller's")
			}
			hosts = append(hosts, host)
			return map[string]string{"traceparent": "t1", "webhook-id": "forged", "Webhook-Signature": "forged"},
				func(status int) { statuses = append(statuses, status) }
		},
	})
	ctx := context.WithValue(t.Context(), callers{}, true)
	if err := s.Deliver(ctx, messageTo(r.URL+"/hook?token=private")); err != nil {
		t.Fatal(err)
	}
	got := in.all()[0]
	if err := verifier(t).Verify(got.body, got.header); err != nil {
		t.Errorf("verify: %v", err)
	}
	if got.header.Get("Traceparent") != "t1" {
		t.Errorf("received with %v", got.header)
	}
	status = http.StatusServiceUnavailable
	if err := s.Deliver(ctx, messageTo(r.URL)); kinds(err) != "delivery" {
		t.Errorf("refused with %v", err)
	}
	r.Close()
	if err := s.Deliver(ctx, messageTo(r.URL)); kinds(err) != "delivery" {
		t.Errorf("refused with %v", err)
	}
	if diff := cmp.Diff([]int{http.StatusNoContent, http.StatusServiceUnavailable, 0}, statuses); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"127.0.0.1", "127.0.0.1", "127.0.0.1"}, hosts); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
}

type callers struct{}

// headers takes an answer's headers and no status.
type headers struct{ http.ResponseWriter }

func (headers) WriteHeader(int) {}
