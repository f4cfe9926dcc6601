// Command http makes the POST of an order idempotent by its Idempotency-Key header, in a server of
// net/http and in one of Echo, which share the keys.
//
// It prints:
//
//	12 orders sent by 8 clients to 2 servers at once: 192 answers 201, 12 orders, 12 different answers
//	another order under a used key: 422, application/problem+json
//	an order without a key: 400, application/problem+json
//	an order of what is not sold: 404 by net/http, and the same as a replay by Echo
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
	"github.com/labstack/echo/v4"
	"github.com/payonce/payonce/idempotency"

	"github.com/payonce/payonce/examples/scaffold"
)

const tables = `
	create table items (sku text primary key);
	insert into items values ('lamp');
	create table orders (number bigint generated always as identity primary key, sku text not null references items);`

type order struct {
	Number int64  `json:"number"`
	SKU    string `json:"sku"`
}

// place writes in the transaction of the request's key, which the middleware commits with the
// response. It returns the status of the response.
func place(ctx context.Context, o *order) (int, error) {
	const insert = `insert into orders (sku) select sku from items where sku = $1 returning number`
	err := idempotency.Tx(ctx).QueryRow(ctx, insert, o.SKU).Scan(&o.Number)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return http.StatusNotFound, errors.New("not sold here") // stored, as it stays true for this request
	case err != nil:
		return http.StatusServiceUnavailable, errors.New("try again") // not stored, the key stays free
	}
	return http.StatusCreated, nil
}

func options() idempotency.HTTPOptions {
	// A tenant owns the keys of its requests: two clients may choose the same key.
	return idempotency.HTTPOptions{Scope: func(r *http.Request) string {
		user, _, _ := r.BasicAuth() // verified by a middleware before this one
		return user
	}}
}

func withNetHTTP(pool *pgxpool.Pool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		var o order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		status, err := place(r.Context(), &o)
		if err != nil {
			http.Error(w, err.Error(), status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(o)
	})
	return idempotency.Middleware(pool, options())(mux)
}

func withEcho(pool *pgxpool.Pool) http.Handler {
	e := echo.New()
	e.Use(echo.WrapMiddleware(idempotency.Middleware(pool, options())))
	e.POST("/orders", func(c echo.Context) error {
		var o order
		if err := c.Bind(&o); err != nil {
			return err
		}
		status, err := place(c.Request().Context(), &o)
		if err != nil {
			return c.String(status, err.Error()+"\n")
		}
		return c.JSON(status, o)
	})
	return e
}

func main() { scaffold.Main("example_http", tables+idempotency.Schema(), run) }

func run(ctx context.Context, pool *pgxpool.Pool) error {
	netHTTP, onEcho := httptest.NewServer(withNetHTTP(pool)), httptest.NewServer(withEcho(pool))
	defer netHTTP.Close()
	defer onEcho.Close()
	servers := []*httptest.Server{netHTTP, onEcho}
	send := func(server int, key, order string) scaffold.Answer {
		return scaffold.PostOrder(ctx, strings.Replace(servers[server].URL, "//", "//customer:secret@", 1), key, order)
	}
	const orders, clients = 12, 8
	created, bodies := 0, map[string]bool{}
	for n := range orders {
		answers := make([]scaffold.Answer, clients*len(servers))
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() { answers[i] = send(i%2, fmt.Sprintf(`"order-%d"`, n), `{"sku":"lamp"}`) })
		}
		all.Wait()
		for _, a := range answers {
			if a.Err != nil {
				return a.Err
			}
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
	fmt.Printf("%d orders sent by %d clients to 2 servers at once: %d answers 201, %d orders, %d different answers\n", orders, clients, created, stored, len(bodies))
	other, none := send(1, `"order-0"`, `{"sku":"desk"}`), send(1, "", `{"sku":"lamp"}`)
	fmt.Printf("another order under a used key: %d, %s\n", other.Status, other.ContentType)
	fmt.Printf("an order without a key: %d, %s\n", none.Status, none.ContentType)
	refused, replay := send(0, `"desk"`, `{"sku":"desk"}`), send(1, `"desk"`, `{"sku":"desk"}`)
	fmt.Printf("an order of what is not sold: %d by net/http, and the same as a replay by Echo\n", refused.Status)
	refused.Replayed = true
	if created != orders*clients*len(servers) || stored != orders || len(bodies) != orders || replay != refused {
		return fmt.Errorf("not what the clients wanted: %+v", replay)
	}
	return nil
}
