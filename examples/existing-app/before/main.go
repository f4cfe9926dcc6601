// Command before is a small shop. An order takes a lamp from stock, is stored, and is
// announced to the warehouse, which ships it.
//
// Its customers repeat requests, and its broker repeats messages. So it sells, announces
// and ships too much; and it forgets to announce what the broker refused.
//
// It fails after it prints:
//
//	12 orders sent 3 times: 47 orders, 47 lamps taken from stock, 72 shipments
package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/examples/existing-app/customers"
)

type shop struct {
	pool   *pgxpool.Pool
	broker message.Publisher
	log    *slog.Logger
}

type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	SKU      string `json:"sku"`
}

func main() { customers.Main("shop_before", start) }

func start(ctx context.Context, pool *pgxpool.Pool, broker *customers.Broker) (http.Handler, error) {
	s := &shop{pool, broker, slog.New(slog.NewTextHandler(os.Stderr, nil))}
	placed, err := broker.Subscribe(ctx, "order.placed")
	if err != nil {
		return nil, err
	}
	go s.warehouse(ctx, placed)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.postOrder)
	return mux, nil
}

func (s *shop) postOrder(w http.ResponseWriter, r *http.Request) {
	o := order{ID: uuid.NewString()}
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := s.place(r.Context(), o); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(o)
}

func (s *shop) place(ctx context.Context, o order) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update items set stock = stock - 1 where sku = $1`, o.SKU); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into orders (id, customer, sku) values ($1, $2, $3)`, o.ID, o.Customer, o.SKU)
		return err
	})
	if err != nil {
		return err
	}
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return s.broker.Publish("order.placed", message.NewMessage(o.ID, payload))
}

// warehouse ships what was placed.
func (s *shop) warehouse(ctx context.Context, placed <-chan *message.Message) {
	for m := range placed {
		if err := s.ship(ctx, m.Payload); err != nil {
			s.log.ErrorContext(ctx, "the warehouse failed", "error", err)
			m.Nack()
			continue
		}
		m.Ack()
	}
}

func (s *shop) ship(ctx context.Context, payload []byte) error {
	var o order
	if err := json.Unmarshal(payload, &o); err != nil {
		return err
	}
	_, err := s.pool.Exec(ctx, `insert into shipments (order_id) values ($1)`, o.ID)
	return err
}
