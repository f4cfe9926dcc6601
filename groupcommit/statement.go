package groupcommit

import (
	"cmp"

	"github.com/jackc/pgx/v5"
)

// Statement declares a write that may share a transaction with other batches. A caller
// queues it into a pgx.Batch by its SQL, as any other statement.
type Statement struct {
	// SQL is its text for one row.
	SQL string
	// ManyRows is its text for any number of rows: each parameter is an array of the arguments
	// that SQL has in its place, none of which is an array itself. It has the effect of one
	// statement for each row, in their order, and is refused if one of these would be.
	// Where empty, SQL is sent for each row.
	ManyRows string
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

// Order is the list of the statements that may share a transaction, which is also the lock
// order: rows are locked by table, in the order in which the list names the tables first,
// and within a table by row.
type Order struct {
	places map[string]int // by SQL
	tables map[string]int
	all    []Statement
}

// NewOrder returns an order. It panics if two statements have the same SQL, since the SQL
// identifies a statement.
func NewOrder(statements ...Statement) *Order {
	o := &Order{places: make(map[string]int, len(statements)), tables: map[string]int{}, all: statements}
	for place, s := range statements {
		if _, twice := o.places[s.SQL]; twice {
			panic("groupcommit: declared twice: " + s.SQL)
		}
		o.places[s.SQL] = place
		if _, named := o.tables[s.Table]; !named {
			o.tables[s.Table] = len(o.tables)
		}
	}
	return o
}

// Shares reports whether a batch may share a transaction: it consists of declared statements,
// and none has a callback.
func (o *Order) Shares(b *pgx.Batch) bool {
	for _, q := range b.QueuedQueries {
		if _, known := o.places[q.SQL]; !known || q.Fn != nil {
			return false
		}
	}
	return true
}
