package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

const previousExists = "ledger_events_previous_exists"

// TestAppend_continuesItsStream: an event follows the event before it, of the same merchant.
func TestAppend_continuesItsStream(t *testing.T) {
	t.Parallel()

	t.Run("refuses a decision on events that the database does not have", func(t *testing.T) {
		t.Parallel()
		for _, left := range []int{0, 1} {
			t.Run(fmt.Sprintf("of two there are %d", left), func(t *testing.T) {
				t.Parallel()
				primary, promoted := testdb.Open(t), testdb.Open(t)
				s := appended(t, primary, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")[:2]...)
				if left > 0 {
					appended(t, promoted, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")[:left]...)
				}
				_, err := try(t, promoted, s, because("b"), paid("acme", "pi_1")[2:]...)
				if !ledger.IsConflict(err) || postgres.Constraint(err) != previousExists {
					t.Errorf("the error is %v, want a conflict by %s", err, previousExists)
				}
				if n := collect[int](t, promoted, `select count(*) from ledger_events`)[0]; n != left {
					t.Errorf("there are %d events, want %d", n, left)
				}
			})
		}
	})

	t.Run("accepts several events of a stream in one statement, in whatever order", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		const row = `(gen_random_uuid(), 'ch_%s', %d, 'x', 1, 'acme', '{}', '{}', now())`
		var rows []string
		for version := 9; version > 0; version-- {
			for _, stream := range []string{"a", "b", "c"} {
				rows = append(rows, fmt.Sprintf(row, stream, version))
			}
		}
		insert := `
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values `
		if _, err := db.Pool().Exec(t.Context(), insert+strings.Join(rows, ", ")); err != nil {
			t.Fatal(err)
		}
		if n := collect[int](t, db, `select count(*) from ledger_events where previous_version is not distinct from nullif(version - 1, 0)`)[0]; n != 27 {
			t.Errorf("%d events name the one before them, want 27", n)
		}
		_, err := db.Pool().Exec(t.Context(), insert+fmt.Sprintf(row, "a", 10)+", "+fmt.Sprintf(row, "a", 12))
		if postgres.Constraint(err) != previousExists {
			t.Errorf("a gap in one statement: %v, want %s", err, previousExists)
		}
	})

	// The events of several charges share a statement, so each commit here has several
	// streams, each with several events.
	t.Run("accepts streams that share their commits", func(t *testing.T) {
		t.Parallel()
		db, err := postgres.Open(t.Context(), testdb.URL(t), postgres.Options{
			Application: t.Name(), Writes: groupcommit.NewOrder(ledger.Writes()...), SharedCommits: 1, AllowPlaintext: true, AllowUnsafeDurability: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		const streams = 64
		errs := make(chan error, streams)
		for i := range streams {
			go func() {
				b := &pgx.Batch{}
				_, err := ledger.Append(b, ledger.New(fmt.Sprintf("ch_%d", i)), because("a"), paid("acme", fmt.Sprintf("pi_%d", i))...)
				if err == nil {
					err = db.Commit(t.Context(), b)
				}
				errs <- err
			}()
		}
		for range streams {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		var commits, events int
		err = db.QueryRow(t.Context(), `select count(distinct txid), count(*) from ledger_events`).Scan(&commits, &events)
		if err != nil || events != streams*4 || commits >= streams {
			t.Errorf("%d events in %d commits, want %d in fewer than %d: %v", events, commits, streams*4, streams, err)
		}
	})

	t.Run("keeps the api from joining a charge of another merchant", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")...)
		api := testdb.As(t, db, postgres.RoleAPI)
		insert := func(merchant, owner string, version int) error {
			b := &pgx.Batch{}
			b.Queue(`
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_1', $1, 'refund.requested.v1', 1, $2, '{"refund_id":"re_1","amount":1000}', '{}', now())`, version, owner)
			return api.Tenant(merchant).Commit(t.Context(), b)
		}
		for version := 1; version <= 7; version++ {
			err := insert("globex", "globex", version)
			want := previousExists
			if version == 1 {
				want = "ledger_events_one_beginning"
			}
			if postgres.Constraint(err) != want {
				t.Errorf("version %d: %v, want it refused by %s", version, err, want)
			}
		}
		var refusal *pgconn.PgError
		if err := insert("globex", "acme", 5); !errors.As(err, &refusal) || refusal.Code != "42501" {
			t.Errorf("in the owner's name: %v, want 42501", err)
		}
		if err := insert("acme", "acme", 5); err != nil {
			t.Errorf("the owner itself: %v", err)
		}
	})
}

// TestFindByPaymentIntent_readsOneIndexEntry: the collation of the index is that of the
// comparison in the function, else it reads every event.
func TestFindByPaymentIntent_readsOneIndexEntry(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for i := range 50 {
		appended(t, db, ledger.New(fmt.Sprintf("ch_%d", i)), because("a"), paid("acme", fmt.Sprintf("pi_%d", i))...)
	}
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	// Where there is an index, it is used, however few events there are.
	if _, err := tx.Exec(t.Context(), `set local enable_seqscan = off`); err != nil {
		t.Fatal(err)
	}
	owner, err := ledger.FindByPaymentIntent(t.Context(), tx, "stripe", "pi_7")
	if err != nil || owner.StreamID != "ch_7" {
		t.Fatalf("%v: %v", owner, err)
	}
	var entries int
	if err := tx.QueryRow(t.Context(), `select pg_stat_get_xact_tuples_returned('ledger_events_one_capture_per_reference'::regclass)`).Scan(&entries); err != nil || entries != 1 {
		t.Errorf("it read %d entries of the index, want 1: %v", entries, err)
	}
}
