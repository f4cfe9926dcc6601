package upkeep_test

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/internal/upkeep"
	"github.com/payonce/payonce/ledger"
)

// TestRepair moves a database by dumps: into a server that counts higher, into one that counts lower, and
// back.
func TestRepair(t *testing.T) {
	testrun.Long(t, "it starts servers, and makes dumps")
	t.Parallel()
	if _, err := exec.LookPath("pg_dump"); err != nil {
		t.Skip("not run: there is no pg_dump")
	}
	low, high := newServer(t, 1), newServer(t, 5000)
	f := fixture{t, testdb.Connect(t, testdb.Migrated(t, low, "first"))}
	f.exec(`insert into merchants (merchant_id) values ('acme')`)
	f.capture(f.open("ch_whole"))
	f.add(4)
	added, cursor := int64(4), f.follow("", 1)
	last := f.open("ch_half") // is not added up

	for n, to := range []*local.Server{high, low, high} {
		before := f.numbers()
		file := filepath.Join(t.TempDir(), "dump")
		tool(t, "pg_dump", "--format=custom", "--file="+file, f.db.Pool().Config().ConnString())
		url := to.URL(fmt.Sprint("moved_", n))
		testdb.Exec(t, testdb.Session(t, to.URL("postgres")), fmt.Sprint("create database moved_", n))
		tool(t, "pg_restore", "--exit-on-error", "--no-owner", "--dbname="+url, file)

		living := fixture{t, testdb.OpenAt(t, url, postgres.Options{MaxConns: 1})} // its session lives through the repair
		if living.original() {
			t.Fatalf("move %d: the restore is not seen", n)
		}
		if _, err := postgres.Open(t.Context(), url, postgres.Options{
			CheckSession: upkeep.CheckSession(), AllowPlaintext: true,
			AllowUnsafeDurability: true,
		}); !errors.Is(err, upkeep.ErrRestored) || err.Error() != upkeep.ErrRestored.Error() {
			t.Errorf("move %d: a program opens it: %v", n, err)
		}
		living.plan(fmt.Sprint("ch_planned_", n))
		living.add(0)
		f = fixture{t, testdb.Connect(t, url)}
		testrun.Same(t, "the epoch", int64(n+1), f.repair())
		testrun.Same(t, "what was restored", before, f.numbers())

		last = living.capture(last)
		if e := testdb.One[int64](t, f.db, `select min(txid::text::bigint) >> 48 from ledger_events where stream_id = $1 and version > 2`, last.ID); e != int64(n+1) {
			t.Errorf("move %d: a session that lived through the repair writes in epoch %d", n, e)
		}
		cursor = f.follow(cursor, 1)
		living.add(4)
		added += 4
		f.wantAdded(added)
		last = f.open(fmt.Sprint("ch_half_", n))
	}
	outcomes := testdb.All[string](t, f.db, `select stream_id from ledger_events where type = 'charge.succeeded.v1' order by txid, position`)
	testrun.Same(t, "the order of outcomes", []string{"ch_whole", "ch_half", "ch_half_0", "ch_half_1"}, outcomes)
}

// newServer starts a server that has counted so many transactions, with the roles.
func newServer(t *testing.T, transactions int) *local.Server {
	t.Helper()
	s := testrun.Server(t, local.Options{InMemory: true})
	count := fmt.Sprintf(`do $$ begin for i in 1..%d loop perform pg_current_xact_id(); commit; end loop; end $$`, transactions)
	testdb.Exec(t, testdb.Session(t, testdb.Migrated(t, s, "admin")), count)
	return s
}

func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// TestRepair_mayBeRepeated, and where nothing was restored.
func TestRepair_mayBeRepeated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.capture(f.open("ch_1"))
	f.add(4)
	for n := range 2 {
		testrun.Same(t, "the epoch", int64(n+1), f.repair())
		f.add(0)
		f.wantAdded(4)
	}
	f.exec(`truncate restore_mark`)
	f.repair()
	f.exec(`alter table ledger_events disable trigger user; update ledger_events set txid = '9000000000000000000'; alter table ledger_events enable trigger user`)
	if f.original() {
		t.Error("an event of a transaction that the server has not had is its own")
	}
}

// TestRepair_raisesSequences: after logical replication they are behind the rows. Others stay, also above the rows:
// a transaction that is open may have such a value.
func TestRepair_raisesSequences(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("ch_1")
	f.exec(`insert into outbox (topic, message_id, payload, metadata) values ('charges', 'm1', '', '{}'), ('charges', 'm2', '', '{}')`)
	f.exec(`alter table outbox alter column id restart; alter table ledger_events alter column position restart;
		alter table inbox alter column id restart with 77`)
	before := testdb.One[int64](t, f.db, `select nextval(pg_get_serial_sequence('inbox', 'id'))`)
	f.repair()
	testrun.Same(t, "the next value of a sequence that is not behind", before+1,
		testdb.One[int64](t, f.db, `select nextval(pg_get_serial_sequence('inbox', 'id'))`))
	f.open("ch_2")
	f.exec(`insert into outbox (topic, message_id, payload, metadata) values ('charges', 'm3', '', '{}')`)
	testrun.Same(t, "ids", "true true", testdb.One[string](t, f.db, `
select (select max(id) = (select id from outbox where message_id = 'm3') from outbox) || ' '
    || (select min(position) filter (where stream_id = 'ch_2') > max(position) filter (where stream_id = 'ch_1') from ledger_events)`))
}

// TestRepair_waitsForWriters: an event whose transaction began before the repair is below the next epoch, and no
// reader passes it.
func TestRepair_waitsForWriters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	open := f.open("ch_1")
	tx := testdb.Begin(t, f.db.Pool(), `select 1`)
	b := &pgx.Batch{}
	if _, err := ledger.Append(b, open, ledger.Cause{CausationID: "late"}, domain.ChargeCancelRequested{}); err != nil {
		t.Fatal(err)
	}
	testdb.Must(t, tx.SendBatch(t.Context(), b).Close())
	repaired := make(chan error, 1)
	go func() {
		_, err := upkeep.Repair(t.Context(), f.db)
		repaired <- err
	}()
	testrun.Row(t, f.db, `select exists (select from pg_locks where relation = 'ledger_events'::regclass and not granted)`)
	testdb.Must(t, tx.Commit(t.Context()))
	testdb.Must(t, testrun.Receive(t, "the repair", repaired))
	f.open("ch_2")
	testrun.Same(t, "the order of epochs", []string{"ch_1 0", "ch_1 0", "ch_1 0", "ch_2 1", "ch_2 1"},
		testdb.All[string](t, f.db, `select stream_id || ' ' || (txid::text::bigint >> 48) from ledger_events order by txid, position`))
}

// TestRepairKilled ends the session of a repair where it has raised the epoch, and writes the mark.
func TestRepairKilled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open("ch_1")
	f.exec(`update restore_mark set written_in = written_in`) // as a dump leaves it
	f.exec(`
create function die() returns trigger language plpgsql as $$
begin
  perform pg_terminate_backend(pg_backend_pid());
  return null;
end $$;
create trigger die after update on restore_mark for each statement execute function die()`)
	if _, err := upkeep.Repair(t.Context(), f.db); err == nil {
		t.Fatal("it passed")
	}
	f.exec(`drop trigger die on restore_mark`)
	if epoch := testdb.One[int64](t, f.db, `select ledger_epoch()`); epoch != 0 || f.original() {
		t.Errorf("the epoch is %d, original: %t", epoch, f.original())
	}
	testrun.Same(t, "the epoch", int64(1), f.repair())
	f.add(2)
}
