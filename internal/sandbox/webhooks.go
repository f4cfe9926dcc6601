package sandbox

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/loop"
)

// emit puts an event about a record.
func (s *Sandbox) emit(c *call, kind string, subject object) {
	c.put(s.newObject("event", "evt_", object{"type": kind, "data": object{"object": subject.shown()}}))
}

const (
	sendDeadline = 5 * time.Second       // of one delivery
	senders      = 8                     // events that are sent at the same time
	claimSize    = 64                    // events of one round
	pollEvery    = 50 * time.Millisecond // bounds how late a delivery or a settlement is where none fails
)

// deliver sends events that were not taken and settles intents that are processing, until the sandbox ends. Like
// Stripe's, events have no order and may arrive twice. A round in which an event fails delays the next one, of all
// events. Without a receiver they are kept.
func (s *Sandbox) deliver() {
	loop.Run(s.running, s.options.Logger, "events not delivered", func(ctx context.Context) (time.Duration, error) {
		due := s.due()
		if len(due) == 0 {
			return pollEvery, nil
		}
		_, err := s.send(ctx, due, func(e object) {
			s.mu.Lock()
			defer s.mu.Unlock()
			e["_taken"] = true
			s.books.record(e)
		})
		return 0, err
	})
}

// due settles intents, and returns some of the events that were not taken, which are sent from then on.
func (s *Sandbox) due() (due []object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settle(); s.options.WebhookURL == "" {
		return nil
	}
	for id := range s.books.waiting["event"] {
		if len(due) < claimSize {
			due = append(due, s.books.get("event", id))
			s.books.waiting["event"][id] = true
		}
	}
	return due
}

// send posts events, some at a time, until ctx or the sandbox ends, and calls taken for each that was taken. It
// returns how many it sent, and an error if one of them failed.
func (s *Sandbox) send(ctx context.Context, events []object, taken func(object)) (sent int, err error) {
	var group errgroup.Group
	group.SetLimit(senders)
	for _, e := range events {
		if ctx.Err() != nil || s.running.Err() != nil {
			break
		}
		sent++
		group.Go(func() error {
			err := s.post(ctx, e)
			if err == nil {
				taken(e)
			}
			return err
		})
	}
	return sent, group.Wait()
}

// post sends one event, signed with the time of this attempt. Only a 2xx takes it.
func (s *Sandbox) post(ctx context.Context, e object) error {
	body := render(e).body
	// New has read the address, so that there is no error.
	request, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.options.WebhookURL, strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	request.Header.Set("Stripe-Signature", signature(s.options.WebhookSecret.Reveal(), s.options.Now(), body))
	response, err := s.client.Do(request)
	if err != nil {
		return fmt.Errorf("send an event: %w", err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, bodyLimit)) // so that the connection is used again
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("an event is answered %s", response.Status)
	}
	return nil
}

// signature is Stripe's scheme v1: HMAC-SHA256 over "time.body".
func signature(secret string, at time.Time, body string) string {
	t := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(t + "." + body))
	return fmt.Sprintf("t=%s,v1=%s", t, hex.EncodeToString(mac.Sum(nil)))
}

const (
	timesMax       = 1000
	repeatDeadline = 20 * time.Second
)

// duplicateWebhooks is POST /duplicate-webhooks: it sends every event that was sent so far once more, so many
// times, until repeatDeadline, and answers with how many it sent and how many were taken. It does not hold
// the lock while it sends.
func (s *Sandbox) duplicateWebhooks(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Times int `json:"times"`
	}
	e := read(r).json(&body)
	if e == nil && (body.Times < 1 || body.Times > timesMax) {
		e = invalid("", "times", "times is %d: give a number from 1 to %d.", body.Times, timesMax)
	}
	if e != nil {
		reply(w, e)
		return
	}
	s.mu.Lock()
	var before []object
	for _, id := range s.books.ids["event"] {
		if sent, waits := s.books.waiting["event"][id]; sent || !waits {
			before = append(before, s.books.objects[id])
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), repeatDeadline)
	defer cancel()
	var delivered atomic.Int64
	sent, _ := s.send(ctx, slices.Repeat(before, body.Times), func(object) { delivered.Add(1) })
	reply(w, object{"events": len(before), "sent": sent, "delivered": delivered.Load()})
}

// notify receives a webhook as Standard Webhooks advises: verify, dedupe by webhook-id, take effect, answer.
func (s *Sandbox) notify(c *call) any {
	if c.fault.ShopDown {
		return refuse(http.StatusServiceUnavailable, "", "", "The shop is down (shop_down).")
	}
	if s.shop == nil {
		return refuse(http.StatusServiceUnavailable, "", "", "SHOP_WEBHOOK_SECRET is not set.")
	}
	if s.shop.Verify(c.body, c.Header) != nil {
		return refuse(http.StatusUnauthorized, "", "", "The signature does not verify.")
	}
	var body struct {
		Type string `json:"type"`
		Data struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(c.body, &body); err != nil || body.Type == "" || body.Data.ID == "" {
		return invalid("", "", "The body is no notification with a type and data.id.")
	}
	webhook := c.Header.Get(standardwebhooks.HeaderWebhookID)
	n := s.books.get("notification", "webhook "+webhook)
	if n == nil {
		n = s.newObject("notification", "", object{
			"id": "webhook " + webhook, "webhook_id": webhook, "reference": body.Data.ID, "type": body.Type, "effects": 1,
		})
	}
	n["deliveries"] = n.number("deliveries") + 1
	c.put(n)
	return struct{}{}
}
