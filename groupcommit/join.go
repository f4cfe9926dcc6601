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

// statement is one of a unit's.
type statement struct {
	place     int // in the order
	tenant    string
	table     int
	row       Row
	sql       string
	arguments []any
}

// Join queues the statements of units that share a transaction. setTenant queues the
// statement that sets a tenant, and is called wherever the next statement belongs to another
// tenant.
//
// Inserts of one statement and tenant are merged; those of a unit keep their order. After
// them come the statements that lock, by table and row, so two transactions that meet in
// several rows do not deadlock.
func (o *Order) Join(b *pgx.Batch, units []Unit, setTenant func(b *pgx.Batch, tenant string)) {
	var inserts, locking []statement
	for _, u := range units {
		for _, q := range u.Batch.QueuedQueries {
			place := o.places[q.SQL]
			s, d := statement{place: place, tenant: u.Tenant, sql: q.SQL, arguments: q.Arguments}, o.all[place]
			if d.Row == nil {
				inserts = append(inserts, s)
				continue
			}
			s.table, s.row = o.tables[d.Table], d.Row(q.Arguments)
			locking = append(locking, s)
		}
	}
	slices.SortStableFunc(inserts, func(a, b statement) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.place, b.place))
	})
	slices.SortStableFunc(locking, func(a, b statement) int {
		return cmp.Or(cmp.Compare(a.table, b.table), a.row.compare(b.row))
	})
	tenant := ""
	for all := append(inserts, locking...); len(all) > 0; {
		first, many := all[0], o.all[all[0].place].ManyRows
		if first.tenant != tenant {
			tenant = first.tenant
			setTenant(b, tenant)
		}
		n := 1
		for many != "" && n < len(all) && all[n].place == first.place && all[n].tenant == tenant {
			n++
		}
		if n == 1 {
			b.Queue(first.sql, first.arguments...)
		} else {
			b.Queue(many, columns(all[:n])...)
		}
		all = all[n:]
	}
}

// columns are the arguments of a statement for several rows, an array for each parameter.
func columns(rows []statement) []any {
	all := make([]any, len(rows[0].arguments))
	for i := range all {
		column := make([]any, len(rows))
		for n, row := range rows {
			column[n] = row.arguments[i]
		}
		all[i] = column
	}
	return all
}
