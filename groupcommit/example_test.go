package groupcommit_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testdb"
)

// Callers that commit at the same moment share a transaction. Each gets its own outcome.
func ExampleCommitter() {
	db, end := testdb.Example()
	defer end()
	ctx, pool := context.Background(), db.Pool()
	if _, err := pool.Exec(ctx, `create table orders (id text constraint orders_once primary key, total bigint)`); err != nil {
		panic(err)
	}

	insert := groupcommit.Statement{
		SQL:      `insert into orders (id, total) values ($1, $2)`,
		ManyRows: `insert into orders (id, total) select * from unnest($1::text[], $2::bigint[])`,
	}
	c := groupcommit.New(pool, groupcommit.Options{Writes: groupcommit.NewStatements(insert)})
	place := func(id string, total int64) error {
		b := &pgx.Batch{}
		b.Queue(insert.SQL, id, total)
		return c.Commit(ctx, b)
	}
	fmt.Println(place("order-1", 500), place("order-2", 700))

	err := place("order-1", 500)
	fmt.Println(groupcommit.OutcomeOf(err) == groupcommit.Refused, groupcommit.Constraint(err))
	// Output:
	// <nil> <nil>
	// true orders_once
}
