package defects_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
)

// What the tests need to send requests to ours.

func acme() intake.Account { return intake.Account{MerchantID: "acme"} }

func intakeOf(db *postgres.DB) *intake.Intake {
	return &intake.Intake{DB: db, Keys: idempotency.Receiver{Retention: time.Hour}}
}

func mug() intake.Charge {
	return intake.Charge{OrderID: "order 1", Amount: 1000, Currency: "EUR", PaymentMethod: "pm_card_visa"}
}

// request is one for a mug under a key.
func request(key string) intake.Request {
	return intake.Request{
		Key:     idempotency.Key{Scope: "acme", Operation: "POST /v1/charges", Value: key},
		Request: idempotency.Request{Fingerprint: []byte("a mug")},
		ID:      "req_1",
	}
}

func accept(t *testing.T, db *postgres.DB, key string) idempotency.Outcome {
	t.Helper()
	accepted, err := intakeOf(db).AcceptCharge(t.Context(), acme(), request(key), mug())
	if err != nil {
		t.Fatal(err)
	}
	return accepted
}

// underWay claims a key in a transaction that stays open, as a rival's commit
// does for a moment.
func underWay(t *testing.T, db *postgres.DB, key string) pgx.Tx {
	t.Helper()
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	b := &pgx.Batch{}
	answer := idempotency.Answer{StatusCode: http.StatusAccepted, ContentType: "text/plain", Body: []byte("the rival's answer")}
	idempotency.Claim(b, request(key).Key, request(key).Request, answer, time.Now().Add(time.Hour))
	if err := tx.SendBatch(t.Context(), b).Close(); err != nil {
		t.Fatal(err)
	}
	return tx
}

// payUnder pays in the commit that claims the keys, all of them.
func payUnder(ctx context.Context, db *postgres.DB, keys ...string) error {
	b := &pgx.Batch{}
	for _, key := range keys {
		idempotency.Claim(b, idempotency.Key{Scope: "acme", Operation: "pay", Value: key},
			idempotency.Request{Fingerprint: []byte("pay")}, idempotency.Answer{StatusCode: http.StatusNoContent}, time.Now().Add(time.Hour))
	}
	b.Queue(pay, keys[0])
	return db.Commit(ctx, b)
}

// wantTaken checks whether a commit was refused because its key is taken.
func wantTaken(t *testing.T, err error, want bool) {
	t.Helper()
	if taken := idempotency.IsTaken(err); taken != want || (err != nil) != want {
		t.Errorf("taken %v, want %v: %v", taken, want, err)
	}
}

func wantCharges(t *testing.T, q postgres.Querier, want int) {
	t.Helper()
	wantCount(t, q, "charges", want, `select count(distinct stream_id) from ledger_events`)
}
