package upkeep_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
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

// commit appends events of one charge.
func (f fixture) commit(s ledger.Stream, events ...domain.Event) ledger.Stream {
	f.t.Helper()
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, ledger.Cause{Actor: "test"}, events...)
	testdb.Must(f.t, err)
	err = f.db.Commit(f.t.Context(), b)
	for groupcommit.OutcomeOf(err).Retryable() { // beside a repair
		err = f.db.Commit(f.t.Context(), b)
	}
	testdb.Must(f.t, err)
	return next
}

// open commits the first two events of a charge.
func (f fixture) open(id string) ledger.Stream {
	f.t.Helper()
	return f.commit(ledger.New(id),
		domain.ChargeRequested{Terms: domain.Terms{
			MerchantID: "acme", OrderID: id,
			Money: domain.Money{Amount: 1000, Currency: "USD"}, PaymentMethod: "pm_card_visa",
		}, Steps: []string{domain.Payment}},
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_" + id})
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
	b := &pgx.Batch{}
	_, err := ledger.Append(b, ledger.New(id), ledger.Cause{Actor: "test"},
		domain.ChargeRequested{Terms: domain.Terms{
			MerchantID: "acme", OrderID: id,
			Money: domain.Money{Amount: 1000, Currency: "USD"}, PaymentMethod: "pm_card_visa",
		}, Steps: []string{domain.Payment}})
	testdb.Must(f.t, err)
	tx := testdb.Begin(f.t, f.db.Pool(), `select 1`)
	testdb.Must(f.t, tx.SendBatch(f.t.Context(), b).Close())
	testdb.Must(f.t, tx.Rollback(f.t.Context()))
}

// numbers are the order numbers of all events and followers.
func (f fixture) numbers() string {
	f.t.Helper()
	return testdb.One[string](f.t, f.db, `
select concat_ws(' ', (select string_agg(concat_ws(' ', txid, position), ',' order by position) from ledger_events),
                      (select string_agg(concat_ws(' ', txid, position), ',' order by name) from followers))`)
}

// capture commits two more.
func (f fixture) capture(s ledger.Stream) ledger.Stream {
	f.t.Helper()
	return f.commit(s, domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_" + s.ID, Amount: 1000, Currency: "USD"}, domain.ChargeSucceeded{})
}

// restore makes the tables ones that came through a dump.
func (f fixture) restore() {
	f.t.Helper()
	f.exec(`update restore_mark set written_in = written_in`)
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
