package sandbox

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/loop"
)

// apiVersion is the version of Stripe's API that has these shapes.
const apiVersion = "2026-03-25.dahlia"

// emit adds an event about subject to the change that caused it. A nil call means that no
// request caused it.
func (s *Sandbox) emit(to *change, c *call, kind string, subject any) {
	id, request := newID("evt_"), members{"id": nil, "idempotency_key": nil}
	if c != nil {
		request["id"] = c.id
		if c.key != "" {
			request["idempotency_key"] = c.key
		}
	}
	shown := members{ // as Stripe's
		"id": id, "object": "event", "api_version": apiVersion, "created": s.options.Now().Unix(), "livemode": false,
		"pending_webhooks": 1, "type": kind, "data": members{"object": subject}, "request": request,
	}
	to.Events = append(to.Events, &eventFields{ID: id, Type: kind, Body: string(object(http.StatusOK, shown).body)})
}

func filterEvents(p *params) func(*event) bool {
	kind := p.text("type")
	return func(e *event) bool { return kind == "" || e.Type == kind }
}

// sendDeadline bounds one delivery.
const sendDeadline = 5 * time.Second

// post sends one event, signed with the time of this attempt. Only a 2xx delivers.
func (s *Sandbox) post(ctx context.Context, body string) (delivered bool) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.options.WebhookURL, bytes.NewBufferString(body))
	if err != nil {
		return false
	}
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	request.Header.Set("Stripe-Signature", signature(s.options.WebhookSecret, s.options.Now(), body))
	response, err := s.client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // so that the connection is used again
	return response.StatusCode/100 == 2
}

// signature is Stripe's scheme v1: HMAC-SHA256 over "time.body".
func signature(secret string, at time.Time, body string) string {
	t := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(t + "." + body))
	return fmt.Sprintf("t=%s,v1=%s", t, hex.EncodeToString(mac.Sum(nil)))
}

const (
	senders   = 8  // events that are sent at the same time
	claimSize = 64 // events of one round
	// Failed deliveries are sent again after retryBase, doubling up to retryCap,
	// attemptsMax times in all.
	retryBase   = 200 * time.Millisecond
	retryCap    = time.Minute
	attemptsMax = 100
	// pollEvery bounds how late a retry or a settlement is.
	pollEvery = 250 * time.Millisecond
)

// Deliver sends events that are due and settles intents that are processing, until
// ctx ends. Like Stripe's, events have no order and may arrive twice. Without a receiver
// they are kept and not sent. It logs a failure and retries.
func (s *Sandbox) Deliver(ctx context.Context) {
	loop.Run(ctx, s.options.Logger, "events not delivered", func(ctx context.Context) (time.Duration, error) {
		sent, err := s.deliverOnce(ctx)
		if sent == 0 && err == nil {
			loop.Pause(ctx, pollEvery, s.wake)
		}
		return 0, err
	})
}

// deliverOnce settles what is due and sends some of the events that are due; it returns how
// many it tried to send.
func (s *Sandbox) deliverOnce(ctx context.Context) (int, error) {
	due, err := s.due()
	if err != nil {
		return 0, err
	}
	taken := s.send(ctx, due)
	s.mu.Lock()
	defer s.mu.Unlock()
	done := &change{}
	for n, e := range due {
		switch {
		case taken[n] == delivered, e.attempts >= attemptsMax:
			done.Delivered = append(done.Delivered, e.ID)
		case taken[n] == failed:
			e.due = s.options.Now().Add(min(retryCap, retryBase<<min(e.attempts-1, 20)))
		}
	}
	return len(due), s.record(done)
}

// due are some of the events that are to be sent, each with one attempt more.
func (s *Sandbox) due() (due []*event, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.settle(); err != nil || s.options.WebhookURL == "" {
		return nil, err
	}
	for _, e := range s.books.waiting {
		if !e.due.After(s.options.Now()) {
			e.attempts++
			due = append(due, e)
		}
		if len(due) == claimSize {
			break
		}
	}
	return due, nil
}

// sending is what became of one delivery.
type sending int

const (
	unsent sending = iota // ctx ended, or the sandbox drains
	failed
	delivered
)

// send posts events, some at a time.
func (s *Sandbox) send(ctx context.Context, all []*event) []sending {
	outcomes := make([]sending, len(all))
	var group errgroup.Group
	group.SetLimit(senders)
	for n, e := range all {
		if errors.Join(ctx.Err(), s.draining.Err()) != nil {
			break
		}
		group.Go(func() error {
			outcomes[n] = failed
			if s.post(ctx, e.Body) {
				outcomes[n] = delivered
			}
			return nil
		})
	}
	_ = group.Wait() // the outcomes say what failed
	return outcomes
}

const (
	timesMax       = 1000
	repeatDeadline = 20 * time.Second
)

// duplicateWebhooks sends every event that was sent so far once more, so many times, and
// answers with how many were sent before repeatDeadline, and how many were taken.
func (s *Sandbox) duplicateWebhooks(r *http.Request) (answer, error) {
	var body struct {
		Times int `json:"times"`
	}
	if err := readControl(r, &body); err != nil {
		return answer{}, err
	}
	if body.Times < 1 || body.Times > timesMax {
		return answer{}, refused(http.StatusBadRequest, "times is %d: give a number from 1 to %d", body.Times, timesMax)
	}
	ctx, cancel := context.WithTimeout(r.Context(), repeatDeadline)
	defer cancel()
	var sent, repeats []*event
	s.mu.Lock()
	for _, e := range s.books.events.rows {
		if e.attempts > 0 {
			sent = append(sent, e)
		}
	}
	s.mu.Unlock()
	for range body.Times {
		repeats = append(repeats, sent...)
	}
	outcomes := s.send(ctx, repeats)
	counts := map[string]int{"events": len(sent), "deliveries": len(repeats), "sent": 0, "delivered": 0}
	for _, o := range outcomes {
		if o != unsent {
			counts["sent"]++
		}
		if o == delivered {
			counts["delivered"]++
		}
	}
	return object(http.StatusOK, counts), nil
}
