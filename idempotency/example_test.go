package idempotency_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
)

type purchase struct {
	OrderID string `json:"order_id"`
	Item    string `json:"item"`
}

type sold struct {
	Number int64 `json:"number"` // that the database makes
}

const createSales = `create table sales (number bigint generated always as identity, item text not null)`

// A function takes effect once per key: its writes, its result and the key are one
// transaction. A FinalError is a result too.
func Example() {
	ctx := context.Background()
	pool, end := openPool() // a *pgxpool.Pool
	defer end()

	sell := func(p purchase) {
		text, _ := json.Marshal(p)
		_, request, err := idempotency.Content("sell.v1", text)
		if err != nil {
			fmt.Println(err)
			return
		}
		key := idempotency.Key{Scope: "shop", Operation: "sell.v1", Value: p.OrderID}
		result, replayed, err := idempotency.Once(ctx, pool, key, request, idempotency.Options{},
			func(ctx context.Context, tx pgx.Tx) (s sold, err error) {
				if p.Item == "lamp" {
					return s, &idempotency.FinalError{Code: "sold_out", Message: "no lamps are left"}
				}
				err = tx.QueryRow(ctx, `insert into sales (item) values ($1) returning number`, p.Item).Scan(&s.Number)
				return s, err
			})
		fmt.Println(result.Number, replayed, err)
	}
	sell(purchase{OrderID: "order-17", Item: "mug"})
	sell(purchase{OrderID: "order-17", Item: "mug"})
	sell(purchase{OrderID: "order-17", Item: "teapot"})
	sell(purchase{OrderID: "order-18", Item: "lamp"})
	sell(purchase{OrderID: "order-18", Item: "lamp"})
	// Output:
	// 1 false <nil>
	// 1 true <nil>
	// 0 false the key was used for another request
	// 0 false no lamps are left
	// 0 true no lamps are left
}

// The batch form: key, writes and answer reach the database in one round trip.
func ExampleReceive() {
	ctx := context.Background()
	pool, end := openPool()
	defer end()
	db := groupcommit.New(pool, groupcommit.Options{Writes: groupcommit.NewStatements(idempotency.Writes()...)})

	sell := func(key, item string) {
		text, _ := json.Marshal(map[string]string{"item": item})
		_, request, err := idempotency.Content("POST /sales", text)
		if err != nil {
			fmt.Println(err)
			return
		}
		sale := idempotency.Key{Scope: "acme", Operation: "POST /sales", Value: key}
		outcome, err := idempotency.Receive(ctx, db, sale, request, idempotency.Options{},
			func(_ context.Context, b *pgx.Batch, _ time.Time) (idempotency.Answer, error) {
				b.Queue(`insert into sales (item) values ($1)`, item)
				return idempotency.Answer{StatusCode: http.StatusCreated, Body: []byte(item + " is sold")}, nil
			})
		if err != nil {
			fmt.Println(err, outcome.Differs)
			return
		}
		fmt.Println(outcome.StatusCode, string(outcome.Body), outcome.Replayed)
	}
	sell("k1", "mug")
	sell("k1", "mug")
	sell("k1", "teapot")
	// Output:
	// 201 mug is sold false
	// 201 mug is sold true
	// the key was used for another request [/item]
}
