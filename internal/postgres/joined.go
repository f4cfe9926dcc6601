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

// statement is one of a shared transaction.
type statement struct {
	of        int // the unit whose it is, or one of the below
	tenant    string
	lock      lock
	sql       string
	many      string // its text for several rows, "" if it has none
	arguments []any
}

const (
	nobodys = -1 // it is the transaction's
	several = -2 // it has rows of several units
)

// statementOf reads what a unit has queued, known as lockOf has it. A plain insert is its
// own text for several.
func statementOf(q *pgx.QueuedQuery, tenant string) (s statement, known bool) {
	s = statement{tenant: tenant, sql: q.SQL}
	s.many, s.arguments = manyOf(q)
	s.lock, known = lockOf(q)
	if s.lock.table == noTable {
		s.many = s.sql
	}
	return s, known
}

// join makes one batch of units, which are in the order of their tenants, and tells of
// each statement whose it is. The driver notes on a statement how a connection knows
// it, so what may be sent again on another is a copy.
func join(units []*unit, lockTimeout string, rows int) (b *pgx.Batch, of []int) {
	inserting := make([][]statement, len(units))
	var locking []statement
	for i, u := range units {
		for _, s := range u.statements {
			s.of = i
			if s.lock.table == noTable {
				inserting[i] = append(inserting[i], s)
			} else {
				locking = append(locking, s)
			}
		}
	}
	slices.SortStableFunc(locking, func(a, b statement) int { return a.lock.compare(b.lock) })
	statements := append(inserts(inserting, rows), neighbours(locking, rows)...)

	tenant := statements[0].tenant
	b = &pgx.Batch{}
	b.Queue(beginJoined, tenant, lockTimeout)
	of = []int{nobodys}
	for _, s := range statements {
		if s.tenant != tenant {
			tenant = s.tenant
			b.Queue(setMerchant, tenant)
			of = append(of, nobodys)
		}
		b.Queue(s.sql, s.arguments...)
		of = append(of, s.of)
	}
	return b, of
}

// byTenant is the order in which units are joined: each tenant is named once.
func byTenant(a, b *unit) int { return cmp.Compare(a.tenant, b.tenant) }

// lock is a row, or the rows of a key, that a statement locks and that units of other
// streams may lock too. Its zero value is none: what a plain insert waits for is
// waited for by units of the same key alone, and these are rare.
type lock struct {
	table  lockedTable
	text   [2]string
	number int64
}

// lockedTable is in the order in which those lock who commit by themselves.
type lockedTable int

const (
	noTable    lockedTable = iota
	otherTable             // by its name
	tableStock
	tableInbox
)

// compare is the order in which rows are locked.
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
	first, second := argument(q, 0), argument(q, 1)
	switch {
	case strings.HasPrefix(sql, "insert into "):
		return l, !strings.Contains(sql, "select") && !strings.Contains(sql, "on conflict")
	case strings.HasPrefix(sql, "update stock\n"):
		merchant, named := first.(string)
		sku, kept := second.(string)
		return lock{table: tableStock, text: [2]string{merchant, sku}},
			named && kept && strings.HasSuffix(sql, "\n where merchant_id = $1\n   and sku = $2")
	case strings.HasPrefix(sql, "update inbox"), strings.HasPrefix(sql, "with ended as (\n  update inbox\n"):
		number, numbered := first.(int64)
		return lock{table: tableInbox, number: number},
			numbered && (strings.Contains(sql, " where id = $1\n") || strings.Contains(sql, " where i.id = $1\n"))
	case strings.HasPrefix(sql, "update "):
		table, _, _ := strings.Cut(sql[len("update "):], "\n")
		l = lock{table: otherTable, text: [2]string{table}}
		switch key := first.(type) {
		case string:
			l.text[1] = key
		case int64:
			l.number = key
		default:
			return l, false
		}
		return l, isOfOneKey(sql)
	}
	return l, false
}

func argument(q *pgx.QueuedQuery, i int) any {
	if _, arguments := manyOf(q); i < len(arguments) {
		return arguments[i]
	}
	return nil
}

// isOfOneKey tells whether an update has no condition but `column = $1`.
func isOfOneKey(sql string) bool {
	_, condition, found := strings.Cut(sql, "\n where ")
	column, ofKey := strings.CutSuffix(condition, " = $1")
	return found && ofKey && !strings.ContainsAny(column, " \n") && !strings.Contains(sql, "\n  from ") && !strings.Contains(sql, "select")
}
