// Command webhook receives the webhooks of payonce as a merchant does: it verifies the
// signature, which is that of Standard Webhooks, and books each event once.
//
// It prints:
//
//	12 events sent 3 times: 36 answers 204, 12 bookings
//	a forged and an old delivery: 2 answers 401
//	another event under a known id: 1 answer 422
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/payonce/payonce/idempotency"
	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/payonce/payonce/examples/scaffold"
)

const (
	tables = `create table bookings (charge text not null, type text not null);`

	secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u" // printed by "payonce webhooks rotate"
)

type event struct {
	Type string `json:"type"`
	Data struct {
		ID string `json:"id"`
	} `json:"data"`
}

type receiver struct {
	pool   *pgxpool.Pool
	verify *webhooks.Webhook
}

// ServeHTTP answers with 2xx only for what is committed. After any other answer, and after
// none, payonce sends the event again under the same id.
func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	if rc.verify.Verify(body, r.Header) != nil { // the signature covers id, time and body
		http.Error(w, "not signed", http.StatusUnauthorized)
		return
	}
	// Each delivery has its own time and signature. What repeats are the id and the body.
	key := idempotency.Key{Scope: "payonce", Operation: "book.v1", Value: r.Header.Get(webhooks.HeaderWebhookID)}
	request := idempotency.Request{Fingerprint: idempotency.Fingerprint(body)}
	_, _, err = idempotency.Once(r.Context(), rc.pool, key, request, idempotency.Options{}, func(ctx context.Context, tx pgx.Tx) (none struct{}, err error) {
		var e event
		if err := json.Unmarshal(body, &e); err != nil {
			return none, err
		}
		_, err = tx.Exec(ctx, `insert into bookings (charge, type) values ($1, $2)`, e.Data.ID, e.Type)
		return none, err
	})
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, idempotency.ErrReused):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	default:
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}

func main() { scaffold.Main("example_webhook", tables+idempotency.Schema(), run) }

func run(ctx context.Context, pool *pgxpool.Pool) error {
	payonce, err := webhooks.NewWebhook(secret)
	if err != nil {
		return err
	}
	forger, err := webhooks.NewWebhook("whsec_" + strings.Repeat("A", 32))
	if err != nil {
		return err
	}
	server := httptest.NewServer(&receiver{pool, payonce})
	defer server.Close()
	answers := map[int]int{}
	send := func(by *webhooks.Webhook, event int, charge string, age time.Duration) error {
		id, body := fmt.Sprintf("event-%d", event), fmt.Sprintf(`{"type":"charge.succeeded","data":{"id":%q}}`, charge)
		sent := time.Now().Add(-age)
		signature, err := by.Sign(id, sent, []byte(body))
		if err != nil {
			return err
		}
		a := scaffold.Post(ctx, server.URL, body, map[string]string{
			webhooks.HeaderWebhookID: id, webhooks.HeaderWebhookSignature: signature,
			webhooks.HeaderWebhookTimestamp: strconv.FormatInt(sent.Unix(), 10),
		})
		answers[a.Status]++
		return a.Err
	}
	for n := range 36 { // each event three times, and its delivery has another time each time
		err = errors.Join(err, send(payonce, n%12, fmt.Sprintf("charge-%d", n%12), time.Duration(n)*time.Second))
	}
	err = errors.Join(err, send(forger, 13, "charge-13", 0), send(payonce, 14, "charge-14", time.Hour), send(payonce, 1, "charge-15", 0))
	var booked int
	if err = errors.Join(err, pool.QueryRow(ctx, `select count(*) from bookings`).Scan(&booked)); err != nil {
		return err
	}
	fmt.Printf("12 events sent 3 times: %d answers 204, %d bookings\n", answers[204], booked)
	fmt.Printf("a forged and an old delivery: %d answers 401\n", answers[401])
	fmt.Printf("another event under a known id: %d answer 422\n", answers[422])
	if booked != 12 || answers[204] != 36 || answers[401] != 2 || answers[422] != 1 {
		return errors.New("not every event was booked once")
	}
	return nil
}
