// Command http makes the POST of an order idempotent by its Idempotency-Key header, with
// net/http.
//
// It prints:
//
//	12 orders sent by 16 clients at once: 192 answers 201, 12 orders, 12 different answers
//	another order under a used key: 422, application/problem+json
//	an order without a key: 400, application/problem+json
//	an order of what is not sold: 404, and the same as a replay
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/payonce/payonce/idempotency"

	"github.com/payonce/payonce/examples/scaffold"
)

const tables = `
	create table items (sku text primary key);
	insert into items values ('lamp');
	create table orders (number bigint generated always as identity primary key, sku text not null references items);`

// postOrder writes in the transaction of the request's key. The middleware commits it with
// the response.
func postOrder(w http.ResponseWriter, r *http.Request) {
	var order struct {
		Number int64  `json:"number"`
		SKU    string `json:"sku"`
	}
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	const insert = `insert into orders (sku) select sku from items where sku = $1 returning number`
	err := idempotency.Tx(r.Context()).QueryRow(r.Context(), insert, order.SKU).Scan(&order.Number)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		http.Error(w, "not sold here", http.StatusNotFound) // stored, as it stays true for this request
		return
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored, the key stays free
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(order)
}

// tenant owns the keys of a request: two clients may choose the same key.
func tenant(r *http.Request) string {
	user, _, _ := r.BasicAuth() // verified by a middleware before this one
	return user
}

func handler(pool *pgxpool.Pool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", postOrder)
	return idempotency.Middleware(pool, idempotency.HTTPOptions{Scope: tenant})(mux)
}

func main() { scaffold.Main("example_http", tables+idempotency.Schema(), run) }

func run(ctx context.Context, pool *pgxpool.Pool) error {
	server := httptest.NewServer(handler(pool))
	defer server.Close()
	shop := strings.Replace(server.URL, "//", "//customer:secret@", 1)
	post := func(key, order string) scaffold.Answer {
		a, err := scaffold.Post(ctx, shop, key, order)
		if err != nil {
			a.Body = err.Error()
		}
		return a
	}

	const orders, clients = 12, 16
	created, bodies := 0, map[string]bool{}
	for n := range orders {
		var answers [clients]scaffold.Answer
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() { answers[i] = post(fmt.Sprintf(`"order-%d"`, n), `{"sku":"lamp"}`) })
		}
		all.Wait()
		for _, a := range answers {
			bodies[a.Body] = true
			if a.Status == http.StatusCreated {
				created++
			}
		}
	}
	var stored int
	if err := pool.QueryRow(ctx, `select count(*) from orders`).Scan(&stored); err != nil {
		return err
	}
	fmt.Printf("%d orders sent by %d clients at once: %d answers 201, %d orders, %d different answers\n", orders, clients, created, stored, len(bodies))
	other, none := post(`"order-0"`, `{"sku":"desk"}`), post("", `{"sku":"lamp"}`)
	fmt.Printf("another order under a used key: %d, %s\n", other.Status, other.ContentType)
	fmt.Printf("an order without a key: %d, %s\n", none.Status, none.ContentType)
	refused, replay := post(`"desk"`, `{"sku":"desk"}`), post(`"desk"`, `{"sku":"desk"}`)
	fmt.Printf("an order of what is not sold: %d, and the same as a replay\n", refused.Status)
	refused.Replayed = true
	if created != orders*clients || stored != orders || len(bodies) != orders || replay != refused {
		return fmt.Errorf("not what the clients wanted: %+v", replay)
	}
	return nil
}
