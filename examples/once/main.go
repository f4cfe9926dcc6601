// Command once makes a function take effect once: an order takes a lamp from stock and
// gets a number. A process is killed with an order half done. Then three processes work on
// all orders at the same time.
//
// It prints:
//
//	a process was killed while it worked on order 6: 5 orders
//	12 orders sent 4 times: 12 orders, 12 lamps taken from stock, the same number for each caller
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/payonce/payonce/idempotency"

	"github.com/payonce/payonce/examples/scaffold"
)

const (
	orders = 12
	tables = `
		create table stock (lamps integer not null);
		insert into stock values (100);
		create table orders (number bigint generated always as identity primary key, customer text not null);`
)

type receipt struct {
	Number int64 `json:"number"`
}

// order takes effect once for each customer, whatever the number of calls and callers. Every call
// returns the same receipt.
func order(ctx context.Context, pool *pgxpool.Pool, customer string, halfDone func()) (receipt, error) {
	key := idempotency.Key{Scope: customer, Operation: "order.v1", Value: "first-order"}
	r, _, err := idempotency.Once(ctx, pool, key, idempotency.Request{}, idempotency.Options{}, func(ctx context.Context, tx pgx.Tx) (r receipt, err error) {
		if _, err := tx.Exec(ctx, `update stock set lamps = lamps - 1`); err != nil {
			return r, err
		}
		halfDone()
		err = tx.QueryRow(ctx, `insert into orders (customer) values ($1) returning number`, customer).Scan(&r.Number)
		return r, err
	})
	return r, err
}

func main() { scaffold.Main("example_once", tables+idempotency.Schema(), check, work) }

// work orders for each customer and prints the receipts. The victim stops in the middle of
// its sixth order.
func work(ctx context.Context, pool *pgxpool.Pool) error {
	for n := 1; n <= orders; n++ {
		r, err := order(ctx, pool, fmt.Sprintf("customer-%d", n), func() {
			if n == 6 && scaffold.Role() == "victim" {
				fmt.Println("half done")
				<-ctx.Done()
			}
		})
		if err != nil {
			return err
		}
		fmt.Println(n, r.Number)
	}
	return nil
}

func check(ctx context.Context, pool *pgxpool.Pool) error {
	victim, err := scaffold.Start(ctx, "victim")
	if err != nil {
		return err
	}
	if err := victim.KillAfter(1, "half done"); err != nil {
		return err
	}
	made, _, err := count(ctx, pool)
	if err != nil {
		return err
	}
	fmt.Printf("a process was killed while it worked on order 6: %d orders\n", made)

	var rivals [3]*scaffold.Process
	for i := range rivals {
		if rivals[i], err = scaffold.Start(ctx, "rival"); err != nil {
			return err
		}
	}
	receipts := map[string]bool{}
	for _, rival := range rivals {
		out, ended := rival.Rest()
		err = errors.Join(err, ended)
		receipts[out] = true
	}
	if err != nil {
		return err
	}
	made, taken, err := count(ctx, pool)
	if err != nil {
		return err
	}
	if made != orders || taken != orders || len(receipts) != 1 {
		return fmt.Errorf("%d orders, %d lamps taken, receipts %v", made, taken, receipts)
	}
	fmt.Printf("%d orders sent 4 times: %d orders, %d lamps taken from stock, the same number for each caller\n", orders, made, taken)
	return nil
}

func count(ctx context.Context, pool *pgxpool.Pool) (made, taken int, err error) {
	err = pool.QueryRow(ctx, `select (select count(*) from orders), (select 100 - lamps from stock)`).Scan(&made, &taken)
	return made, taken, err
}
