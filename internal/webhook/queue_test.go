package webhook_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/webhook"
)

// holding is a receiver that keeps what comes under /hang, and answers the rest.
type holding struct {
	receiver

	asked chan struct{} // one for each delivery that it keeps
	end   chan struct{} // cuts one of them for each that is sent
}

// keep says what a receiver has sent of its answer when it begins to keep one.
func newHolding(t *testing.T, keep func(http.ResponseWriter)) holding {
	t.Helper()
	h := holding{asked: make(chan struct{}, 100), end: make(chan struct{})}
	h.receiver = newReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/hang") {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // before, the server does not see who goes away
		keep(w)
		h.asked <- struct{}{}
		select {
		case <-h.end:
			panic(http.ErrAbortHandler) // cuts what was begun
		case <-r.Context().Done():
		}
	})
	return h
}

func silence(http.ResponseWriter) {}

func halfAnAnswer(w http.ResponseWriter) {
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
}

// hang delivers so many webhooks that are kept, until stop, after which end holds
// the errors of all of them.
func (h holding) hang(t *testing.T, s *webhook.Sender, n int) (end <-chan error, stop func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	errs := make(chan error, n)
	for range n {
		go func() { errs <- s.Deliver(ctx, messageTo(h.URL+"/hang")) }()
	}
	return errs, stop
}

// A receiver that accepts and never comes to an end would hold every place for as
// long as the time-out, and the other merchants would wait behind it.
func TestDeliver_tries_a_silent_receiver_a_few_at_a_time(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		keep func(http.ResponseWriter)
		find func(*testing.T, *webhook.Sender, holding) // finds out how it is
	}{
		"that sends nothing":               {silence, oneInVain},
		"that does not end its answer":     {halfAnAnswer, oneCut},
		"whose whole answer came too late": {silence, oneTooLate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const all, tried = 20, 4
			h := newHolding(t, test.keep)
			s := newSender(t, webhook.Config{AllowCIDRs: loopback(), Timeout: time.Minute})
			test.find(t, s, h)
			errs, stop := h.hang(t, s, all)
			for range all - tried {
				if err := <-errs; kinds(err) != "busy" {
					t.Fatalf("Deliver: %v", err)
				}
			}
			for range tried {
				<-h.asked
			}
			gone(t, stop, errs, tried)
			if n := len(h.asked); n != 0 {
				t.Errorf("%d deliveries more than %d reached a silent receiver", n, tried)
			}
		})
	}
}

func oneInVain(t *testing.T, s *webhook.Sender, h holding) {
	t.Helper()
	errs, stop := h.hang(t, s, 1)
	<-h.asked
	gone(t, stop, errs, 1)
}

// gone ends so many deliveries that are kept.
func gone(t *testing.T, stop func(), errs <-chan error, n int) {
	t.Helper()
	stop()
	for range n {
		// One whose status has come was delivered, though its answer has no end.
		if err := <-errs; err != nil && kinds(err) != "context" {
			t.Errorf("Deliver: %v", err)
		}
	}
}

// oneCut is delivered, by its status, and the answer has no end.
func oneCut(t *testing.T, s *webhook.Sender, h holding) {
	t.Helper()
	errs, _ := h.hang(t, s, 1)
	<-h.asked
	h.end <- struct{}{}
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
}

func oneTooLate(t *testing.T, s *webhook.Sender, h holding) {
	t.Helper()
	s.Hurry()
	if err := s.Deliver(t.Context(), messageTo(h.URL)); err != nil {
		t.Fatal(err)
	}
}

func TestDeliver_forgives_a_receiver_that_answers_again(t *testing.T) {
	t.Parallel()
	h := newHolding(t, silence)
	s := newSender(t, webhook.Config{AllowCIDRs: loopback(), Timeout: time.Minute})
	oneInVain(t, s, h)
	if err := s.Deliver(t.Context(), messageTo(h.URL)); err != nil {
		t.Fatal(err)
	}
	errs, stop := h.hang(t, s, 20)
	for range 20 {
		<-h.asked
	}
	gone(t, stop, errs, 20)
}

func TestDeliver_leaves_others_a_place(t *testing.T) {
	t.Parallel()

	t.Run("beside a silent receiver of another merchant at the same host", func(t *testing.T) {
		t.Parallel()
		h := newHolding(t, silence)
		s := newSender(t, webhook.Config{AllowCIDRs: loopback(), Timeout: time.Minute})
		oneInVain(t, s, h)
		errs, stop := h.hang(t, s, 4)
		for range 4 {
			<-h.asked
		}
		other := messageTo(h.URL)
		if err := s.Deliver(t.Context(), other); kinds(err) != "busy" {
			t.Errorf("the same merchant's: %v", err)
		}
		other.Merchant = "globex"
		if err := s.Deliver(t.Context(), other); err != nil {
			t.Errorf("the other merchant's: %v", err)
		}
		gone(t, stop, errs, 4)
	})

	t.Run("when a receiver that used to answer holds its share", func(t *testing.T) {
		t.Parallel()
		h := newHolding(t, silence)
		s := newSender(t, webhook.Config{AllowCIDRs: loopback(), Timeout: time.Minute, Share: 8})
		errs, stop := h.hang(t, s, 8)
		for range 8 {
			<-h.asked
		}
		if err := s.Deliver(t.Context(), messageTo(h.URL)); kinds(err) != "busy" {
			t.Errorf("one more than its share: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Deliver(ended, messageTo(h.URL)); kinds(err) != "context" {
			t.Errorf("one that is not wanted any more: %v", err)
		}
		gone(t, stop, errs, 8)
	})

	t.Run("and a delivery beyond the share has its turn when one ends", func(t *testing.T) {
		t.Parallel()
		h := newHolding(t, silence)
		s := newSender(t, webhook.Config{AllowCIDRs: loopback(), Timeout: time.Minute, Share: 2})
		s.Patient(time.Minute)
		const all = 4 // with more, one that begins late could find the receiver silent, and be refused
		errs, _ := h.hang(t, s, all)
		for range all {
			<-h.asked
			h.end <- struct{}{}
			if err := <-errs; kinds(err) != "delivery" {
				t.Errorf("Deliver: %v", err)
			}
		}
	})
}
