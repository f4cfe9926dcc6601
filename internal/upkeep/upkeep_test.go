package upkeep_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

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
	testrun.Long(t, "it needs a database")
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

func TestBind(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	db := testdb.Open(t)
	var wg sync.WaitGroup
	refused := make([]error, 2)
	for i, account := range []string{"acct_1", "acct_2"} {
		wg.Go(func() { refused[i] = upkeep.Bind(t.Context(), db, account, false) })
	}
	wg.Wait()
	bound, other := "acct_1", "acct_2"
	if refused[0] != nil {
		bound, other = other, bound
	}
	if one := errors.Join(refused...); !errors.Is(one, upkeep.ErrOtherAccount) || (refused[0] == nil) == (refused[1] == nil) {
		t.Fatalf("of two workers that are first at once, one binds the database and the other is refused: %v", refused)
	}
	for name, test := range map[string]struct {
		account string
		live    bool
		want    error
	}{
		"the same account": {bound, false, nil},
		"another account":  {other, false, upkeep.ErrOtherAccount},
		"live mode":        {bound, true, upkeep.ErrOtherAccount},
	} {
		if err := upkeep.Bind(t.Context(), db, test.account, test.live); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

const window = 2 * time.Hour // for which messages of the inbox are kept

// start runs a job until the test ends.
func start(t *testing.T, db *postgres.DB, log *testrun.Log) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		upkeep.DeleteExpired(ctx, db, slog.New(slog.NewTextHandler(log, nil)), window)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		testrun.Receive(t, "the end of the job", ended)
	})
}

// fill writes 1,200 rows that have expired into every table, and one that has not,
// nor will while the test runs.
func fill(t *testing.T, db *postgres.DB) {
	t.Helper()
	for _, sql := range []string{
		`insert into idempotency_keys (scope, operation, key, fingerprint, status_code, body, expires_at)
			select 'acme', 'o', n::text, '', 202, '{}', clock_timestamp() + (n - 1200) * interval '1 hour' from generate_series(1, 1201) n`,
		`insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence, finished_at)
			select 'r', n, n, 't', '', '{}', '', 'done', 0, clock_timestamp() + (n - 1202) * interval '1 hour' from generate_series(1, 1201) n`,
	} {
		testdb.Exec(t, db.Pool(), sql)
	}
}

// TestExpired: what has expired goes and no more, also by two at once. A table whose rows cannot be deleted
// holds up no other, and is tried again.
func TestExpired(t *testing.T) {
	testrun.Long(t, "it waits for seconds")
	t.Parallel()
	db, log := testdb.Reused(t), &testrun.Log{}
	fill(t, db)
	testdb.Exec(t, db.Pool(), `alter table inbox rename to elsewhere`)
	start(t, db, log)
	start(t, db, log)
	testrun.Row(t, db, `select count(*) = 1 from idempotency_keys where body is not null`)
	testrun.True(t, "the failure is logged", func() bool {
		return strings.Contains(log.String(), `level=WARN msg="expired rows are not deleted" error="delete done messages: `)
	})
	testdb.Exec(t, db.Pool(), `alter table elsewhere rename to inbox`)
	testrun.Row(t, db, `select count(*) = 1 from inbox`)
	if log := log.String(); strings.Count(log, "level=WARN") != strings.Count(log, `error="delete done messages: `) {
		t.Errorf("a table without a fault fails too:\n%s", log)
	}
	testrun.Row(t, db, `
		select max(n) <= 500
		  from (select count(*) as n from idempotency_keys where body is null group by xmin::text) as commits`)
}

func TestMain(m *testing.M) { testrun.Main(m) }
