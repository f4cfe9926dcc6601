package groupcommit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
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

// A commit reports what its declared statements wake, each name once, and one that is refused
// or whose outcome is unknown does not.
func TestCommit_reportsWhatItWakes(t *testing.T) {
	t.Parallel()
	direct, address := effects(t, postgres.Options{})
	cutter := failpoint.StartCutter(t, address)
	wakes := func(arguments []any) string {
		id, _ := arguments[0].(int)
		return fmt.Sprint("odd ", id%2 == 1)
	}
	woken := make(chan []string, 10)
	c := groupcommit.New(testdb.OpenAt(t, cutter.URL(), postgres.Options{}).Pool(), groupcommit.Options{
		Writes:    groupcommit.NewStatements(groupcommit.Statement{SQL: insert, Wakes: wakes}, groupcommit.Statement{SQL: insertTwin}),
		Committed: func(names []string) { woken <- names },
	})
	undeclared := batch(10)
	undeclared.Queue(`select 1`)
	for _, test := range []struct {
		batch   *pgx.Batch
		outcome groupcommit.Outcome
		want    []string
	}{
		{batch(1, 3, 2, 5), groupcommit.Committed, []string{"odd true", "odd false"}},
		{undeclared, groupcommit.Committed, []string{"odd false"}},
		{batch(7, 1), groupcommit.Refused, nil},
		{queued([]any{insertTwin, 11, 11}), groupcommit.Committed, nil},
	} {
		if err := c.Commit(t.Context(), test.batch); groupcommit.OutcomeOf(err) != test.outcome {
			t.Errorf("the error is %v", err)
		}
		wantWoken(t, woken, test.want)
	}
	wantNoErrors(t, together(t, c, committing(c, batch(21), batch(23), batch(25))...))
	wantWoken(t, woken, []string{"odd true"})
	cutter.Arm(failpoint.After, 2)
	if err := c.Commit(t.Context(), batch(30, 32)); groupcommit.OutcomeOf(err) != groupcommit.Unknown {
		t.Errorf("the error is %v, want an unknown outcome", err)
	}
	wantWoken(t, woken, nil)
	wantStored(t, direct, 1, 2, 3, 5, 10, 11, 21, 23, 25, 30, 32)
}

func wantWoken(t *testing.T, woken <-chan []string, want []string) {
	t.Helper()
	var got []string
	select {
	case got = <-woken:
	default:
	}
	testrun.Same(t, "woken", want, got)
}
