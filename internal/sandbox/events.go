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

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/loop"
)

// apiVersion is the version of Stripe's API that has these shapes.
const apiVersion = "2026-03-25.dahlia"

const insertEvent = `
insert into events (id, type, body)
values ($1, $2, $3)`

const insertDelivery = `
insert into event_deliveries (event_id)
values ($1)`

// emit queues an event about subject with the change that caused it, in one commit.
// A nil call means that no request caused it. Without a receiver the event is kept
// and not sent.
func (s *Sandbox) emit(b *pgx.Batch, c *call, kind string, subject any) {
	id, request := newID("evt_"), map[string]any{"id": nil, "idempotency_key": nil}
	if c != nil {
		request["id"] = c.id
		if c.key != "" {
			request["idempotency_key"] = c.key
		}
	}
	event := map[string]any{ // as Stripe's
		"id": id, "object": "event", "api_version": apiVersion, "created": s.options.Now().Unix(), "livemode": false,
		"pending_webhooks": 1, "type": kind, "data": map[string]any{"object": subject}, "request": request,
	}
	b.Queue(insertEvent, id, kind, string(object(http.StatusOK, event).body))
	if s.options.WebhookURL != "" {
		b.Queue(insertDelivery, id)
	}
}

// sendDeadline bounds one delivery.
const sendDeadline = 5 * time.Second

// post sends one event, signed with the time of this attempt, and returns its
// outcome. Only a 2xx delivers.
func (s *Sandbox) post(ctx context.Context, body string) (outcome string, delivered bool) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.options.WebhookURL, bytes.NewBufferString(body))
	if err != nil {
		return err.Error(), false
	}
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	request.Header.Set("Stripe-Signature", signature(s.options.WebhookSecret, s.options.Now(), body))
	response, err := s.client.Do(request)
	if err != nil {
		return err.Error(), false
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // so that the connection is used again
	return response.Status, response.StatusCode/100 == 2
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
	claimSize = 64 // deliveries that are read at once
	// Failed deliveries are sent again after retryBase, doubling up to retryCap,
	// attemptsMax times in all.
	retryBase   = 200 * time.Millisecond
	retryCap    = time.Minute
	attemptsMax = 100
	// pollEvery bounds how late a retry or a settlement is.
	pollEvery = 250 * time.Millisecond
)

// Deliver sends events that are due and settles intents that are processing, until
// ctx ends. Like Stripe's, events have no order and may arrive twice. It logs a failure
// and retries.
func (s *Sandbox) Deliver(ctx context.Context) {
	loop.Run(ctx, s.options.Logger, "events not delivered", func(ctx context.Context) (time.Duration, error) {
		sent, err := s.deliverOnce(ctx)
		if sent == 0 && err == nil {
			loop.Pause(ctx, pollEvery, s.wake)
		}
		return 0, err
	})
}

// deliverOnce settles what is due and sends some of the events that are due; it returns
// how many it tried to send. Their outcomes are stored also after ctx ended; if that
// fails, they are sent again.
func (s *Sandbox) deliverOnce(ctx context.Context) (int, error) {
	if err := s.settle(ctx); err != nil || s.options.WebhookURL == "" {
		return 0, err
	}
	due, err := collect[delivery](ctx, s.pool, attemptDue, claimSize)
	if err != nil || len(due) == 0 {
		return 0, err
	}
	s.send(ctx, due)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendDeadline)
	defer cancel()
	b := &pgx.Batch{}
	for _, d := range due {
		b.Queue(updateSent, d.Position, d.Outcome, d.Delivered, attemptsMax, min(retryCap, retryBase<<min(d.Attempts-1, 20)))
	}
	return len(due), s.pool.SendBatch(ctx, b).Close()
}

// delivery is a row of event_deliveries with the event's body, and its outcome.
type delivery struct {
	Position  int64
	Attempts  int
	Body      string
	Outcome   string `db:"-"`
	Delivered bool   `db:"-"`
}

// send posts events, some at a time. Those that were not sent when ctx ended, or the
// sandbox drains, have no outcome.
func (s *Sandbox) send(ctx context.Context, all []*delivery) {
	var sending errgroup.Group
	sending.SetLimit(senders)
	for _, d := range all {
		if errors.Join(ctx.Err(), s.draining.Err()) != nil {
			break
		}
		sending.Go(func() error {
			d.Outcome, d.Delivered = s.post(ctx, d.Body)
			return nil
		})
	}
	_ = sending.Wait() // the outcomes say what failed
}

// attemptDue counts the attempts before they are made: no transaction is open while
// events are sent. Those of a process that dies meanwhile stay due.
const attemptDue = `
update event_deliveries d
set attempts = d.attempts + 1
from events e
where e.id = d.event_id
  and d.position in (
    select position
    from event_deliveries
    where due_at <= clock_timestamp()
    order by due_at, position
    limit $1)
returning d.position, d.attempts, e.body`

const updateSent = `
update event_deliveries
set due_at = case when not $3 and attempts < $4 then clock_timestamp() + $5::interval end,
    delivered_at = case when $3 then clock_timestamp() end,
    outcome = $2
where position = $1`

const (
	timesMax       = 1000
	repeatDeadline = 20 * time.Second
)

const selectSent = `
select position, 0 as attempts, body
from events
where id in (select event_id from event_deliveries where attempts > 0)
order by position`

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
	events, err := collect[delivery](ctx, s.pool, selectSent)
	if err != nil {
		return answer{}, err
	}
	var repeats []*delivery
	for range body.Times {
		for _, e := range events {
			repeats = append(repeats, &delivery{Body: e.Body})
		}
	}
	s.send(ctx, repeats)
	counts := map[string]int{"events": len(events), "deliveries": len(repeats), "sent": 0, "delivered": 0}
	for _, d := range repeats {
		if d.Outcome != "" {
			counts["sent"]++
		}
		if d.Delivered {
			counts["delivered"]++
		}
	}
	return object(http.StatusOK, counts), nil
}
