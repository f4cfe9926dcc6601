package groupcommit

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Statement is a write that may be in a transaction with those of other batches. It is
// queued into a pgx.Batch by its SQL, as any other statement.
type Statement struct {
	// SQL is its text for one row.
	SQL string
	// Rows is its text for several rows; nil: it is sent once for each. It has the effect
	// of one statement for each row, and is refused if one of these would be.
	Rows func(rows int) string
	// Table is what it locks a row of that statements of other batches may lock too, and
	// Row tells which row by its arguments. An insert has none: only a batch of the same
	// key can wait for what it locks.
	Table string
	Row   func(arguments []any) Row
}

// Row names a row that is locked, for its place among others of the same table.
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

// Insert declares an insert that ends with its one row of values, each of which is one
// argument: "%s", or around it, such as "coalesce(%s, now())".
func Insert(sql string, values ...string) Statement {
	return Statement{SQL: sql, Rows: func(n int) string {
		if n == 1 {
			return sql
		}
		return sql + ",\n       " + rows(1, n, values)
	}}
}

// Values declares a statement for several rows, whose text has these between head and
// tail, each with values as those of Insert.
func Values(head, tail string, values ...string) func(n int) string {
	return func(n int) string { return head + rows(0, n, values) + tail }
}

// rows are those from and before these numbers.
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

// ByText is the Row of a statement whose first arguments, one or two, are the key of its
// row.
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

// MaxRows is how many rows one statement has, at most. A statement opens the indexes of
// its table and reads its conditions whatever it writes. Beyond sixteen rows little is
// left of that to share, and a connection keeps a plan for each number of rows. For the
// same reason the numbers are powers of two.
const MaxRows = 16

// Order is the statements that may share a transaction. Rows are locked by table, in the
// order in which the tables are first named, and within a table by row.
type Order struct {
	places map[string]int // by SQL
	tables map[string]int
	all    []declared
}

type declared struct {
	Statement

	several map[int]string // by rows
}

// NewOrder makes an order. It panics if two statements have the same SQL: which of them was
// meant could not be told.
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

// Shares tells whether a batch may be in a transaction with others: it consists of
// declared statements, and none has a callback.
func (o *Order) Shares(b *pgx.Batch) bool {
	for _, q := range b.QueuedQueries {
		if _, known := o.places[q.SQL]; !known || q.Fn != nil {
			return false
		}
	}
	return true
}
