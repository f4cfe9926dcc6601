package idempotency_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestOnce_refusesAWorkThatReadsFromItsOwnBatch(t *testing.T) {
	t.Parallel()
	type order struct {
		ID string `json:"id"`
	}
	type made struct {
		Number int64 `json:"number"`
	}
	for name, queue := range map[string]func(b *pgx.Batch, out *made){
		"insert returning": func(b *pgx.Batch, out *made) {
			b.Queue(`insert into orders default values returning number`).QueryRow(func(row pgx.Row) error { return row.Scan(&out.Number) })
		},
		"the count of rows": func(b *pgx.Batch, out *made) {
			b.Queue(`insert into orders default values`).Exec(func(tag pgconn.CommandTag) error {
				out.Number = tag.RowsAffected()
				return nil
			})
		},
	} {
		for _, forget := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", forgotten"}[forget], func(t *testing.T) {
				t.Parallel()
				db := pgtest.Open(t)
				if _, err := db.Pool().Exec(t.Context(), `create table orders (number bigint generated always as identity (start 17))`); err != nil {
					t.Fatal(err)
				}
				reads := true
				once := idempotency.Once[order, made]{
					Receiver: idempotency.Receiver{DB: db}, Scope: "acme", Operation: "order.v1", Forget: forget,
					Work: func(_ context.Context, b *pgx.Batch, _ order) (made, error) {
						var out made
						if reads {
							queue(b, &out)
						} else {
							b.Queue(`insert into orders default values`)
						}
						return out, nil
					},
				}
				result, err := once.Do(t.Context(), order{ID: "o-1"})
				if !errors.Is(err, idempotency.ErrReadsBatch) {
					t.Errorf("the result is %+v with error %v, want ErrReadsBatch", result, err)
				}
				reads = false
				if result, err := once.Do(t.Context(), order{ID: "o-1"}); err != nil || result.Duplicate {
					t.Errorf("the key is not free afterwards: %+v, %v", result, err)
				}
				var orders int
				if err := db.Pool().QueryRow(t.Context(), `select count(*) from orders`).Scan(&orders); err != nil || orders != 1 {
					t.Errorf("%d orders, want that of the second call alone: %v", orders, err)
				}
			})
		}
	}
}
