package postgres

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// maxRows is how many rows a shared transaction inserts by one statement, at most. A
// statement opens the table's indexes and reads its conditions whatever it inserts.
// Beyond sixteen rows little is left of that to share, and a connection keeps a plan,
// as long as its rows are, for each number of them.
const maxRows = 16

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
					same = append(same, statement{of: j, tenant: first.tenant, sql: sql, arguments: left[j][0].Arguments})
					left[j] = left[j][1:]
				}
			}
			all = append(all, merged(same, rows)...)
		}
	}
	return all
}

// merged are statements of one text in fewer ones, of rows in powers of two: so there
// are few texts to be prepared.
func merged(same []statement, rows int) []statement {
	row := rowOf(same[0])
	var all []statement
	for len(same) > 0 {
		n := 1
		for row != "" && 2*n <= min(rows, len(same)) {
			n *= 2
		}
		all = append(all, merge(same[:n], row))
		same = same[n:]
	}
	return all
}

func merge(same []statement, row string) statement {
	s := same[0]
	if len(same) == 1 {
		return s
	}
	text, arguments := []byte(s.sql), []any(nil)
	for i, other := range same {
		if i > 0 {
			text = appendRow(append(text, ",\n       "...), row, len(arguments))
		}
		if other.of != s.of {
			s.of = several
		}
		arguments = append(arguments, other.arguments...)
	}
	s.sql, s.arguments = string(text), arguments
	return s
}

// rowOf is the row in an insert's text, "" where another one cannot just be written
// behind it.
func rowOf(s statement) string {
	_, row, _ := strings.Cut(s.sql, "values ")
	if !strings.HasPrefix(row, "(") || !strings.HasSuffix(row, ")") || strings.ContainsAny(row, `'"`) ||
		strings.Contains(row, "returning") || strings.Count(row, "$") != len(s.arguments) {
		return ""
	}
	return row
}

// appendRow appends a row whose arguments come behind so many others.
func appendRow(text []byte, row string, behind int) []byte {
	for {
		before, rest, found := strings.Cut(row, "$")
		text = append(text, before...)
		if !found {
			return text
		}
		row = strings.TrimLeft(rest, "0123456789")
		n, _ := strconv.Atoi(rest[:len(rest)-len(row)]) // PostgreSQL refuses what is no number
		text = strconv.AppendInt(append(text, '$'), int64(n+behind), 10)
	}
}
