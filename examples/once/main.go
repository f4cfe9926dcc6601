// Command once makes a function take effect once: an order takes a lamp from stock and
// gets a number. A process is killed with an order half done. Then three callers send all
// orders at the same time.
//
// It prints:
//
//	a process was killed while it worked on order 6: 5 orders
//	12 orders sent 4 times: 12 orders, 12 lamps taken from stock, the same number for each caller
package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/payonce/payonce/idempotency"
	"golang.org/x/sync/errgroup"

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

func main() { scaffold.Main("example_once", tables+idempotency.Schema(), check, die) }

// all sends the orders of all customers, and returns their numbers.
func all(ctx context.Context, pool *pgxpool.Pool, halfDone func(n int)) (numbers [orders]int64, err error) {
	for n := range orders {
		r, err := order(ctx, pool, fmt.Sprintf("customer-%d", n+1), func() { halfDone(n + 1) })
		if err != nil {
			return numbers, err
		}
		numbers[n] = r.Number
	}
	return numbers, nil
}

// die is the process that is killed in the middle of its sixth order.
func die(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := all(ctx, pool, func(n int) {
		if n == 6 {
			fmt.Println("half done")
			<-ctx.Done()
		}
	})
	return err
}

func check(ctx context.Context, pool *pgxpool.Pool) error {
	if err := scaffold.KillAfter(ctx, "victim", 1, "half done"); err != nil {
		return err
	}
	made, _, err := count(ctx, pool)
	if err != nil {
		return err
	}
	fmt.Printf("a process was killed while it worked on order 6: %d orders\n", made)

	var callers errgroup.Group
	var first, second, third [orders]int64
	for _, numbers := range []*[orders]int64{&first, &second, &third} {
		callers.Go(func() (err error) {
			*numbers, err = all(ctx, pool, func(int) {})
			return err
		})
	}
	if err := callers.Wait(); err != nil {
		return err
	}
	made, taken, err := count(ctx, pool)
	if err != nil {
		return err
	}
	if made != orders || taken != orders || first != second || first != third {
		return fmt.Errorf("%d orders, %d lamps taken, numbers %v, %v, %v", made, taken, first, second, third)
	}
	fmt.Printf("%d orders sent 4 times: %d orders, %d lamps taken from stock, the same number for each caller\n", orders, made, taken)
	return nil
}

func count(ctx context.Context, pool *pgxpool.Pool) (made, taken int, err error) {
	err = pool.QueryRow(ctx, `select (select count(*) from orders), (select 100 - lamps from stock)`).Scan(&made, &taken)
	return made, taken, err
}
