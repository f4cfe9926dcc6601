package upkeep_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/internal/upkeep"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

// fixture is a database with charges and the sums of their postings.
type fixture struct {
	t  *testing.T
	db *postgres.DB
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	f := fixture{t, testdb.Open(t)}
	f.exec(`insert into merchants (merchant_id) values ('acme')`)
	return f
}

func (f fixture) exec(sql string) {
	f.t.Helper()
	testdb.Exec(f.t, f.db.Pool(), sql)
}

// open commits the first two events of a charge.
func (f fixture) open(id string) ledger.Stream {
	f.t.Helper()
	return testdb.Appended(f.t, f.db, ledger.New(id), testdb.Cause(""), testdb.Paid("acme", "pi_"+id)[:2]...)
}

// capture commits two more.
func (f fixture) capture(s ledger.Stream) ledger.Stream {
	f.t.Helper()
	return testdb.Appended(f.t, f.db, s, testdb.Cause(""), testdb.Paid("acme", "pi_"+s.ID)[2:]...)
}

// follow reads the feed of acme after a cursor until it has so many entries.
func (f fixture) follow(after string, entries int) (next string) {
	f.t.Helper()
	testrun.Progress(f.t, "the feed is read", func() (string, bool) {
		page, err := books.ReadFeed(f.t.Context(), f.db, "acme", after, 100)
		testdb.Must(f.t, err)
		next = page.Next
		return fmt.Sprintf("%s", page.Data), len(page.Data) == entries
	})
	return next
}

// plan lets the session plan what it is going to do, and writes nothing.
func (f fixture) plan(id string) {
	f.t.Helper()
	b, tx := &pgx.Batch{}, testdb.Begin(f.t, f.db.Pool(), `select 1`)
	_, err := ledger.Append(b, ledger.New(id), testdb.Cause(""), testdb.Requested("acme"))
	testdb.Must(f.t, errors.Join(err, tx.SendBatch(f.t.Context(), b).Close(), tx.Rollback(f.t.Context())))
}

// numbers are the order numbers of all events and followers.
func (f fixture) numbers() string {
	f.t.Helper()
	return testdb.One[string](f.t, f.db, `
select concat_ws(' ', (select string_agg(concat_ws(' ', txid, position), ',' order by position) from ledger_events),
                      (select string_agg(concat_ws(' ', txid, position), ',' order by name) from followers))`)
}

func (f fixture) original() bool {
	f.t.Helper()
	original, err := upkeep.IsOriginal(f.t.Context(), f.db)
	testdb.Must(f.t, err)
	return original
}

func (f fixture) repair() (epoch int64) {
	f.t.Helper()
	epoch, err := upkeep.Repair(f.t.Context(), f.db)
	if err != nil || !f.original() {
		f.t.Fatalf("repair: %v, original: %t", err, f.original())
	}
	return epoch
}

// add adds up so many events. Other tests' transactions on the same server hold them back for a moment.
func (f fixture) add(want int) {
	f.t.Helper()
	added := 0
	testrun.True(f.t, fmt.Sprintf("%d events are added", want), func() bool {
		n, err := books.AddUp(f.t.Context(), f.db)
		testdb.Must(f.t, err)
		added += n
		return added >= want
	})
	if n, err := books.AddUp(f.t.Context(), f.db); added+n != want || err != nil {
		f.t.Errorf("%d events were added, want %d: %v", added+n, want, err)
	}
}

// wantAdded wants the sums to be those of so many events.
func (f fixture) wantAdded(events int64) {
	f.t.Helper()
	found, err := books.Recount(f.t.Context(), f.db)
	if err != nil || found.Different != 0 || found.Events != events {
		f.t.Errorf("a recount found %+v: %v", found, err)
	}
}
