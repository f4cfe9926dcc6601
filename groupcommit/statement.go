package groupcommit

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Statement declares a write that may share a transaction with other batches. A caller
// queues it into a pgx.Batch by its SQL, as any other statement.
type Statement struct {
	// SQL is its text for one row.
	SQL string
	// Rows returns its text for several rows; where nil, it is sent once for each. It has
	// the effect of one statement for each row, and is refused if one of these would be.
	Rows func(rows int) string
	// Table is where it locks a row that statements of other batches may lock too, and Row
	// returns which row, from its arguments. An insert has none: only a batch of the same
	// key waits for what it locks.
	Table string
	Row   func(arguments []any) Row
}

// Row identifies a row that a statement locks, and orders the rows of a table.
type Row struct {
	Text   [2]string
	Number int64
}

func (r Row) compare(other Row) int {
	return cmp.Or(
		cmp.Compare(r.Text[0], other.Text[0]),
		cmp.Compare(r.Text[1], other.Text[1]),
		cmp.Compare(r.Number, other.Number),
	)
}

// Insert declares an insert whose text ends with one row of values. Each value holds one
// argument: "%s", or an expression around it, such as "coalesce(%s, now())".
func Insert(sql string, values ...string) Statement {
	return Statement{SQL: sql, Rows: func(n int) string {
		if n == 1 {
			return sql
		}
		return sql + ",\n       " + rows(1, n, values)
	}}
}

// Values returns the Rows of a statement whose rows stand between head and tail, each with
// values as those of Insert.
func Values(head, tail string, values ...string) func(n int) string {
	return func(n int) string { return head + rows(0, n, values) + tail }
}

// rows returns the rows from (inclusive) to before (exclusive) as text.
func rows(from, before int, values []string) string {
	all := make([]string, 0, before-from)
	for n := from; n < before; n++ {
		row := make([]string, len(values))
		for i, value := range values {
			row[i] = fmt.Sprintf(value, "$"+strconv.Itoa(n*len(values)+i+1))
		}
		all = append(all, "("+strings.Join(row, ", ")+")")
	}
	return strings.Join(all, ",\n       ")
}

// ByText is the Row of a statement whose first one or two arguments are the key of its row.
func ByText(arguments []any) (r Row) {
	for i := range r.Text {
		if i < len(arguments) {
			r.Text[i], _ = arguments[i].(string)
		}
	}
	return r
}

// ByNumber is the Row of a statement whose first argument is the number of its row.
func ByNumber(arguments []any) Row {
	number, _ := arguments[0].(int64)
	return Row{Number: number}
}

// MaxRows is how many rows one statement holds, at most. A statement has a fixed cost, which
// sixteen rows share well enough. A connection keeps a plan for each number of rows, so the
// numbers are powers of two.
const MaxRows = 16

// Order is the list of the statements that may share a transaction, which is also the lock
// order: rows are locked by table, in the order in which the list names the tables first,
// and within a table by row.
type Order struct {
	places map[string]int // by SQL
	tables map[string]int
	all    []declared
}

type declared struct {
	Statement

	several map[int]string // by rows
}

// NewOrder returns an order. It panics if two statements have the same SQL, since the SQL
// identifies a statement.
func NewOrder(statements ...Statement) *Order {
	o := &Order{places: make(map[string]int, len(statements)), tables: map[string]int{}}
	for place, s := range statements {
		if _, twice := o.places[s.SQL]; twice {
			panic("groupcommit: declared twice: " + s.SQL)
		}
		o.places[s.SQL] = place
		d := declared{Statement: s, several: map[int]string{}}
		for n := 2; s.Rows != nil && n <= MaxRows; n *= 2 {
			d.several[n] = s.Rows(n)
		}
		if _, named := o.tables[s.Table]; !named {
			o.tables[s.Table] = len(o.tables)
		}
		o.all = append(o.all, d)
	}
	return o
}

// Shares tells whether a batch may share a transaction: it consists of declared statements,
// and none has a callback.
func (o *Order) Shares(b *pgx.Batch) bool {
	for _, q := range b.QueuedQueries {
		if _, known := o.places[q.SQL]; !known || q.Fn != nil {
			return false
		}
	}
	return true
}
