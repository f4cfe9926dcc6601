package groupcommit_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// diaries are a table whose rows have the settings under which they were written, the
// owner's pool of it, and the api's, of one slot.
func diaries(t *testing.T, o postgres.Options) (owner, api *postgres.DB) {
	t.Helper()
	address := testdb.URL(t)
	owner = testdb.OpenAt(t, address, postgres.Options{})
	testdb.Exec(t, owner.Pool(), `
create table diaries (
  merchant_id text,
  id          int,
  tenant      text default current_setting('payonce.merchant', true),
  lock_wait   text default current_setting('lock_timeout'),
  wrote_in    text default pg_current_xact_id()::text
);
alter table diaries enable row level security;
create policy tenant on diaries to payonce_api using (merchant_id = current_setting('payonce.merchant', true));
grant select, insert on diaries to payonce_api`)
	o.Role, o.Writes = postgres.RoleAPI, declared()
	return owner, testdb.OpenAt(t, address, o)
}

func note(merchant string, id int) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(insertDiary, merchant, id)
	return b
}

type diary struct {
	ID     int
	Tenant string
	Wait   string
	Alone  bool
}

// wantDiaries also checks that the next transaction on the connection has no merchant.
func wantDiaries(t *testing.T, owner, api *postgres.DB, want []diary) {
	t.Helper()
	rows, err := owner.Query(t.Context(), `
select id, coalesce(tenant, ''), lock_wait, count(*) over (partition by wrote_in) = 1
  from diaries
 order by id`)
	testdb.Must(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[diary])
	for i := range min(len(got), len(want)) {
		if want[i].Wait == "" { // it does not matter beside which others
			got[i].Wait, got[i].Alone = "", false
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, written (-want +got):\n%s", err, diff)
	}
	var seen int
	if err := api.QueryRow(t.Context(), `select count(*) from diaries`).Scan(&seen); err != nil || seen != 0 {
		t.Errorf("without a merchant %d rows are seen, %v", seen, err)
	}
}

func TestGroupCommit_writesEachBatchAsItsTenant(t *testing.T) {
	t.Parallel()
	type writing struct {
		tenant, merchant string
		refused          bool
	}
	for name, units := range map[string][]writing{
		"tenants in turn":             {{"acme", "acme", false}, {"globex", "globex", false}, {"acme", "acme", false}, {"globex", "globex", false}},
		"none after a tenant":         {{"acme", "acme", false}, {"", "acme", true}, {"globex", "globex", false}},
		"none first":                  {{"", "acme", true}, {"acme", "acme", false}, {"acme", "acme", false}},
		"a row of the tenant before":  {{"acme", "acme", false}, {"globex", "acme", true}, {"globex", "globex", false}},
		"only rows of one tenant":     {{"acme", "acme", false}, {"acme", "acme", false}, {"globex", "acme", true}},
		"a row of the tenant behind":  {{"acme", "acme", false}, {"acme", "globex", true}, {"globex", "globex", false}},
		"none, a tenant, none within": {{"acme", "acme", false}, {"", "acme", true}, {"acme", "acme", false}, {"", "globex", true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner, api := diaries(t, postgres.Options{})
			var committed []func(context.Context) error
			var want []diary
			wait := "200ms" // of a group commit
			if slices.ContainsFunc(units, func(u writing) bool { return u.refused }) {
				wait = ""
			}
			for i, u := range units {
				committed = append(committed, committing(api.Tenant(u.tenant), note(u.merchant, i))...)
				if !u.refused {
					want = append(want, diary{i, u.tenant, wait, false})
				}
			}
			for i, err := range together(t, api.Committer(), committed...) {
				if units[i].refused && testdb.Code(err) != "42501" || !units[i].refused && err != nil {
					t.Errorf("unit %d has the error %v", i, err)
				}
			}
			wantDiaries(t, owner, api, want)
		})
	}
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
			setting.QueuedQueries = append(setting.QueuedQueries, note("acme", 3).QueuedQueries...)
			reading := note("acme", 4)
			reading.QueuedQueries[0].Exec(func(pgconn.CommandTag) error { return nil })
			results, release := queueUnits(t, db.Committer(), committing(acme, note("acme", 1), note("acme", 2))...)
			wantNoErrors(t, []error{acme.Commit(t.Context(), setting), acme.Commit(t.Context(), reading)}) // they need no slot
			release()
			wantNoErrors(t, []error{<-results[0], <-results[1], acme.Commit(t.Context(), note("acme", 5))})
			wantDiaries(t, owner, db, []diary{
				{1, "acme", test.shared, false},
				{2, "acme", test.shared, false},
				{3, "acme", "7s", true},
				{4, "acme", test.alone, true},
				{5, "acme", test.alone, true},
			})
		})
	}
}

const insertRecord = `
insert into records
       (id, name, leg, amount, data, body, at)
values ($1, $2, $3, $4, $5, $6, coalesce($7, 'epoch'::timestamptz))`

const insertRecords = `
insert into records
       (id, name, leg, amount, data, body, at)
select id, name, leg, amount, data, body, coalesce(at, 'epoch'::timestamptz)
  from unnest($1::int[], $2::text[], $3::smallint[], $4::bigint[], $5::jsonb[], $6::bytea[], $7::timestamptz[])
       as r (id, name, leg, amount, data, body, at)`

// Rows that one statement inserts have the values that they would have had individually,
// of whatever type.
func TestGroupCommit_mergedRowsKeepTheirValues(t *testing.T) {
	t.Parallel()
	db := slot(t)
	testdb.Exec(t, db.Pool(), `
create table records (
  id     int primary key,
  name   text not null,
  leg    smallint,
  amount bigint,
  data   jsonb,
  body   bytea,
  at     timestamptz not null
)`)
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000, time.UTC)
	var batches []*pgx.Batch
	for i := range 7 {
		for _, values := range [][]any{
			{fmt.Sprint("a'$1 ", i), int16(i), int64(i) << 40, []byte(`{"a":"$2"}`), []byte{0, byte(i)}, &at},
			{fmt.Sprint("\\ ", i), nil, nil, nil, nil, (*time.Time)(nil)},
			{"", nil, int64(0), `{}`, []byte{}, at.Add(time.Duration(i) * time.Hour)},
		} {
			b := &pgx.Batch{}
			b.Queue(insertRecord, append([]any{len(batches)}, values...)...)
			batches = append(batches, b)
		}
	}
	const read = `select records::text from records order by id`
	wantNoErrors(t, together(t, db.Committer(), committing(db, batches...)...))
	merged := testdb.All[string](t, db, read)
	testdb.Exec(t, db.Pool(), `delete from records`)
	for _, b := range batches {
		testdb.Exec(t, db.Pool(), insertRecord, b.QueuedQueries[0].Arguments...)
	}
	want(t, db, read, merged...)
}
