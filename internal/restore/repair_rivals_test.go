package restore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// traffic commits charges as programs do, event before message, until it is
// stopped, and returns what was committed.
func (k books) traffic(writers int) (stop func() []ledger.Stream) {
	k.Helper()
	ctx, cancel := context.WithCancel(k.Context())
	var all sync.WaitGroup
	var mu sync.Mutex
	var done []ledger.Stream
	var tried atomic.Int64
	for range writers {
		all.Go(func() {
			for ctx.Err() == nil {
				b := &pgx.Batch{}
				s, err := ledger.Append(b, ledger.New(fmt.Sprintf("ch_%d", tried.Add(1))), ledger.Cause{Actor: "test"},
					domain.ChargeRequested{MerchantID: "acme", OrderID: "o", Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa"})
				if err == nil {
					err = outbox.Append(b, outbox.Message{Topic: topic, ID: s.Head().ID.String(), Type: s.Head().Type, OrderingKey: s.ID})
				}
				if err == nil {
					err = k.db.Commit(ctx, b)
				}
				if err != nil {
					if !postgres.OutcomeOf(err).MayPass() {
						k.Error(err)
					}
					continue
				}
				mu.Lock()
				done = append(done, s)
				mu.Unlock()
			}
		})
	}
	return func() []ledger.Stream {
		cancel()
		all.Wait()
		return done
	}
}

// TestRepairBesideTraffic: programs take their locks in another order than a
// repair would, so it must let go rather than wait in a circle with them.
func TestRepairBesideTraffic(t *testing.T) {
	testdb.Long(t, "it repairs under load")
	t.Parallel()
	k := newBooks(t)
	r := read(t, k.db)
	received := make(chan map[string]int)
	reading, enough := context.WithCancel(t.Context())
	go func() {
		seen := map[string]int{}
		defer func() { received <- seen }()
		for {
			select {
			case page := <-r.pages:
				if page == nil {
					return
				}
				all, err := outbox.Messages(page)
				if err != nil {
					t.Error(err)
				}
				for _, id := range named(all) {
					seen[id]++
				}
				page.Ack()
			case <-reading.Done():
				return
			}
		}
	}()
	stop := k.traffic(6)
	for range 5 {
		began := time.Now()
		if _, err := restore.Repair(t.Context(), k.db); err != nil {
			t.Errorf("repair beside traffic: %v", err)
		}
		t.Logf("a repair took %v", time.Since(began))
	}
	committed := stop()
	if len(committed) == 0 {
		t.Fatal("nothing was committed")
	}
	await.Row(t, k.db, `
select not exists (
         select
           from outbox m
           join outbox_offsets o
             on o.topic = m.topic
          where (m.transaction_id, m."offset") > (o.transaction_id, o."offset"))`)
	enough()
	seen := <-received
	for _, s := range committed {
		if seen[s.Head().ID.String()] == 0 {
			t.Errorf("%s was committed and never delivered", s.ID)
		}
	}
	k.wantProjected(len(committed))
}

// TestRepairKilled: its session ends at any of its statements, and nothing has
// changed.
func TestRepairKilled(t *testing.T) {
	t.Parallel()
	for _, held := range []string{"outbox_offsets", "ledger_events", "inbox", "projections", "numbering_mark"} {
		t.Run(held, func(t *testing.T) {
			t.Parallel()
			k := newBooks(t)
			k.capture(k.open("ch_1"))
			k.restore()
			before := k.numbers()
			// A trigger stands where the table is written, and ends the session.
			k.exec(fmt.Sprintf(`
create function die() returns trigger language plpgsql as $$
begin
  perform pg_terminate_backend(pg_backend_pid());
  return null;
end $$;
create trigger die after update on %s for each statement execute function die()`, held))
			if held == "outbox_offsets" || held == "inbox" {
				k.exec(`insert into outbox_offsets (topic, consumer_group, transaction_id, "offset") values ('x', 'g', '1', 1)`)
			}
			if _, err := restore.Repair(t.Context(), k.db); err == nil {
				t.Fatal("it passed")
			}
			k.exec(`drop trigger die on ` + held)
			if after := k.numbers(); before != after || !k.foreign() {
				t.Errorf("before %s, after %s, foreign still: %t", before, after, k.foreign())
			}
			if _, err := k.db.Pool().Exec(t.Context(), `update ledger_events set txid = '1'`); err == nil {
				t.Error("the ledger is not guarded any more")
			}
			k.repair()
			k.wantProjected(4)
		})
	}
}

// numbers are all transactions that are stored.
func (k books) numbers() string {
	k.Helper()
	var all string
	err := k.db.QueryRow(k.Context(), `
select concat_ws(' ',
         (select string_agg(txid::text, ',' order by position) from ledger_events),
         (select string_agg(transaction_id::text, ',' order by "offset") from outbox),
         (select string_agg(received_in::text, ',' order by id) from inbox),
         (select string_agg(txid::text, ',' order by generation) from projections))`).Scan(&all)
	if err != nil {
		k.Fatal(err)
	}
	return all
}

// TestRepairIsRefusedByALongReader: a repair lets go of its locks again and again while
// somebody reads a table for minutes, as a dump does, and the programs go on. Ended
// meanwhile, it has changed nothing.
func TestRepairIsRefusedByALongReader(t *testing.T) {
	testdb.Long(t, "it waits for a lock")
	t.Parallel()
	k := newBooks(t)
	k.open("ch_1")
	k.restore()
	reading := begin(t, k.db)
	if _, err := reading.Exec(t.Context(), `lock table inbox in access share mode`); err != nil {
		t.Fatal(err)
	}
	tries := &locks{}
	its, err := postgres.Open(t.Context(), k.db.Pool().Config().ConnString(), postgres.Options{Tracer: tries, AllowPlaintext: true, AllowUnsafeDurability: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(its.Close)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() {
		_, err := restore.Repair(ctx, its)
		ended <- err
	}()
	for n := range 3 {
		before := tries.n.Load()
		k.open(fmt.Sprintf("ch_meanwhile_%d", n))
		await.True(t, "the repair tries to lock the tables", func() bool { return tries.n.Load() > before })
	}
	enough := errors.New("enough")
	refused := func() { cancel(enough) }
	tries.refused.Store(&refused)
	if err := await.Receive(t, "the end of the repair", ended); !errors.Is(err, enough) || !strings.Contains(err.Error(), "lock timeout") || !k.foreign() {
		t.Errorf("the repair ended with %v, foreign still: %t", err, k.foreign())
	}
}

// locks counts the tries of a repair to lock its tables.
type locks struct {
	n       atomic.Int64
	refused atomic.Pointer[func()] // called when a try has failed
}

type trying struct{}

func (l *locks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(d.SQL, "lock table") {
		return ctx
	}
	l.n.Add(1)
	return context.WithValue(ctx, trying{}, true)
}

func (l *locks) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	if refused := l.refused.Load(); refused != nil && d.Err != nil && ctx.Value(trying{}) != nil {
		(*refused)()
	}
}

// TestSweepAfterARestore: what was accepted since lies below the offsets, and
// nobody has received it. It stays until the repair, and then until it was
// received.
func TestSweepAfterARestore(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	k := newBooks(t)
	k.open("ch_1")
	r := read(t, k.db)
	r.take(t, 2)
	r.stop()
	k.restore()
	since := k.open("ch_since")
	if n, err := outbox.Sweep(t.Context(), k.db, time.Nanosecond, 100); n != 0 || err != nil {
		t.Errorf("%d messages were swept: %v", n, err)
	}
	k.repair()
	if n, err := outbox.Sweep(t.Context(), k.db, time.Nanosecond, 100); n != 0 || err != nil {
		t.Errorf("%d messages were swept after the repair: %v", n, err)
	}
	r = read(t, k.db)
	got := r.take(t, 4)
	if want := ids(since); got[2] != want[0] || got[3] != want[1] {
		t.Errorf("read %v, want %v at last", got, want)
	}
	await.True(t, "all of them are swept", func() bool {
		_, err := outbox.Sweep(t.Context(), k.db, time.Nanosecond, 100)
		if err != nil {
			t.Fatal(err)
		}
		var left int
		if err := k.db.QueryRow(t.Context(), `select count(*) from outbox`).Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
}

// TestRepairThatComesLate: when the server has had as many transactions as the old
// one, the numbers do not tell the restore any more. It is told all the same, and
// until the repair nobody is passed over.
func TestRepairThatComesLate(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	k := newBooks(t)
	known := k.carried("ch_1")
	k.restoreBehind()
	k.exec(`
alter table ledger_events disable trigger user;
update ledger_events set txid = (pg_current_xact_id()::text::bigint + 300)::text::xid8;
alter table ledger_events enable trigger user;
update outbox set transaction_id = (pg_current_xact_id()::text::bigint + 300)::text::xid8;
update outbox_offsets set transaction_id = (pg_current_xact_id()::text::bigint + 300)::text::xid8;
update projections set txid = (pg_current_xact_id()::text::bigint + 300)::text::xid8, batch = batch + 1, after = batch`)
	since := k.open("ch_since") // below the offset
	k.exec(`do $$ begin for i in 1..400 loop perform pg_current_xact_id(); commit; end loop; end $$`)
	late := k.open("ch_late") // above it
	k.wantHeld()
	k.repair()
	k.wantOnce(known, since, late)
	k.wantProjected(4)
}

// TestRepairOfARestoreBehind: a server that counts higher than the dump is told,
// too. It might be behind one day, and whoever looks at the numbers could not know.
func TestRepairOfARestoreBehind(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	k := newBooks(t)
	known := k.carried("ch_1")
	unread := k.open("ch_2")
	k.restoreBehind()
	since := k.open("ch_since")
	k.wantHeld()
	k.repair()
	k.wantOnce(known, unread, since)
	k.wantProjected(4)
}

// TestRebuildBeforeARepair is refused: of a dump from a server that counted higher
// it would see nothing, and try for ever to come as far as the live projections.
func TestRebuildBeforeARepair(t *testing.T) {
	t.Parallel()
	for name, restored := range map[string]func(books){
		"of a server that counted higher": books.restore,
		"of a server that counted lower":  books.restoreBehind,
		"of data without the mark": func(k books) {
			k.exec(`update projections set txid = (pg_current_xact_id()::text::bigint + 1000000000)::text::xid8, batch = batch + 1, after = batch`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newBooks(t)
			k.open("ch_1")
			k.project(2)
			restored(k)
			k.open("ch_since")
			ctx, cancel := context.WithTimeout(t.Context(), await.Stall)
			defer cancel()
			if found, err := ledger.Rebuild(ctx, k.db, nil); !errors.Is(err, ledger.ErrRestored) {
				t.Errorf("it found %+v: %v", found, err)
			}
			k.repair()
			k.wantProjected(2)
		})
	}
}

// carried is a stream that was folded and received.
func (k books) carried(id string) ledger.Stream {
	k.Helper()
	s := k.open(id)
	k.project(2)
	r := read(k.T, k.db)
	r.take(k.T, 2)
	r.stop()
	return s
}

// wantHeld wants a restore to be told, and nobody to receive, sweep or fold.
func (k books) wantHeld() {
	k.Helper()
	if n, err := restore.ReadNumbering(k.Context(), k.db); err != nil || n.Own || !n.Foreign() || n.Newest >= n.Next {
		k.Errorf("the numbers are %+v: %v", n, err)
	}
	k.exec(`
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence, finished_at, received_in)
values ('r', 'old', 'k', 't', '', '{}', '', 'done', 0, '-infinity', '3')`)
	r := read(k.T, k.db)
	r.wantNone(k.T)
	r.stop()
	if n, err := outbox.Sweep(k.Context(), k.db, 0, 100); n != 0 || err != nil {
		k.Errorf("%d messages were swept: %v", n, err)
	}
	if n, err := inbox.Sweep(k.Context(), k.db, 0, 100); n != 0 || err != nil {
		k.Errorf("%d messages were forgotten: %v", n, err)
	}
	if n, err := ledger.Project(k.Context(), k.db); n != 0 || err != nil {
		k.Errorf("%d events were folded: %v", n, err)
	}
}

// wantOnce wants each message of the streams to be delivered once, and then to be
// swept.
func (k books) wantOnce(streams ...ledger.Stream) {
	k.Helper()
	if k.foreign() {
		k.Error("it is foreign after the repair")
	}
	want := ids(streams...)
	r := read(k.T, k.db)
	got := r.take(k.T, len(want))
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		k.Errorf("messages (-want +got):\n%s", diff)
	}
	r.wantNone(k.T)
	r.stop()
	swept := 0
	await.True(k.T, "all of them are swept", func() bool {
		n, err := outbox.Sweep(k.Context(), k.db, 0, 100)
		if err != nil {
			k.Fatal(err)
		}
		swept += n
		return swept == len(want)
	})
}
