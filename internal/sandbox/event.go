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
)

// apiVersion is the version of Stripe's API whose shapes these are.
const apiVersion = "2026-03-25.dahlia"

// eventObject is Stripe's event.
type eventObject struct {
	ID              string       `json:"id"`
	Object          string       `json:"object"`
	APIVersion      string       `json:"api_version"`
	Created         int64        `json:"created"`
	Data            eventData    `json:"data"`
	Livemode        bool         `json:"livemode"`
	PendingWebhooks int          `json:"pending_webhooks"`
	Request         eventRequest `json:"request"`
	Type            string       `json:"type"`
}

type eventData struct {
	Object any `json:"object"`
}

type eventRequest struct {
	ID             *string `json:"id"`
	IdempotencyKey *string `json:"idempotency_key"`
}

const insertEvent = `
insert into events (id, type, body)
values ($1, $2, $3)`

const insertDelivery = `
insert into event_deliveries (event_id)
values ($1)`

// emit queues an event about subject with the change that caused it: an event
// exists if and only if its change does. A call of nil is the provider's own
// doing. Where no receiver is set the event is kept and not sent.
func (s *Sandbox) emit(b *pgx.Batch, c *call, kind string, subject any) {
	e := eventObject{
		ID: newID("evt_"), Object: "event", APIVersion: apiVersion, Created: s.options.Now().Unix(),
		Data: eventData{Object: subject}, PendingWebhooks: 1, Type: kind,
	}
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

// eventClient follows no redirect: the receiver is the one that was named.
func eventClient() *http.Client {
	return &http.Client{
		Timeout:       sendDeadline,
		Transport:     &http.Transport{MaxIdleConnsPerHost: senders, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// post sends one event, signed anew with the time of this attempt, and returns
// what came of it. Only a 2xx delivers.
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
	defer response.Body.Close()                                      // read to its end or abandoned
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
