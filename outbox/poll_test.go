package outbox_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// overheard keeps the query by which a subscriber reads a page.
type overheard struct {
	mu    sync.Mutex
	query string
	args  []any
	polls int
}

func (o *overheard) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "from outbox_offsets") {
		o.mu.Lock()
		o.query, o.args = q.SQL, q.Args
		o.polls++
		o.mu.Unlock()
	}
	return ctx
}

func (o *overheard) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.polls
}

func (o *overheard) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// poll is the query of a subscriber of the group g that has polled.
func poll(t *testing.T, db *postgres.DB) (query string, args []any) {
	t.Helper()
	r := read(t, db, "g")
	await.True(t, "the subscriber polls", func() bool { return r.polls.count() > 2 })
	r.stop()
	return r.polls.query, r.polls.args
}

func TestPoll_writesNothingWhileIdle(t *testing.T) {
	testdb.Long(t, "it polls for a while")
	t.Parallel()
	db := testdb.Open(t)
	query, args := poll(t, db)
	took := func() (id *uint64) {
		tx, err := db.Pool().Begin(t.Context())
		must(t, err)
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		rows, err := tx.Query(t.Context(), query, args...)
		must(t, err)
		rows.Close()
		must(t, rows.Err())
		must(t, tx.QueryRow(t.Context(), `select pg_current_xact_id_if_assigned()`).Scan(&id))
		return id
	}
	if id := took(); id != nil {
		t.Errorf("a poll of an empty outbox took the transaction id %d", *id)
	}
	publish(t, db, "m1")
	await.True(t, "a poll that finds a message locks the offset, and so takes a transaction id", func() bool { return took() != nil })
	read(t, db, "g").wantNext(t, "m1")
	await.True(t, "once it is read, polls take none again", func() bool { return took() == nil })
}

func TestPoll_readsOnePage(t *testing.T) {
	testdb.Long(t, "it fills a table")
	t.Parallel()
	db := testdb.Open(t)
	query, _ := poll(t, db)
	const insert = `insert into outbox (topic, message_id, payload, metadata) select $1, n::text, '', '{}' from generate_series(1, 4000) as n`
	write(t, db, insert, topic)
	write(t, db, `update outbox_offsets set (transaction_id, "offset") = (select transaction_id, max("offset") from outbox group by transaction_id)`)
	write(t, db, insert, topic) // these the group has not read
	settled(t, db)
	for _, plan := range []struct {
		name, before string
	}{
		{"before the table is analyzed", "set plan_cache_mode = force_custom_plan"},
		{"before the table is analyzed, for any topic", "set plan_cache_mode = force_generic_plan"},
		{"once it is analyzed", "analyze outbox; set plan_cache_mode = force_custom_plan"},
		{"once it is analyzed, for any topic", "set plan_cache_mode = force_generic_plan"},
	} {
		lines := explain(t, db, plan.before, query)
		if strings.Contains(lines, "Seq Scan on outbox") || !strings.Contains(lines, "outbox_pkey") {
			t.Errorf("%s it reads more than a range of the primary key:\n%s", plan.name, lines)
		}
		var scanned []string
		for _, scan := range regexp.MustCompile(` on outbox \w+ .*\(actual rows=(\d+)(?:\.00)? loops=1\)`).FindAllStringSubmatch(lines, -1) {
			scanned = append(scanned, scan[1])
		}
		slices.Sort(scanned)
		if !slices.Equal(scanned, []string{"0", "1", "500"}) || strings.Contains(lines, "Rows Removed") {
			t.Errorf("%s it reads more than a page: %q\n%s", plan.name, scanned, lines)
		}
	}
}

// explain runs the query as a prepared statement and returns its plan.
func explain(t *testing.T, db *postgres.DB, before, query string) string {
	t.Helper()
	conn, err := db.Pool().Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	for _, sql := range []string{before, "deallocate all", "prepare poll as " + query} {
		testdb.Exec(t, conn, sql, pgx.QueryExecModeSimpleProtocol)
	}
	rows, err := conn.Query(t.Context(), "explain (analyze, timing off) execute poll('"+topic+"', 'g', 500, 1048576)", pgx.QueryExecModeSimpleProtocol)
	must(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	return strings.Join(lines, "\n")
}
