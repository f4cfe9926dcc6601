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
