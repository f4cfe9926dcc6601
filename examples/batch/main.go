// Command batch works through a list of payouts. A run that stops half-way is started again:
// it skips what is done. One payout that fails keeps no other from being paid.
//
// It prints:
//
//	run 1: 5 paid, 0 paid before, then stopped
//	run 2: 6 paid, 5 paid before, payout-8 failed: no account of this name
//	run 3: 0 paid, 11 paid before, payout-8 failed: no account of this name
//	run 4, with the account corrected: 1 paid, 11 paid before
//	12 payouts in 4 runs: 12 paid, 78 cents
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/payonce/payonce/idempotency"

	"github.com/payonce/payonce/examples/scaffold"
)

const tables = `
	create table accounts (name text primary key, cents bigint not null default 0);
	insert into accounts (name) values ('acme');`

type payout struct {
	ID      string
	Account string
	Cents   int64
}

var errNoAccount = errors.New("no account of this name")

// pay pays a payout once. After an error it has paid nothing, and the next run pays.
func pay(ctx context.Context, pool *pgxpool.Pool, p payout) (before bool, err error) {
	key := idempotency.Key{Scope: "payouts of 2026-11", Operation: "pay.v1", Value: p.ID}
	_, before, err = idempotency.Once(ctx, pool, key, idempotency.Request{}, idempotency.Options{}, func(ctx context.Context, tx pgx.Tx) (none struct{}, err error) {
		paid, err := tx.Exec(ctx, `update accounts set cents = cents + $2 where name = $1`, p.Account, p.Cents)
		if err == nil && paid.RowsAffected() == 0 {
			err = errNoAccount
		}
		return none, err
	})
	return before, err
}

type result struct {
	before bool
	err    error
}

// payAll pays all payouts, four at a time, and returns a result for each.
func payAll(ctx context.Context, pool *pgxpool.Pool, list []payout) []result {
	results, next := make([]result, len(list)), make(chan int)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for i := range next {
				results[i].before, results[i].err = pay(ctx, pool, list[i])
			}
		})
	}
	for i := range list {
		next <- i
	}
	close(next)
	workers.Wait()
	return results
}

func main() { scaffold.Main("example_batch", tables+idempotency.Schema(), run) }

func run(ctx context.Context, pool *pgxpool.Pool) error {
	list := make([]payout, 12)
	for i := range list {
		list[i] = payout{ID: fmt.Sprintf("payout-%d", i+1), Account: "acme", Cents: int64(i + 1)}
	}
	list[7].Account = "acmee"

	fmt.Println("run 1:", report(list, payAll(ctx, pool, list[:5]))+", then stopped")
	fmt.Println("run 2:", report(list, payAll(ctx, pool, list)))
	fmt.Println("run 3:", report(list, payAll(ctx, pool, list)))
	list[7].Account = "acme"
	fmt.Println("run 4, with the account corrected:", report(list, payAll(ctx, pool, list)))

	var cents int64
	if err := pool.QueryRow(ctx, `select cents from accounts`).Scan(&cents); err != nil {
		return err
	}
	if cents != 78 {
		return fmt.Errorf("%d cents were paid", cents)
	}
	fmt.Printf("%d payouts in 4 runs: %d paid, %d cents\n", len(list), len(list), cents)
	return nil
}

func report(list []payout, results []result) string {
	paid, before, failed := 0, 0, ""
	for i, r := range results {
		switch {
		case r.err != nil:
			failed += fmt.Sprintf(", %s failed: %v", list[i].ID, r.err)
		case r.before:
			before++
		default:
			paid++
		}
	}
	return fmt.Sprintf("%d paid, %d paid before%s", paid, before, failed)
}
