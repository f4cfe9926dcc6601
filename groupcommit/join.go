package groupcommit

import (
	"cmp"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Unit is a batch of one caller.
type Unit struct {
	Tenant string // whose rows its statements may write; "" for none
	Batch  *pgx.Batch
}

// Owners of a statement of a joined batch that does not belong to one unit.
const (
	Nobody  = -1 // it belongs to the transaction
	Several = -2 // it has rows of several units
)

// Joined is one batch made of several units.
type Joined struct {
	Batch *pgx.Batch
	Of    []int // for each statement its unit, or one of the owners above
}

// Join makes one batch of units that share a transaction. If apart, each statement has one
// row. setTenant queues the statement that sets a tenant, and is called wherever the next
// statement belongs to another tenant.
//
// Inserts of one statement and tenant are merged; those of a unit keep their order. After
// them come the statements that lock, by table and row, so two transactions that meet in
// several rows do not deadlock.
func (o *Order) Join(units []Unit, apart bool, setTenant func(b *pgx.Batch, tenant string)) Joined {
	var inserts, locking []statement
	for i, u := range units {
		for _, q := range u.Batch.QueuedQueries {
			place := o.places[q.SQL]
			d := o.all[place]
			s := statement{place: place, tenant: u.Tenant, of: i, sql: q.SQL, arguments: q.Arguments}
			if d.Row != nil {
				s.table, s.row = o.tables[d.Table], d.Row(q.Arguments)
				locking = append(locking, s)
			} else {
				inserts = append(inserts, s)
			}
		}
	}
	slices.SortStableFunc(inserts, func(a, b statement) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.place, b.place))
	})
	slices.SortStableFunc(locking, func(a, b statement) int {
		return cmp.Or(cmp.Compare(a.table, b.table), a.row.compare(b.row))
	})
	j := Joined{Batch: &pgx.Batch{}}
	tenant := ""
	for i, s := range o.merge(append(inserts, locking...), apart) {
		if i == 0 || s.tenant != tenant {
			tenant = s.tenant
			setTenant(j.Batch, tenant)
			for len(j.Of) < j.Batch.Len() {
				j.Of = append(j.Of, Nobody)
			}
		}
		j.Batch.Queue(s.sql, s.arguments...)
		j.Of = append(j.Of, s.of)
	}
	return j
}

type statement struct {
	place     int
	tenant    string
	table     int
	row       Row
	of        int
	sql       string
	arguments []any
}

// merge makes one statement of neighbours that are of one statement and tenant.
func (o *Order) merge(all []statement, apart bool) []statement {
	var few []statement
	for len(all) > 0 {
		n := 1
		for n < len(all) && !apart && o.all[all[0].place].Many != "" && all[n].place == all[0].place && all[n].tenant == all[0].tenant {
			n++
		}
		few = append(few, o.together(all[:n]))
		all = all[n:]
	}
	return few
}

func (o *Order) together(same []statement) statement {
	s := same[0]
	if len(same) == 1 {
		return s
	}
	s.sql = o.all[s.place].Many
	columns := make([][]any, len(s.arguments))
	for _, one := range same {
		if one.of != s.of {
			s.of = Several
		}
		for i, argument := range one.arguments {
			columns[i] = append(columns[i], argument)
		}
	}
	s.arguments = make([]any, len(columns))
	for i, column := range columns {
		s.arguments[i] = column
	}
	return s
}
