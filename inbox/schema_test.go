package inbox_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// What cannot be stored is not acknowledged, and is stored once when it can be.
func TestProcessor_namesWhatIsMissingOfItsTables(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ change, undo, says string }{
		"a table is missing": {
			`alter table inbox rename to away`, `alter table away rename to inbox`, "table inbox is missing: ",
		},
		"a column has another name": {
			`alter table inbox rename holder to owner`, `alter table inbox rename owner to holder`, "column inbox.holder is missing, want text",
		},
		"the constraint is missing that drops duplicates": {
			`alter table inbox drop constraint inbox_message_once`, `alter table inbox add constraint inbox_message_once unique (message_id, receiver)`,
			"constraint inbox.inbox_message_once is missing, want UNIQUE (message_id, receiver): ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, b := testdb.Open(t), &broker{log: logOf("m1", "m2")}
			testdb.Exec(t, db.Pool(), test.change)
			p, source := processor(db, affecting(db)), inbox.Source{Subscriber: b, Topic: "orders"}
			ctx, end := context.WithCancel(t.Context())
			_, received := p.Receive(ctx, note("m1", "m1"))
			errs := map[string]error{"receive 1 messages for r": received, "consume orders": p.Consume(ctx, source)}
			if name != "the constraint is missing that drops duplicates" { // a claim does not need it
				errs["claim for r"] = p.Run(ctx)
			}
			end()
			for of, err := range errs {
				if err == nil || !strings.HasPrefix(err.Error(), of) || !strings.Contains(err.Error(), ": apply inbox.Schema: the schema of inbox does not fit: "+test.says) {
					t.Errorf("%s says %v", of, err)
				}
			}
			if acked, _ := b.seen(); acked > 0 {
				t.Errorf("%d messages are acknowledged", acked)
			}
			testdb.Exec(t, db.Pool(), test.undo)
			next, again := processor(db, affecting(db)), &broker{log: b.log}
			start(t, next)
			stop := consume(t, next, inbox.Source{Subscriber: again, Topic: "orders"})
			again.awaitAcks(t, 2)
			await.Row(t, db, `select count(*) = 2 and bool_and(status = 'done') from inbox`)
			testdb.Must(t, stop())
			wantEffects(t, db, "m1", "m2")
		})
	}
}

// A right can be granted while the processor runs, as a server can come back.
func TestProcessor_triesOnWithoutARight(t *testing.T) {
	t.Parallel()
	db, lines, b := testdb.Open(t), &diary{}, &broker{log: logOf("m1")}
	testdb.Exec(t, db.Pool(), `revoke all on inbox from payonce_worker`)
	worker := testdb.As(t, db, postgres.RoleWorker)
	p := processor(worker, answer(nil))
	p.Log = slog.New(slog.NewTextHandler(lines, nil))
	stop := consume(t, p, inbox.Source{Subscriber: b, Topic: "orders"})
	lines.await(t, "receive failed, the messages will be redelivered")
	await.True(t, "it is refused several times", func() bool { _, nacks := b.seen(); return nacks > 2 })
	start(t, p)
	lines.await(t, "claim failed, it is retried until it succeeds")
	testdb.Exec(t, db.Pool(), `grant select, insert, update on inbox to payonce_worker`)
	b.awaitAcks(t, 1)
	await.Row(t, db, `select count(*) = 1 and bool_and(status = 'done') from inbox`)
	testdb.Must(t, stop())
}
