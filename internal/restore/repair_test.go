package restore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

func TestRepair(t *testing.T) {
	t.Parallel()

	t.Run("what was restored and what came since is folded, once and in order", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		whole := f.capture(f.open("ch_whole"))
		half := f.open("ch_half")
		f.project(6)
		half = f.capture(half) // not folded
		followed := f.follow("", nil, 2)
		r := f.read()
		r.wantNext(t, ids(whole, ledger.Stream{Events: half.Events[:2]}, ledger.Stream{Events: half.Events[2:]})...)
		if f.foreign() {
			t.Fatal("a server's own transactions are foreign")
		}

		f.restore(muchHigher)
		if !f.foreign() {
			t.Fatal("the restore is not seen")
		}
		since := f.open("ch_since")
		r.wantNext(t, ids(since)...) // a queue has no positions
		f.follow("", ledger.ErrRestored, 0)
		if n, err := ledger.AddUp(t.Context(), f.db); n != 0 || err != nil {
			t.Errorf("%d events were folded: %v", n, err)
		}

		testrun.Same(t, "repaired", restore.Repaired{Events: 10}, f.repair())
		f.follow(followed, ledger.ErrUnknownCursor, 0) // the order is another one
		f.follow("", nil, 2)
		f.wantProjected(4)

		later := f.commit(since, domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_ch_since", Amount: 1000, Currency: "USD"})
		r.wantNext(t, later.Head().ID.String())
		f.wantProjected(1)
		r.wantNone(t)
		if s, err := ledger.Load(t.Context(), f.db, whole.ID); err != nil || s.Charge.Version != 4 {
			t.Errorf("%s is at version %d: %v", whole.ID, s.Charge.Version, err)
		}
	})

	t.Run("it may be repeated, and where nothing is foreign", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		s := f.capture(f.open("ch_1"))
		f.project(4)
		for range 2 {
			f.repair()
			f.wantProjected(0)
		}
		f.wantGuarded()
		s2 := f.open("ch_2")
		f.restore(muchHigher) // and once more into another server
		f.repair()
		r := f.read()
		r.wantNext(t, ids(s, s2)...)
		r.wantNone(t)
		f.wantProjected(2)
	})

	for name, charges := range map[string]int{"nothing": 0, "charges": 2} {
		t.Run("projections of "+name+" are those of a rebuild", func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			for i := range charges {
				f.open(fmt.Sprintf("ch_%d", i))
			}
			f.project(2 * charges)
			f.restore(muchHigher)
			f.repair()
			f.wantProjected(0)
		})
	}

	t.Run("a repair that fails changes nothing", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.open("ch_1")
		f.restore(muchHigher)
		f.exec(`alter table audit_progress add constraint broken check (fence = 0)`)
		if _, err := restore.Repair(t.Context(), f.db); err == nil || !f.foreign() {
			t.Errorf("the error is %v, foreign still: %t", err, f.foreign())
		}
		f.wantGuarded()
	})

	t.Run("empty tables are not foreign, and a lost mark is", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		if f.foreign() {
			t.Error("empty tables are foreign")
		}
		f.exec(`truncate numbering_mark`)
		if !f.foreign() {
			t.Error("tables without a mark are not foreign")
		}
		f.repair()
	})
}

// TestRepairOfARestoreBehind: a server that counts higher than the dump, and one that has
// come to count as high, are not told by the numbers. Until the repair nothing is folded.
func TestRepairOfARestoreBehind(t *testing.T) {
	t.Parallel()
	for name, higher := range map[string]string{
		"a server that counts higher":      "",
		"a server that counts as high now": "300",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			known := f.open("ch_1")
			f.project(2)
			f.restore(higher)
			since := f.open("ch_since")
			f.exec(`do $$ begin for i in 1..400 loop perform pg_current_xact_id(); commit; end loop; end $$`)
			late := f.open("ch_late")

			if n, err := restore.ReadNumbering(t.Context(), f.db); err != nil || n.Own || !n.Foreign() || n.Newest >= n.Next {
				t.Errorf("the numbers are %+v: %v", n, err)
			}
			if n, err := ledger.AddUp(t.Context(), f.db); n != 0 || err != nil {
				t.Errorf("%d events were folded: %v", n, err)
			}
			f.repair()
			f.wantProjected(4)
			r := f.read()
			r.wantNext(t, ids(known, since, late)...)
			r.wantNone(t)
		})
	}
}

// TestRestore_deliversEveryMessageOfTheDumpAgain: a dump has messages in the outbox that the inbox of
// the dump has received, and others. Each is delivered, and its handler has run once in the end.
func TestRestore_deliversEveryMessageOfTheDumpAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`create table handled (message_id text not null)`)
	received, waiting := f.open("ch_received"), f.open("ch_waiting")
	p, err := inbox.New(inbox.Options{DB: f.db, Receiver: "letters", Handle: func(ctx context.Context, d *inbox.Delivery) error {
		b := &pgx.Batch{}
		b.Queue(`insert into handled values ($1)`, d.ID)
		return d.Commit(ctx, f.db, b)
	}})
	testdb.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var programs sync.WaitGroup
	from := outbox.NewSubscriber(f.db.Pool(), outbox.Options{})
	defer func() {
		stop()
		programs.Wait()
		testdb.Must(t, from.Close())
	}()
	run := func(program func() error) {
		programs.Go(func() {
			if err := program(); err != nil {
				t.Error(err)
			}
		})
	}
	run(func() error { return p.Run(ctx) })
	for _, e := range received.Events { // whose deletion from the outbox the dump does not have
		_, err := p.Receive(t.Context(), inbox.Message{ID: e.ID.String(), Type: e.Type, OrderingKey: received.ID})
		testdb.Must(t, err)
	}
	await.Row(t, f.db, `select count(*) = 2 from inbox where status = 'done'`)
	const stored = `
select (select string_agg(e::text, ',' order by position) from ledger_events e)
    || (select string_agg(concat_ws(' ', id, status, attempts, fence, done_fence, finished_at), ',' order by id) from inbox where ordering_key = 'ch_received')`

	f.restore("")
	before := testdb.One[string](t, f.db, stored)
	run(func() error { return p.Consume(ctx, from, topic, nil) })
	await.Row(t, f.db, `select not exists (select from outbox) and not exists (select from inbox where status <> 'done')`)
	all := ids(received, waiting)
	slices.Sort(all)
	testrun.Same(t, "handled", all, testdb.All[string](t, f.db, `select message_id from handled order by message_id collate "C"`))
	testrun.Same(t, "delivered again", []string{"ch_received", "ch_received"}, testdb.All[string](t, f.db, `select ordering_key from inbox where duplicates = 1`))

	testrun.Same(t, "what was stored", before, testdb.One[string](t, f.db, stored))

	f.repair()
	f.wantProjected(4)
	testrun.Same(t, "handled after the repair", len(all), testdb.One[int](t, f.db, `select count(*)::int from handled`))
}

// TestRepairKilled ends the session of a repair where it has written one of the tables.
func TestRepairKilled(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"ledger_events", "followers", "audit_progress", "numbering_mark"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.capture(f.open("ch_1"))
			f.restore(muchHigher)
			before := f.numbers()
			f.exec(fmt.Sprintf(`
create function die() returns trigger language plpgsql as $$
begin
  perform pg_terminate_backend(pg_backend_pid());
  return null;
end $$;
create trigger die after update on %s for each statement execute function die()`, table))
			if _, err := restore.Repair(t.Context(), f.db); err == nil {
				t.Fatal("it passed")
			}
			f.exec(`drop trigger die on ` + table)
			if after := f.numbers(); before != after || !f.foreign() {
				t.Errorf("before %s, after %s, foreign still: %t", before, after, f.foreign())
			}
			f.wantGuarded()
			f.repair()
			f.wantProjected(4)
		})
	}
}

// numbers are all transactions that are stored.
func (f fixture) numbers() string {
	f.t.Helper()
	return testdb.One[string](f.t, f.db, `
select concat_ws(' ',
         (select string_agg(txid::text, ',' order by position) from ledger_events),
         (select string_agg(txid::text, ',' order by name) from followers))`)
}

// TestRepairBesideTraffic: programs lock the tables in another order than a repair, which
// must give up a try rather than deadlock with them.
func TestRepairBesideTraffic(t *testing.T) {
	testdb.Long(t, "it repairs under load")
	t.Parallel()
	f := newFixture(t)
	r := f.read()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	committed := make(chan []ledger.Stream)
	const writers = 6
	for writer := range writers {
		go func() {
			var own []ledger.Stream
			defer func() { committed <- own }()
			for ctx.Err() == nil {
				own = append(own, f.open(fmt.Sprintf("ch_%d_%d", writer, len(own))))
			}
		}()
	}
	for range 5 {
		if _, err := restore.Repair(t.Context(), f.db); err != nil {
			t.Errorf("repair beside traffic: %v", err)
		}
	}
	stop()
	var all []ledger.Stream
	for range writers {
		all = append(all, <-committed...)
	}
	if len(all) == 0 {
		t.Fatal("nothing was committed")
	}
	unread := map[string]bool{}
	for _, id := range ids(all...) {
		unread[id] = true
	}
	await.Progress(t, "every message was delivered, once or more", func() (string, bool) {
		for _, id := range r.take(t, 0) {
			delete(unread, id)
		}
		return strconv.Itoa(len(unread)), len(unread) == 0
	})
	f.wantProjected(2 * len(all))
}

// TestRepairIsRefusedByALongReader: while another transaction reads a table for minutes, as
// a dump does, a repair gives up each try, and the programs continue. One that is stopped
// meanwhile has changed nothing.
func TestRepairIsRefusedByALongReader(t *testing.T) {
	testdb.Long(t, "it waits for a lock")
	t.Parallel()
	f := newFixture(t)
	f.open("ch_1")
	f.restore(muchHigher)
	reading, err := f.db.Pool().Begin(t.Context())
	testdb.Must(t, err)
	defer func() { _ = reading.Rollback(context.WithoutCancel(t.Context())) }()
	testdb.Exec(t, reading, `lock table followers in access share mode`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := restore.Repair(ctx, f.db)
		ended <- err
	}()
	for n := range 3 {
		await.Blocked(t, f.db, 1)
		f.open(fmt.Sprintf("ch_meanwhile_%d", n))
	}
	cancel()
	if err := await.Receive(t, "the end of the repair", ended); !errors.Is(err, context.Canceled) || !f.foreign() {
		t.Errorf("the repair ended with %v, foreign still: %t", err, f.foreign())
	}
}

// TestRepairDuringAutovacuum: the server vacuums what has just been restored. It gives way
// only to a transaction that waits for a table for deadlock_timeout.
func TestRepairDuringAutovacuum(t *testing.T) {
	testdb.Long(t, "it waits for seconds")
	t.Parallel()
	server := testdb.Server(t, local.Options{InMemory: true, Settings: map[string]string{"autovacuum_naptime": "1s"}})
	f := fixture{t, testdb.Connect(t, testdb.Migrated(t, server, "service"))}
	// A page takes a tenth of a second and more.
	f.exec(`
alter table ledger_events set (
  autovacuum_vacuum_insert_threshold = 0, autovacuum_vacuum_insert_scale_factor = 0,
  autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1);
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || n, 1, 'none', 1, 'acme', jsonb_build_object('x', repeat(md5(n::text), 50)), '{}', now()
  from generate_series(1, 5000) n`)
	f.restore("")
	await.Row(t, f.db, `select exists (select from pg_stat_progress_vacuum where relid = 'ledger_events'::regclass)`)
	ctx, cancel := context.WithTimeout(t.Context(), await.Stall)
	defer cancel()
	began := time.Now()
	if done, err := restore.Repair(ctx, f.db); err != nil || done.Events != 5000 || f.foreign() {
		t.Errorf("after %v: repaired %+v, foreign still: %t: %v", time.Since(began), done, f.foreign(), err)
	}
}
