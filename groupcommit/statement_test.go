package groupcommit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

const (
	insertA = "insert into a values ($1, now())"
	insertB = "insert into b values ($1, $2)"
	take    = "update stock set n = n - 1 where id = $1"
	give    = "update stock set n = n + 1 where id = $1"
	end     = "update inbox set done = true where id = $1"
)

func order() *groupcommit.Order {
	return groupcommit.NewOrder(
		groupcommit.Statement{SQL: insertA, Many: "many a"},
		groupcommit.Statement{SQL: insertB, Many: "many b"},
		groupcommit.Statement{SQL: take, Table: "stock", Row: groupcommit.ByText},
		groupcommit.Statement{SQL: give, Table: "stock", Row: groupcommit.ByText},
		groupcommit.Statement{SQL: end, Many: "end", Table: "inbox", Row: groupcommit.ByNumber},
	)
}

func batch(queue ...[]any) *pgx.Batch {
	b := &pgx.Batch{}
	for _, q := range queue {
		sql, _ := q[0].(string)
		b.Queue(sql, q[1:]...)
	}
	return b
}

func TestOrder_shares(t *testing.T) {
	t.Parallel()
	called := batch([]any{insertA, 1})
	called.QueuedQueries[0].Exec(nil)
	for name, test := range map[string]struct {
		b    *pgx.Batch
		want bool
	}{
		"declared statements":     {batch([]any{insertA, 1}, []any{end, int64(1)}), true},
		"another statement":       {batch([]any{insertA, 1}, []any{"commit"}), false},
		"one in another spelling": {batch([]any{insertA + " ", 1}), false},
		"one with a callback":     {called, false},
	} {
		if got := order().Shares(test.b); got != test.want {
			t.Errorf("%s share: %v", name, got)
		}
	}
}

// joined is what is sent for units, a line for each statement, with its owner.
func joined(t *testing.T, apart bool, units ...groupcommit.Unit) string {
	t.Helper()
	j := order().Join(units, apart, func(b *pgx.Batch, tenant string) { b.Queue("as " + tenant) })
	if j.Batch.Len() != len(j.Of) {
		t.Fatalf("%d statements have %d owners", j.Batch.Len(), len(j.Of))
	}
	var lines strings.Builder
	for i, q := range j.Batch.QueuedQueries {
		owner := map[int]string{groupcommit.Nobody: "nobody", groupcommit.Several: "several"}[j.Of[i]]
		if owner == "" {
			owner = string(rune('0' + j.Of[i]))
		}
		lines.WriteString(owner + ": " + strings.Join(strings.Fields(q.SQL), " "))
		for _, a := range q.Arguments {
			fmt.Fprint(&lines, " ", a)
		}
		lines.WriteString("\n")
	}
	return lines.String()
}

func TestOrder_joins(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		apart bool
		units []groupcommit.Unit
		want  string
	}{
		"inserts of one statement": {false, []groupcommit.Unit{
			{Batch: batch([]any{insertB, 1, 2}, []any{insertA, 3})},
			{Batch: batch([]any{insertB, 4, 5})},
			{Batch: batch([]any{insertB, 6, 7})},
		}, `nobody: as
0: insert into a values ($1, now()) 3
several: many b [1 4 6] [2 5 7]
`},
		"one by one": {true, []groupcommit.Unit{
			{Batch: batch([]any{insertA, 1})},
			{Batch: batch([]any{insertA, 2})},
		}, `nobody: as
0: insert into a values ($1, now()) 1
1: insert into a values ($1, now()) 2
`},
		"rows that are locked, by table and row": {false, []groupcommit.Unit{
			{Batch: batch([]any{end, int64(10)}, []any{give, "b"}, []any{insertA, 1})},
			{Batch: batch([]any{take, "b"}, []any{give, "a"}, []any{end, int64(9)})},
		}, `nobody: as
0: insert into a values ($1, now()) 1
1: update stock set n = n + 1 where id = $1 a
0: update stock set n = n + 1 where id = $1 b
1: update stock set n = n - 1 where id = $1 b
several: end [9 10]
`},
		"tenants apart": {false, []groupcommit.Unit{
			{Tenant: "x", Batch: batch([]any{insertA, 1}, []any{end, int64(2)})},
			{Tenant: "y", Batch: batch([]any{insertA, 2}, []any{end, int64(1)})},
			{Tenant: "x", Batch: batch([]any{insertA, 3}, []any{end, int64(3)})},
		}, `nobody: as x
several: many a [1 3]
nobody: as y
1: insert into a values ($1, now()) 2
1: update inbox set done = true where id = $1 1
nobody: as x
several: end [2 3]
`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, joined(t, test.apart, test.units...)); diff != "" {
				t.Errorf("statements (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewOrder_refusesAStatementTwice(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("it is accepted")
		}
	}()
	groupcommit.NewOrder(groupcommit.Statement{SQL: insertA}, groupcommit.Statement{SQL: insertA})
}
