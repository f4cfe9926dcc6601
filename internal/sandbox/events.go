package sandbox

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// apiVersion is the version of Stripe's API that has these shapes.
const apiVersion = "2026-03-25.dahlia"

// eventObject is Stripe's event.
type eventObject struct {
	ID         string `json:"id"`
	Object     string `json:"object"`
	APIVersion string `json:"api_version"`
	Created    int64  `json:"created"`
	Data       struct {
		Object any `json:"object"`
	} `json:"data"`
	Livemode        bool `json:"livemode"`
	PendingWebhooks int  `json:"pending_webhooks"`
	Request         struct {
		ID             *string `json:"id"`
		IdempotencyKey *string `json:"idempotency_key"`
	} `json:"request"`
	Type string `json:"type"`
}

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
	e := eventObject{
		ID: newID("evt_"), Object: "event", APIVersion: apiVersion, Created: s.options.Now().Unix(),
		PendingWebhooks: 1, Type: kind,
	}
	e.Data.Object = subject
	if c != nil {
		e.Request.ID = &c.id
		if c.key != "" {
			e.Request.IdempotencyKey = &c.key
		}
	}
	b.Queue(insertEvent, e.ID, e.Type, string(object(http.StatusOK, e).body))
	if s.options.WebhookURL != "" {
		b.Queue(insertDelivery, e.ID)
	}
}

// sendDeadline bounds one delivery.
const sendDeadline = 5 * time.Second

// eventClient follows no redirect.
func eventClient() *http.Client {
	return &http.Client{
		Timeout:       sendDeadline,
		Transport:     &http.Transport{MaxIdleConnsPerHost: senders, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

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
	// senders is how many events are sent at the same time.
	senders = 8
	// claimSize bounds the deliveries claimed at once, so that a claim's lease
	// outlasts all of its sends: claimSize / senders * sendDeadline < lease.
	claimSize = 64
	lease     = time.Minute
	// Failed deliveries are sent again after retryBase, doubling up to retryCap,
	// attemptsMax times in all.
	retryBase   = 200 * time.Millisecond
	retryCap    = time.Minute
	attemptsMax = 100
	// pollEvery bounds how late a retry or a settlement is.
	pollEvery = 250 * time.Millisecond
	// pauseAfterError spares a database that cannot be used.
	pauseAfterError = time.Second
)

// Deliver sends events that are due and settles intents that are processing, until
// ctx ends; then it returns nil. Like Stripe's, events have no order and may arrive
// twice. It logs a failure and retries.
func (s *Sandbox) Deliver(ctx context.Context) error {
	for ctx.Err() == nil {
		sent, err := s.deliverOnce(ctx)
		pause := pollEvery
		switch {
		case err != nil && ctx.Err() == nil:
			s.options.Logger.Warn("events not delivered", "error", err)
			pause = pauseAfterError
		case sent > 0:
			continue
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-time.After(pause):
		}
	}
	return nil
}

// deliverOnce settles what is due and sends one claim of events; it returns how
// many it tried to send.
func (s *Sandbox) deliverOnce(ctx context.Context) (int, error) {
	if err := s.settle(ctx); err != nil {
		return 0, err
	}
	if s.options.WebhookURL == "" {
		return 0, nil
	}
	claimed, err := collect[delivery](ctx, s.pool, claimDue, claimSize, lease)
	if err != nil || len(claimed) == 0 {
		return 0, err
	}
	var sending errgroup.Group
	sending.SetLimit(senders)
	for _, d := range claimed {
		sending.Go(func() error {
			d.Outcome, d.Delivered = s.post(ctx, d.Body)
			return nil
		})
	}
	_ = sending.Wait() // the outcomes say what failed
	return len(claimed), s.record(ctx, claimed)
}

// delivery is a claimed row of event_deliveries with the event's body, and its
// outcome.
type delivery struct {
	Position  int64
	Attempts  int
	Body      string
	Outcome   string `db:"-"`
	Delivered bool   `db:"-"`
}

// claimDue leases deliveries: no transaction is open while they are sent, and those
// of a process that dies while sending are due again when the lease ends.
const claimDue = `
update event_deliveries d
set attempts = d.attempts + 1,
    due_at = clock_timestamp() + $2::interval
from (
  select position
  from event_deliveries
  where due_at <= clock_timestamp()
  order by due_at, position
  limit $1
  for update skip locked) due, events e
where d.position = due.position
  and e.id = d.event_id
returning d.position, d.attempts, e.body`

const updateSent = `
update event_deliveries
set due_at = case when not $3 and attempts < $4 then clock_timestamp() + $5::interval end,
    delivered_at = case when $3 then clock_timestamp() end,
    outcome = $2
where position = $1`

// record stores the outcomes of a claim, also after ctx ended. If that fails, the
// events are sent again when their lease ends.
func (s *Sandbox) record(ctx context.Context, sent []*delivery) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendDeadline)
	defer cancel()
	err := s.sendRelaxed(ctx, func(b *pgx.Batch) {
		for _, d := range sent {
			b.Queue(updateSent, d.Position, d.Outcome, d.Delivered, attemptsMax, backoff(d.Attempts))
		}
	})
	if err != nil {
		return fmt.Errorf("record deliveries: %w", err)
	}
	return nil
}

// backoff is the pause after the n-th failed attempt.
func backoff(n int) time.Duration {
	return min(retryCap, retryBase<<min(n-1, 20))
}

const (
	timesMax = 1000
	// repeatDeadline bounds how long the call waits for the repetitions.
	repeatDeadline = 20 * time.Second
	repeatPoll     = 20 * time.Millisecond
)

// repeatEvents queues n deliveries of each event that was ever sent.
const repeatEvents = `
insert into event_deliveries (event_id, repeat_id)
select sent.event_id, $1
from (
  select event_id, min(position) as position
  from event_deliveries
  where attempts > 0
  group by event_id) sent,
  generate_series(1, $2::int) as time
order by time, sent.position`

// repeated is the answer of POST /duplicate-webhooks.
type repeated struct {
	Events     int64 `json:"events"`
	Deliveries int64 `json:"deliveries"`
	Sent       int64 `json:"sent"`
	Delivered  int64 `json:"delivered"`
}

const countRepeated = `
select count(distinct event_id) as events,
       count(*) as deliveries,
       count(outcome) as sent,
       count(delivered_at) as delivered
from event_deliveries
where repeat_id = $1`

// duplicateWebhooks repeats every event sent so far. It answers when each repetition
// was tried once, or after repeatDeadline with the numbers by then; the rest is sent
// later.
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
	id := newID("repeat_")
	if _, err := s.pool.Exec(r.Context(), repeatEvents, id, body.Times); err != nil {
		return answer{}, fmt.Errorf("repeat events: %w", err)
	}
	s.nudge()
	return s.awaitRepeated(r.Context(), id)
}

func (s *Sandbox) awaitRepeated(ctx context.Context, id string) (answer, error) {
	deadline := time.After(repeatDeadline)
	for last := false; ; {
		all, err := collect[repeated](ctx, s.pool, countRepeated, id)
		if err != nil {
			return answer{}, err
		}
		if done := all[0]; last || done.Sent == done.Deliveries {
			return object(http.StatusOK, done), nil
		}
		select {
		case <-ctx.Done():
			return answer{}, fmt.Errorf("wait for repeated events: %w", ctx.Err())
		case <-deadline:
			last = true
		case <-s.draining:
			last = true
		case <-time.After(repeatPoll):
		}
	}
}
