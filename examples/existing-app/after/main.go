// Command after is the shop of before, with each request and each message taken into effect
// once. README.md in the folder above tells the steps; the marks (1) to (5) are theirs.
//
// It prints:
//
//	12 orders sent 3 times: 12 orders, 12 lamps taken from stock, 12 shipments
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
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/outbox"

	"github.com/payonce/payonce/examples/existing-app/customers"
)

type shop struct {
	pool *pgxpool.Pool
	log  *slog.Logger
}

type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	SKU      string `json:"sku"`
}

func main() { customers.Main("shop_after", start) }

func start(ctx context.Context, pool *pgxpool.Pool, broker *customers.Broker) (http.Handler, error) {
	if err := addPackages(ctx, pool); err != nil {
		return nil, err
	}
	s := &shop{pool, slog.New(slog.NewTextHandler(os.Stderr, nil))}

	// (4) What is in the outbox goes to the broker, whenever that is there.
	go s.run("forward", func() error {
		return outbox.Forward(ctx, outbox.NewSubscriber(pool, outbox.Options{Log: s.log}), "order.placed", broker)
	})
	// (5) What comes from the broker goes into the inbox, and from there to the handler.
	warehouse, err := inbox.New(inbox.Options{DB: groupcommit.New(pool, groupcommit.Options{}), Receiver: "warehouse", Handle: s.ship, Log: s.log})
	if err != nil {
		return nil, err
	}
	go s.run("warehouse", func() error { return warehouse.Run(ctx) })
	go s.run("receive", func() error {
		return warehouse.Consume(ctx, broker, "order.placed", inCustomersOrder)
	})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.postOrder)
	// (2) Each request under an Idempotency-Key is one transaction, and has one response.
	return idempotency.Middleware(pool, idempotency.HTTPOptions{})(mux), nil
}

func (s *shop) run(what string, do func() error) {
	if err := do(); err != nil {
		s.log.Error("a part of the shop stopped", "part", what, "error", err)
		os.Exit(1)
	}
}

// (1) The tables of the packages are a migration like any other.
func addPackages(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, idempotency.Schema()+outbox.Schema()+inbox.Schema())
	return err
}

func (s *shop) postOrder(w http.ResponseWriter, r *http.Request) {
	o := order{ID: uuid.NewString()}
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := place(r.Context(), idempotency.Tx(r.Context()), o); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(o)
}

// (3) place announces an order in the transaction that stores it.
func place(ctx context.Context, tx pgx.Tx, o order) error {
	if _, err := tx.Exec(ctx, `update items set stock = stock - 1 where sku = $1`, o.SKU); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `insert into orders (id, customer, sku) values ($1, $2, $3)`, o.ID, o.Customer, o.SKU); err != nil {
		return err
	}
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return outbox.Send(ctx, tx, outbox.Message{Topic: "order.placed", ID: o.ID, OrderingKey: o.Customer, Payload: payload})
}

// inCustomersOrder keeps the messages of a customer in their order.
func inCustomersOrder(m *message.Message) (inbox.Message, error) {
	return inbox.Message{OrderingKey: m.Metadata.Get(outbox.MetadataOrderingKey)}, nil
}

// ship ships an order. Its effect and the end of the message are one transaction.
func (s *shop) ship(ctx context.Context, d *inbox.Delivery) error {
	var o order
	if err := json.Unmarshal(d.Payload, &o); err != nil {
		return &inbox.DeadLetterError{Err: err} // no retry will help
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into shipments (order_id) values ($1)`, o.ID); err != nil {
			return err
		}
		return d.Done(ctx, tx)
	})
}
