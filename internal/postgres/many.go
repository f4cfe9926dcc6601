package postgres

import (
	"context"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Many is a text that does for several rows what a statement does for the one that it
// locks. It is queued as the statement's first argument, and not sent with it:
//
//	b.Queue(one, postgres.Many(many), id, fence)
//
// A shared commit may send it in the place of statements that would follow each other
// in the order of their locks. It has the same arguments, all of them in the row of a
// query `with … as (\n  values (…)\n)`, behind which it gets the other rows. It
// locks in the order in which one by one would, and is refused if one of them would
// be: then each is sent by itself.
type Many string

// RewriteQuery implements pgx.QueryRewriter: a statement by itself is as it is.
func (Many) RewriteQuery(_ context.Context, _ *pgx.Conn, sql string, args []any) (string, []any, error) {
	return sql, args, nil
}

// manyOf takes the text for several from the arguments of a statement.
func manyOf(q *pgx.QueuedQuery) (many string, arguments []any) {
	if len(q.Arguments) > 0 {
		if m, ok := q.Arguments[0].(Many); ok {
			return string(m), q.Arguments[1:]
		}
	}
	return "", q.Arguments
}

// maxRows is how many rows a statement of a shared transaction has, at most. A
// statement opens the table's indexes and reads its conditions whatever it writes.
// Beyond sixteen rows little is left of that to share, and a connection keeps a plan,
// as long as its rows are, for each number of them.
const maxRows = 16

// neighbours are statements as they stand, those side by side that are of one text and
// tenant as few. None goes past another one, so the order of locks remains.
func neighbours(all []statement, rows int) []statement {
	var few []statement
	for len(all) > 0 {
		first, n := all[0], 1
		for n < len(all) && all[n].tenant == first.tenant && all[n].sql == first.sql && all[n].many == first.many {
			n++
		}
		few = append(few, merged(all[:n], rows)...)
		all = all[n:]
	}
	return few
}

// merged are statements of one text in fewer ones, of rows in powers of two: so there
// are few texts to be prepared.
func merged(same []statement, rows int) []statement {
	if len(same) == 1 {
		return same
	}
	row, end := rowOf(same[0])
	var all []statement
	for len(same) > 0 {
		n := 1
		for row != "" && 2*n <= min(rows, len(same)) {
			n *= 2
		}
		all = append(all, merge(same[:n], row, end))
		same = same[n:]
	}
	return all
}

func merge(same []statement, row, end string) statement {
	s := same[0]
	if len(same) == 1 {
		return s
	}
	text := make([]byte, 0, len(s.many)+len(same)*(len(row)+3*len(s.arguments)))
	text = append(text, strings.TrimSuffix(s.many, end)...)
	arguments := make([]any, 0, len(same)*len(s.arguments))
	for i, other := range same {
		if i > 0 {
			text = appendRow(append(text, ",\n       "...), row, len(arguments))
		}
		if other.of != s.of {
			s.of = several
		}
		arguments = append(arguments, other.arguments...)
	}
	s.sql, s.arguments = string(append(text, end...)), arguments
	return s
}

// rowOf is the row in a text for several, and what follows it. The row is "" where
// another one cannot just be written behind it.
func rowOf(s statement) (row, end string) {
	_, row, _ = strings.Cut(s.many, "values ")
	if before, _, within := strings.Cut(row, "\n)"); within {
		row, end = before, row[len(before):]
	}
	n := len(s.arguments)
	if !strings.HasPrefix(row, "(") || !strings.HasSuffix(row, ")") || strings.ContainsAny(row, `'"`) ||
		strings.Contains(row, "returning") || strings.Count(row, "$") != n || strings.Count(s.many, "$") != n {
		return "", ""
	}
	return row, end
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
