package notify_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/notify"
)

// A receiver that accepts and never answers would hold every place for as long
// as the time-out, and the other merchants would wait behind it.
func TestDeliver_tries_a_silent_receiver_a_few_at_a_time(t *testing.T) {
	t.Parallel()
	asked, hang := make(chan struct{}, 100), make(chan struct{})
	silent := newReceiver(t, "127.0.0.1:0", func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(hang) })
	s := newSender(t, notify.Config{AllowCIDRs: loopback()})

	first, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Deliver(first, webhook(silent.URL)); err == nil {
		t.Fatal("delivered")
	}
	<-asked // it has found out

	const all, tried = 20, 4
	trying, stop := context.WithCancel(t.Context())
	defer stop()
	errs := make(chan error, all)
	for range all {
		go func() { errs <- s.Deliver(trying, webhook(silent.URL)) }()
	}
	for range all - tried {
		err := <-errs
		if undelivered := (*notify.DeliveryError)(nil); !errors.As(err, &undelivered) {
			t.Fatalf("Deliver: %v", err)
		}
	}
	for range tried {
		<-asked
	}
	stop()
	for range tried {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("Deliver: %v", err)
		}
	}
	if n := len(asked); n != 0 {
		t.Errorf("%d deliveries more than %d reached a silent receiver", n, tried)
	}
}
