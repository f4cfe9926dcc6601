package inbox_test

import (
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// A processor continues as soon as the right, table or column that it lacks is there, with the
// rights of the worker.
func TestProcessor_continuesAfterAMissingRightOrTable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ change, undo string }{
		"a right": {`revoke select on inbox from payonce_worker`, `grant select on inbox to payonce_worker`},
		"a table": {`alter table inbox rename to away`, `alter table away rename to inbox`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log := testdb.Open(t), &await.Log{}
			put(t, db, "m1", "k")
			put(t, db, "m2", "l")
			write(t, db, `update inbox set status = 'running', fence = 1, attempts = 1, holder = 'dead' where message_id = 'm2'`)
			write(t, db, test.change)
			worker := testdb.As(t, db, postgres.RoleWorker)
			p := processor(t, worker, answer(nil), short, func(o *inbox.Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
			start(t, p)
			await.True(t, "the failure is logged", func() bool { return strings.Contains(log.String(), "claim failed, it is retried until it succeeds") })
			write(t, db, test.undo)
			done(t, db)
			got, err := p.Receive(t.Context(), note("m1", "m1"), note("m3", ""))
			testdb.Must(t, err)
			testrun.Same(t, "what became of them", inbox.Reception{New: 1, Duplicates: 1}, got)
			done(t, db)
			testdb.Must(t, send(t.Context(), worker, note("m4", "")))
			done(t, db)
		})
	}
}

func TestNew_refuses(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for name, o := range map[string]inbox.Options{
		"no database":     {Receiver: "r", Handle: answer(nil)},
		"no handler":      {Receiver: "r", DB: db},
		"no receiver":     {Handle: answer(nil), DB: db},
		"a long receiver": {Handle: answer(nil), DB: db, Receiver: strings.Repeat("x", inbox.MaxLength+1)},
	} {
		if _, err := inbox.New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDeleteExpired(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, status := range []string{"pending", "running", "done", "dead", "discarded"} {
		for age := range 4 {
			write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first, done_fence, decided_by, decided_at, finished_at)
				values ('r', $1 || $2, $1 || $2, '', '', '{}', '', $1, $1 = 'running', case $1 when 'done' then 0 end,
				        case $1 when 'discarded' then 'ada' end, case $1 when 'discarded' then now() end, now() - make_interval(hours => $2::int))`, status, strconv.Itoa(age))
		}
	}
	locked := testdb.Begin(t, db.Pool(), `select from inbox where message_id = 'done3' for update`)
	var deleted []int
	for range 3 {
		n, err := inbox.DeleteExpired(t.Context(), db, 30*time.Minute, 1)
		testdb.Must(t, err)
		deleted = append(deleted, n)
	}
	testrun.Same(t, "deleted", []int{1, 1, 0}, deleted)
	testdb.Must(t, locked.Rollback(t.Context()))
	n, err := inbox.DeleteExpired(t.Context(), db, 30*time.Minute, 10)
	testdb.Must(t, err)
	testrun.Same(t, "deleted", 1, n)
	testrun.Same(t, "left", "dead4 discarded4 done1 pending4 running4",
		testdb.One[string](t, db, `select string_agg(s || n, ' ' order by s) from (select status s, count(*) n from inbox group by 1) x`))
}
