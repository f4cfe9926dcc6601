package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// waits puts a message of the key k that waits for an external service, an hour more.
func waits(t *testing.T, db *postgres.DB, id string) {
	t.Helper()
	put(t, db, id, "k")
	write(t, db, `
update inbox
   set waits = 3, waiting_since = clock_timestamp(), due_at = clock_timestamp() + interval '1 hour'
 where message_id = $1`, id)
}

// isDue reports whether a message may be claimed now.
func isDue(t *testing.T, db postgres.Querier, id string) bool {
	t.Helper()
	return stored(t, db, id).DueIn <= 0
}

func TestReceive_aNewMessageWakesItsKey(t *testing.T) {
	t.Parallel()

	db := testdb.Reused(t)
	for name, change := range map[string]string{
		"after an error":                 `attempts = 1`,
		"that never waited":              `waits = 0`,
		"that is a dead letter":          `status = 'dead'`,
		"that runs":                      `status = 'running', attempts = 1, fence = 1`,
		"of another receiver":            `receiver = 'other'`,
		"of another key":                 `ordering_key = 'kk'`,
		"of a key that sorts before":     `ordering_key = ''`,
		"of a receiver that sorts after": `receiver = 's'`,
	} {
		t.Run("does not wake a message "+name, func(t *testing.T) {
			write(t, db, `truncate inbox`)
			waits(t, db, "other")
			write(t, db, `update inbox set `+change)
			accept(t, db, note("new", "x"))
			if isDue(t, db, "other") {
				t.Errorf("it is %+v", stored(t, db, "other"))
			}
		})
	}

	t.Run("a repeated delivery wakes nothing", func(t *testing.T) {
		db := fresh(t)
		waits(t, db, "waiting")
		accept(t, db, note("known", "x"))
		write(t, db, `update inbox set due_at = clock_timestamp() + interval '1 hour' where message_id = 'waiting'`)
		accept(t, db, note("known", "x"))
		accept(t, db, note("known", "another payload"))
		if isDue(t, db, "waiting") {
			t.Error("it is due")
		}
		wantReceived(t, db, map[string]int{"r waiting": 0, "r known": 1})
	})

	t.Run("one that is due keeps its place", func(t *testing.T) {
		db := fresh(t)
		waits(t, db, "waiting")
		write(t, db, `update inbox set due_at = clock_timestamp() - interval '1 hour' where message_id = 'waiting'`)
		accept(t, db, note("new", "x"))
		if due := stored(t, db, "waiting").DueIn; due > -time.Hour {
			t.Errorf("it is due in %v", due)
		}
	})

	t.Run("and the handler is called", func(t *testing.T) {
		db := fresh(t, "m1@k")
		var seen diary
		start(t, processor(db, func(_ context.Context, d *inbox.Delivery) error {
			seen.note("%s %d", d.ID, d.Waits)
			if d.ID == "m1" && d.Waits == 0 {
				return &inbox.WaitError{AtLeast: time.Hour, Err: errors.New("the outside is slow")}
			}
			return nil
		}))
		await.Row(t, db, `select waits = 1 and status = 'pending' from inbox`)
		accept(t, db, note("m2", "x"))
		await.Row(t, db, `select count(*) = 2 and bool_and(status = 'done') from inbox`)
		seen.want(t, "m1 0 m1 1 m2 0")
	})
}

// TestWait_completesMessagesOfItsType: what a wait has answered is done with it, and nothing
// else, however many other messages there are.
func TestWait_completesMessagesOfItsType(t *testing.T) {
	t.Parallel()
	const others = 5000
	url := testdb.URL(t)
	db := testdb.OpenAt(t, url, postgres.Options{})
	write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
	putMany(t, db, `'other' || n`, `'other' || n`, others)
	write(t, db, `update inbox set status = 'done', done_fence = fence`)
	for id, key := range map[string]string{"head": "k", "another": "l"} {
		put(t, db, id, key)
	}
	put(t, db, "seen", "k")
	put(t, db, "request", "k")
	write(t, db, `update inbox set type = 'event.x' where message_id in ('seen', 'another')`)
	write(t, db, `update inbox set due_at = case when message_id = 'another' then clock_timestamp() + interval '1 hour' end where message_id in ('seen', 'another')`)
	write(t, db, `vacuum inbox`) // else claims read the old entries of indexes too
	before := entriesRead(t, db)
	its := testdb.OpenAt(t, url, postgres.Options{})
	stop := start(t, processor(its, func(ctx context.Context, d *inbox.Delivery) error {
		if d.ID != "head" {
			t.Errorf("%s is handled", d.ID)
		}
		if d.Waits > 0 {
			return &inbox.WaitError{AtLeast: time.Hour, NoDeadline: true}
		}
		b := &pgx.Batch{} // which makes the head due at once
		inbox.Accept(b, "r", inbox.Message{ID: "late", Type: "event.x", OrderingKey: "k"})
		testdb.Must(t, db.Commit(ctx, b))
		return &inbox.WaitError{AtLeast: time.Hour, NoDeadline: true, CompletesType: "event."}
	}))
	await.Row(t, db, `select waits = 2 and status = 'pending' from inbox where message_id = 'head'`)
	stop()
	its.Close()
	if read := entriesRead(t, db) - before; read >= others {
		t.Errorf("%d rows and entries of indexes were read", read)
	}
	for id, want := range map[string]string{"head": "pending", "seen": "done", "another": "pending", "request": "pending", "late": "pending"} {
		if got := stored(t, db, id).Status; got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
}

// TestReceive_wakesAWaitThatIsStoredAtTheSameMoment stops one of the two between its statement and
// its commit, and starts the other: they see each other, whichever is first.
func TestReceive_wakesAWaitThatIsStoredAtTheSameMoment(t *testing.T) {
	t.Parallel()

	const lease = `update inbox set status = 'running', fence = 1, attempts = 1, due_at = clock_timestamp() + interval '1 hour'`
	const wait = `update inbox set status = 'pending', attempts = 0, waits = 1, due_at = clock_timestamp() + interval '1 hour'`
	const due, leased = `due_at <= clock_timestamp()`, `due_at > clock_timestamp() + interval '1 minute'`
	for name, test := range map[string]struct{ first, then, want string }{
		"the wait is first":                   {wait, `commit`, `status = 'pending' and waits = 1 and ` + due},
		"the wait is first and does not come": {wait, `rollback`, `status = 'running' and ` + leased},
		"the end of the message is first":     {`update inbox set status = 'done', done_fence = 1, finished_at = clock_timestamp()`, `commit`, `status = 'done'`},
	} {
		t.Run(name, func(t *testing.T) {
			db := fresh(t, "m1@k")
			write(t, db, lease)
			tx := testdb.Begin(t, db.Pool(), test.first)
			accepted := acceptAside(t, db, note("m2", "x"))
			await.Blocked(t, db, 1)
			testdb.Exec(t, tx, test.then)
			testdb.Must(t, await.Receive(t, "the message", accepted))
			if !testdb.One[bool](t, db, `select `+test.want+` from inbox where message_id = 'm1'`) || !isDue(t, db, "m2") {
				t.Errorf("the old one is %+v, the new one %+v", stored(t, db, "m1"), stored(t, db, "m2"))
			}
		})
	}
}

// acceptAside accepts a message beside the test and returns a channel that receives its error.
func acceptAside(t *testing.T, db *postgres.DB, m inbox.Message) <-chan error {
	t.Helper()
	b := &pgx.Batch{}
	inbox.Accept(b, "r", m)
	ended := make(chan error, 1)
	go func() { ended <- db.Commit(t.Context(), b) }()
	return ended
}
