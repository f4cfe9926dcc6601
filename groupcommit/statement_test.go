package groupcommit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testrun"
)

const (
	insertA = "insert into a values ($1, now())"
	insertB = "insert into b values ($1, $2)"
	take    = "update stock set n = n - 1 where id = $1"
	give    = "update stock set n = n + 1 where id = $1"
	endRow  = "update inbox set done = true where id = $1"
)

func order() *groupcommit.Statements {
	return groupcommit.NewStatements(
		groupcommit.Statement{SQL: insertA, ManyRows: "many a"},
		groupcommit.Statement{SQL: insertB, ManyRows: "many b"},
		groupcommit.Statement{SQL: take, Table: "stock", Key: 1},
		groupcommit.Statement{SQL: give, Table: "stock", Key: 1},
		groupcommit.Statement{SQL: endRow, ManyRows: "end", Table: "inbox", Key: 1},
	)
}

func queued(queue ...[]any) *pgx.Batch {
	b := &pgx.Batch{}
	for _, q := range queue {
		sql, _ := q[0].(string)
		b.Queue(sql, q[1:]...)
	}
	return b
}

// joined is what is sent for batches, a line for each statement.
func joined(batches ...groupcommit.TenantBatch) string {
	b := &pgx.Batch{}
	order().QueueGroup(b, batches, func(b *pgx.Batch, tenant string) { b.Queue("as " + tenant) })
	var lines strings.Builder
	for _, q := range b.QueuedQueries {
		lines.WriteString(strings.Join(strings.Fields(q.SQL), " "))
		for _, a := range q.Arguments {
			fmt.Fprint(&lines, " ", a)
		}
		lines.WriteString("\n")
	}
	return lines.String()
}

func TestStatements_areMergedAndLockInOneOrder(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		batches []groupcommit.TenantBatch
		want    string
	}{
		"inserts of one statement": {[]groupcommit.TenantBatch{
			{Batch: queued([]any{insertB, 1, 2}, []any{insertA, 3})},
			{Batch: queued([]any{insertB, 4, 5})},
			{Batch: queued([]any{insertB, 6, 7})},
		}, `insert into a values ($1, now()) 3
many b [1 4 6] [2 5 7]
`},
		"rows that are locked, by table and row": {[]groupcommit.TenantBatch{
			{Batch: queued([]any{endRow, int64(10)}, []any{give, "b"}, []any{insertA, 1})},
			{Batch: queued([]any{take, "b"}, []any{give, "a"}, []any{endRow, int64(9)})},
		}, `insert into a values ($1, now()) 1
update stock set n = n + 1 where id = $1 a
update stock set n = n + 1 where id = $1 b
update stock set n = n - 1 where id = $1 b
end [9 10]
`},
		"tenants apart": {[]groupcommit.TenantBatch{
			{Tenant: "x", Batch: queued([]any{insertA, 1}, []any{endRow, int64(2)})},
			{Tenant: "y", Batch: queued([]any{insertA, 2}, []any{endRow, int64(1)})},
			{Tenant: "x", Batch: queued([]any{insertA, 3}, []any{endRow, int64(3)})},
		}, `as x
many a [1 3]
as y
insert into a values ($1, now()) 2
update inbox set done = true where id = $1 1
as x
end [2 3]
`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testrun.Same(t, "statements", test.want, joined(test.batches...))
		})
	}
}
