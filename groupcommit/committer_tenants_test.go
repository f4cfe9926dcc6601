package groupcommit_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// diaries are a table of tenants, whose rows have the lock time-out under which they were written:
// the owner's pool of it, and the worker's.
func diaries(t *testing.T, o postgres.Options) (owner, db *postgres.DB) {
	t.Helper()
	address := testdb.URL(t)
	owner = testdb.OpenAt(t, address, postgres.Options{})
	testdb.Exec(t, owner.Pool(), `
create table diaries (
  merchant_id text,
  id          int,
  lock_wait   text default current_setting('lock_timeout')
);
alter table diaries enable row level security;
create policy tenant on diaries to payonce_worker using (merchant_id = current_setting('payonce.merchant', true));
grant select, insert on diaries to payonce_worker`)
	o.Role, o.Writes = postgres.RoleWorker, declared()
	return owner, testdb.OpenAt(t, address, o)
}

func note(id int) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(insertDiary, "acme", id)
	return b
}

// The settings of a batch hold for no other, and those of a group commit end with it.
func TestGroupCommit_keepsSettingsApart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		own           time.Duration
		shared, alone string
	}{
		{25 * time.Millisecond, "25ms", "25ms"},
		{5 * time.Second, "200ms", "5s"},
		{-1, "200ms", "0"},
	} {
		t.Run(test.own.String(), func(t *testing.T) {
			t.Parallel()
			owner, db := diaries(t, postgres.Options{LockTimeout: test.own})
			acme := db.Tenant("acme")
			setting := &pgx.Batch{}
			setting.Queue(`select set_config('lock_timeout', '7000', true)`)
			setting.QueuedQueries = append(setting.QueuedQueries, note(3).QueuedQueries...)
			reading := note(4)
			reading.QueuedQueries[0].Exec(func(pgconn.CommandTag) error { return nil })
			results, release := queueUnits(t, db.Committer(), committing(acme, note(1), note(2))...)
			wantNoErrors(t, []error{acme.Commit(t.Context(), setting), acme.Commit(t.Context(), reading)}) // they need no slot
			release()
			wantNoErrors(t, []error{<-results[0], <-results[1], acme.Commit(t.Context(), note(5))})
			want(t, owner, `select id || ' ' || lock_wait from diaries order by id`, "1 "+test.shared, "2 "+test.shared, "3 7s", "4 "+test.alone, "5 "+test.alone)
			want(t, db, `select count(*)::text from diaries`, "0") // the next transaction has no tenant
		})
	}
}
