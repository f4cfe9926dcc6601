package inbox_test

import (
	"log/slog"
	"testing"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// What cannot be stored is not acknowledged, and is stored once when it can be.
func TestProcessor_triesOnWithoutARightOrATable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ change, undo string }{
		"a right":  {`revoke all on inbox from payonce_worker`, `grant select, insert, update on inbox to payonce_worker`},
		"a table":  {`alter table inbox rename to away`, `alter table away rename to inbox`},
		"a column": {`alter table inbox rename holder to owner`, `alter table inbox rename owner to holder`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, lines, b := testdb.Open(t), &diary{}, &broker{log: logOf("m1")}
			testdb.Exec(t, db.Pool(), test.change)
			worker := testdb.As(t, db, postgres.RoleWorker)
			p := processor(worker, answer(nil))
			p.Log = slog.New(slog.NewTextHandler(lines, nil))
			stop := consume(t, p, inbox.Source{Subscriber: b, Topic: "orders"})
			lines.await(t, "receive failed, the messages will be redelivered")
			await.True(t, "it is refused several times", func() bool { _, nacks := b.seen(); return nacks > 2 })
			start(t, p)
			lines.await(t, "claim failed, it is retried until it succeeds")
			testdb.Exec(t, db.Pool(), test.undo)
			b.awaitAcks(t, 1)
			await.Row(t, db, `select count(*) = 1 and bool_and(status = 'done') from inbox`)
			testdb.Must(t, stop())
		})
	}
}
