package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

const (
	insertReservation = `
insert into reservations
       (charge_id, merchant_id, sku, quantity)
values ($1, $2, $3, $4)`

	takeStock = `
update stock
   set available = available - $3,
       reserved  = reserved + $3
 where merchant_id = $1
   and sku = $2`

	sellStock = `
update stock
   set reserved = reserved - $3,
       sold     = sold + $3
 where merchant_id = $1
   and sku = $2`

	endReservations = `
update reservations
   set status = 'sold'
 where charge_id = $1`
)

// carry walks a charge to its capture, as payonce does: the stream says what is
// done, each step is a transaction, and none is open during a call. What goes
// wrong is River's to retry.
func (s *riverShop) carry(ctx context.Context, id string) error {
	stream, err := ledger.Load(ctx, s.db, id)
	if err != nil {
		return err
	}
	if stream.Charge.Step(domain.Inventory) == domain.StepPending {
		b := &pgx.Batch{}
		if stream, err = s.decide(b, stream, domain.ReserveInventory{}); err != nil {
			return err
		}
		for _, item := range stream.Charge.Items {
			b.Queue(insertReservation, id, merchant, item.SKU, item.Quantity)
			b.Queue(takeStock, merchant, item.SKU, item.Quantity)
		}
		if err := s.db.Commit(ctx, b); err != nil {
			return err
		}
	}
	intent, stream, err := s.started(ctx, stream)
	if err != nil || stream.Charge.Terminal() {
		return err
	}
	if intent.Status == stripe.RequiresConfirmation {
		if intent, err = s.provider.ConfirmIntent(ctx, attemptKey(stream), intent.ID); err != nil {
			return err
		}
	}
	if intent.Status != stripe.Succeeded {
		return fmt.Errorf("intent %s is %s", intent.ID, intent.Status)
	}
	return s.capture(ctx, stream, intent)
}

func attemptKey(s ledger.Stream) string { return s.At(s.Charge.AttemptVersion).ID.String() }

// started makes the charge's payment intent, or retrieves the one that there is.
func (s *riverShop) started(ctx context.Context, stream ledger.Stream) (stripe.Intent, ledger.Stream, error) {
	c := stream.Charge
	if c.Started() {
		intent, err := s.provider.RetrieveIntent(ctx, c.PaymentIntent)
		return intent, stream, err
	}
	intent, err := s.provider.CreateIntent(ctx, attemptKey(stream), stripe.CreateParams{
		Reference: c.ID, Amount: c.Amount.Amount, Currency: string(c.Amount.Currency), PaymentMethod: c.PaymentMethod,
	})
	if err != nil {
		return intent, stream, err
	}
	b := &pgx.Batch{}
	stream, err = s.decide(b, stream, domain.StartPayment{Provider: domain.Provider, PaymentIntent: intent.ID})
	if err != nil {
		return intent, stream, err
	}
	return intent, stream, s.db.Commit(ctx, b)
}

// capture commits the outcome, and with it the job that tells the merchant.
func (s *riverShop) capture(ctx context.Context, stream ledger.Stream, intent stripe.Intent) error {
	b := &pgx.Batch{}
	stream, err := s.decide(b, stream, domain.CapturePayment{
		Provider: domain.Provider, PaymentIntent: intent.ID,
		Amount: domain.Money{Amount: intent.AmountReceived, Currency: domain.Currency(intent.Currency)},
	})
	if err != nil {
		return err
	}
	for _, item := range stream.Charge.Items {
		b.Queue(sellStock, merchant, item.SKU, item.Quantity)
	}
	b.Queue(endReservations, stream.ID)
	return withJob(ctx, s.pool, s.client, b, noticeJob{ID: stream.ID})
}

func (s *riverShop) decide(b *pgx.Batch, stream ledger.Stream, cmd domain.Command) (ledger.Stream, error) {
	events, err := domain.Decide(stream.Charge, cmd)
	if err != nil {
		return stream, err
	}
	return ledger.Append(b, stream, ledger.Cause{CorrelationID: stream.ID, CausationID: stream.ID, Actor: "worker"}, events...)
}

// notice is the webhook's body, of payonce's form.
type notice struct {
	ID        string      `json:"id"`
	Type      string      `json:"type"`
	CreatedAt time.Time   `json:"created_at"`
	Data      domain.View `json:"data"`
}

// tell sends the signed webhook and records it.
func (s *riverShop) tell(ctx context.Context, id string) error {
	stream, err := ledger.Load(ctx, s.db, id)
	if err != nil || len(stream.Charge.Unnotified) == 0 {
		return err
	}
	outcome := stream.At(stream.Charge.OutcomeVersion)
	endpoint, err := merchants.ReadWebhook(ctx, s.db, merchant)
	if err != nil {
		return err
	}
	const kind = "charge.succeeded"
	body, err := json.Marshal(notice{ID: outcome.ID.String(), Type: kind, CreatedAt: outcome.RecordedAt, Data: stream.View()})
	if err != nil {
		return fmt.Errorf("encode a webhook: %w", err)
	}
	if err := s.sender.Deliver(ctx, webhook.Message{
		URL: endpoint.URL, Secrets: endpoint.Secrets, ID: outcome.ID.String(), Body: body,
	}); err != nil {
		return err
	}
	b := &pgx.Batch{}
	if _, err := s.decide(b, stream, domain.NotifyMerchant{EventID: outcome.ID.String(), Type: kind, Version: outcome.Version}); err != nil {
		return err
	}
	return s.db.Commit(ctx, b)
}
