// Command echo makes the POST of an order idempotent by its Idempotency-Key header, with
// Echo. The server is killed with an order half done, and its clients go on at the next one.
//
// It prints:
//
//	the server was killed while it worked on order 6
//	12 orders sent 3 times to 2 servers: 12 orders, 24 replays
//	an order of what is not sold: 404, and 404 as a replay
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/payonce/payonce/idempotency"

	"github.com/payonce/payonce/examples/scaffold"
)

const tables = `create table orders (number bigint generated always as identity primary key, sku text not null);`

// postOrder writes in the transaction of the request's key. The middleware commits it with
// the response.
func postOrder(c echo.Context) error {
	var o struct {
		Number int64  `json:"number"`
		SKU    string `json:"sku"`
	}
	if err := c.Bind(&o); err != nil {
		return err
	}
	if o.SKU != "lamp" {
		return echo.NewHTTPError(http.StatusNotFound, "not sold here") // stored: it stays true for this request
	}
	ctx := c.Request().Context()
	err := idempotency.Tx(ctx).QueryRow(ctx, `insert into orders (sku) values ($1) returning number`, o.SKU).Scan(&o.Number)
	if err != nil {
		return err // 500, not stored: the key stays free
	}
	if o.Number == 6 && scaffold.Role() == "victim" {
		fmt.Println("half done")
		<-ctx.Done()
	}
	return c.JSON(http.StatusCreated, o)
}

// writeErrors writes what a handler returns as its response, inside of the transaction.
func writeErrors(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := next(c); err != nil {
			c.Error(err)
		}
		return nil
	}
}

// serve is a server in a process of its own. It prints its URL.
func serve(ctx context.Context, pool *pgxpool.Pool) error {
	e := echo.New()
	once := idempotency.Middleware(pool, idempotency.HTTPOptions{})
	e.POST("/orders", postOrder, echo.WrapMiddleware(once), writeErrors)
	server := httptest.NewServer(e)
	fmt.Println(server.URL)
	<-ctx.Done()
	return nil
}

func main() { scaffold.Main("example_echo", tables+idempotency.Schema(), run, serve) }

func run(ctx context.Context, pool *pgxpool.Pool) error {
	victim, url, err := startServer(ctx, "victim")
	if err != nil {
		return err
	}
	go func() {
		_, _ = victim.Line() // half done
		victim.Kill()
	}()
	counts := map[string]int{}
	for n := range 36 {
		key := fmt.Sprintf(`"order-%d"`, n%12)
		got, err := post(ctx, url, key, "lamp")
		if err != nil { // no answer: send the order again, under its key
			fmt.Printf("the server was killed while it worked on order %d\n", n+1)
			var successor *scaffold.Process
			if successor, url, err = startServer(ctx, "successor"); err != nil {
				return err
			}
			defer successor.Kill()
			if got, err = post(ctx, url, key, "lamp"); err != nil {
				return err
			}
		}
		counts[got]++
	}
	var stored int
	if err := pool.QueryRow(ctx, `select count(*) from orders`).Scan(&stored); err != nil {
		return err
	}
	fmt.Printf("12 orders sent 3 times to 2 servers: %d orders, %d replays\n", stored, counts["201 as a replay"])
	refused, err := post(ctx, url, `"desk"`, "desk")
	replay, again := post(ctx, url, `"desk"`, "desk")
	fmt.Printf("an order of what is not sold: %s, and %s\n", refused, replay)
	if stored != 12 || counts["201"] != 12 || counts["201 as a replay"] != 24 || replay != "404 as a replay" {
		err = fmt.Errorf("not what the clients wanted: %v", counts)
	}
	return errors.Join(err, again)
}

func startServer(ctx context.Context, role string) (server *scaffold.Process, url string, err error) {
	if server, err = scaffold.Start(ctx, role); err == nil {
		url, err = server.Line()
	}
	return server, url, err
}

// post returns the status, and whether it is a replay.
func post(ctx context.Context, url, key, sku string) (string, error) {
	a, err := scaffold.Post(ctx, url, key, fmt.Sprintf(`{"sku":%q}`, sku))
	status := strconv.Itoa(a.Status)
	if a.Replayed {
		status += " as a replay"
	}
	return status, err
}
