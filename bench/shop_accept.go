package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/ledger"
)

// accept is POST /v1/charges: key, event, postings and job in one transaction. A
// key that is taken is answered from its row.
func (s *riverShop) accept(w http.ResponseWriter, r *http.Request) {
	var c intake.Charge
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := s.once(r, c)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", answer.ContentType)
	w.Header().Set("Location", answer.Location)
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(answer.Body) // a client that is gone cannot be told
}

func (s *riverShop) once(r *http.Request, c intake.Charge) (idempotency.Answer, error) {
	canonical, err := json.Marshal(c)
	if err != nil {
		return idempotency.Answer{}, fmt.Errorf("encode a request: %w", err)
	}
	key := idempotency.Key{Scope: merchant, Operation: "POST /v1/charges", Value: r.Header.Get("Idempotency-Key")}
	request := idempotency.Request{Fingerprint: idempotency.Fingerprint([]byte(merchant), canonical), Canonical: canonical}
	id := newChargeID()
	b := &pgx.Batch{}
	answer, err := opening(b, id, key, request, c)
	if err != nil {
		return answer, err
	}
	err = withJob(r.Context(), s.pool, s.client, b, chargeJob{ID: id})
	if !idempotency.IsTaken(err) {
		return answer, err
	}
	state, err := idempotency.ReadKey(r.Context(), s.db, key)
	if err != nil {
		return answer, err
	}
	return state.Record.Replay(request)
}

func newChargeID() string {
	id := uuid.Must(uuid.NewV7())
	return "ch_" + hex.EncodeToString(id[:])
}

// opening queues the key, the first event of the charge and its postings.
func opening(b *pgx.Batch, id string, key idempotency.Key, request idempotency.Request, c intake.Charge) (idempotency.Answer, error) {
	now := time.Now()
	stream := ledger.New(id)
	events, err := domain.Decide(stream.Charge, domain.RequestCharge{
		MerchantID: merchant, OrderID: c.OrderID, Amount: domain.Money{Amount: c.Amount, Currency: domain.Currency(c.Currency)},
		Fees: domain.FeeSchedule{BasisPoints: feePoints}, PaymentMethod: c.PaymentMethod, Items: c.Items,
		Description: c.Description, Metadata: c.Metadata, Notify: true,
	})
	if err != nil {
		return idempotency.Answer{}, err
	}
	body, err := json.Marshal(domain.Fold(stream.Charge, events...).View(now))
	if err != nil {
		return idempotency.Answer{}, fmt.Errorf("encode an answer: %w", err)
	}
	answer := idempotency.Answer{
		StatusCode: http.StatusAccepted, ContentType: "application/json", Location: "/v1/charges/" + id, Body: body,
	}
	idempotency.Claim(b, key, request, answer, now.Add(idempotency.DefaultRetention))
	_, err = ledger.Append(b, stream, ledger.Cause{CorrelationID: id, CausationID: id, Actor: "api", At: now}, events...)
	return answer, err
}
