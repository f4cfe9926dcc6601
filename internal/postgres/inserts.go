package postgres

import "github.com/jackc/pgx/v5"

// inserts are the plain inserts of units, those of one text and tenant side by side.
// Each unit's own stay in their order. Those of several units touch each other by
// constraints alone, and in whatever order these refuse, they refuse the transaction.
func inserts(units []*unit, rows int) []statement {
	left := make([][]*pgx.QueuedQuery, len(units))
	for i, u := range units {
		for _, q := range u.batch.QueuedQueries {
			if l, _ := lockOf(q); l.table == noTable {
				left[i] = append(left[i], q)
			}
		}
	}
	var all []statement
	for i, first := range units {
		for len(left[i]) > 0 {
			sql := left[i][0].SQL
			var same []statement
			for j := i; j < len(units) && units[j].tenant == first.tenant; j++ {
				for len(left[j]) > 0 && left[j][0].SQL == sql {
					same = append(same, statement{of: j, tenant: first.tenant, sql: sql, many: sql, arguments: left[j][0].Arguments})
					left[j] = left[j][1:]
				}
			}
			all = append(all, merged(same, rows)...)
		}
	}
	return all
}
