package postgres

import (
	"cmp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// It begins every shared transaction, and ends with it.
const beginJoined = `
select set_config('payonce.merchant', $1, true),
       set_config('lock_timeout', $2, true)`

// join makes one batch of units, and tells of each statement whose it is, -1 for
// none. The driver notes on a statement how a connection knows it, so what may be
// sent again on another is a copy.
func join(units []*unit, lockTimeout string) (b *pgx.Batch, of []int) {
	type statement struct {
		of    int
		lock  lock
		query *pgx.QueuedQuery
	}
	var statements []statement
	for i, u := range units {
		for _, q := range u.batch.QueuedQueries {
			l, _ := lockOf(q)
			statements = append(statements, statement{i, l, q})
		}
	}
	slices.SortStableFunc(statements, func(a, b statement) int { return a.lock.compare(b.lock) })

	tenant := units[statements[0].of].tenant
	b = &pgx.Batch{}
	b.Queue(beginJoined, tenant, lockTimeout)
	of = []int{-1}
	for _, s := range statements {
		if next := units[s.of].tenant; next != tenant {
			tenant = next
			b.Queue(setMerchant, tenant)
			of = append(of, -1)
		}
		b.Queue(s.query.SQL, s.query.Arguments...)
		of = append(of, s.of)
	}
	return b, of
}

// lock is a row that a statement locks and that units of other keys may lock too.
// Its zero value is none: what a plain insert waits for, and what is a charge's
// own, is waited for by units of the same key alone, and these are rare.
type lock struct {
	table  lockedTable
	text   [2]string
	number int64
}

type lockedTable int

const (
	noTable lockedTable = iota
	tableStock
	tableInbox
)

// compare is the order in which rows are locked. It is that of those who commit by
// themselves as well, and of who receives messages.
func (l lock) compare(other lock) int {
	return cmp.Or(
		cmp.Compare(l.table, other.table),
		cmp.Compare(l.text[0], other.text[0]),
		cmp.Compare(l.text[1], other.text[1]),
		cmp.Compare(l.number, other.number),
	)
}

// lockOf is what a statement locks, known false where it must not be in a
// transaction with others. It goes by the text, as the statements' authors have
// written it: what it does not know goes alone, which is slower and never wrong.
// TestStatementsThatJoin lists those that it knows.
func lockOf(q *pgx.QueuedQuery) (l lock, known bool) {
	sql := strings.TrimSpace(q.SQL)
	if q.Fn != nil || strings.Contains(sql, "set_config") {
		return l, false
	}
	switch {
	case strings.HasPrefix(sql, "insert into "):
		return l, !strings.Contains(sql, "select") && !strings.Contains(sql, "on conflict")
	case strings.HasPrefix(sql, "update reservations\n"):
		return l, strings.HasSuffix(sql, "\n where charge_id = $1")
	case strings.HasPrefix(sql, "update stock\n"):
		if len(q.Arguments) < 2 || !strings.HasSuffix(sql, "\n where merchant_id = $1\n   and sku = $2") {
			return l, false
		}
		merchant, named := q.Arguments[0].(string)
		sku, kept := q.Arguments[1].(string)
		return lock{table: tableStock, text: [2]string{merchant, sku}}, named && kept
	case strings.HasPrefix(sql, "update inbox\n"), strings.HasPrefix(sql, "update inbox i\n"),
		strings.HasPrefix(sql, "with ended as (\n  update inbox\n"):
		if len(q.Arguments) < 1 || !strings.Contains(sql, "\n where id = $1\n") && !strings.Contains(sql, "\n where i.id = $1\n") &&
			!strings.Contains(sql, "\n   where id = $1\n") {
			return l, false
		}
		number, ok := q.Arguments[0].(int64)
		return lock{table: tableInbox, number: number}, ok
	}
	return l, false
}

// joins tells whether a batch may be in a transaction with others.
func joins(b *pgx.Batch) bool {
	for _, q := range b.QueuedQueries {
		if _, known := lockOf(q); !known {
			return false
		}
	}
	return true
}
