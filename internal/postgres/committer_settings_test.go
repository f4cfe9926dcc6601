package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// diaries are a table whose rows note the settings under which they were written,
// the owner's pool of it, and the api's, of one slot.
func diaries(t *testing.T, o postgres.Options) (owner, api *postgres.DB) {
	t.Helper()
	address := testdb.URL(t)
	owner = open(t, address, postgres.Options{})
	_, err := owner.Pool().Exec(t.Context(), `
create table diaries (
  merchant_id text,
  id          int,
  tenant      text default current_setting('payonce.merchant', true),
  lock_wait   text default current_setting('lock_timeout'),
  seq_scan    text default current_setting('enable_seqscan'),
  wrote_in    text default pg_current_xact_id()::text
);
alter table diaries enable row level security;
create policy tenant on diaries to payonce_api using (merchant_id = current_setting('payonce.merchant', true));
grant select, insert on diaries to payonce_api`)
	if err != nil {
		t.Fatal(err)
	}
	o.Role, o.Writes, o.SharedCommits = postgres.RoleAPI, declared(), 1
	return owner, open(t, address, o)
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

func readDiaries(t *testing.T, owner *postgres.DB) []diary {
	t.Helper()
	rows, err := owner.Query(t.Context(), `
select id, coalesce(tenant, ''), lock_wait, count(*) over (partition by wrote_in) = 1
  from diaries
 order by id`)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[diary])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestTenantsOfOneTransaction: each writes as itself, and who has no name as nobody,
// whoever was before.
func TestTenantsOfOneTransaction(t *testing.T) {
	t.Parallel()
	type writing struct {
		tenant, merchant string
		refused          bool
	}
	for name, units := range map[string][]writing{
		"tenants in turn":                     {{"acme", "acme", false}, {"globex", "globex", false}, {"acme", "acme", false}, {"globex", "globex", false}},
		"nobody after a tenant":               {{"acme", "acme", false}, {"", "acme", true}, {"globex", "globex", false}},
		"nobody first":                        {{"", "acme", true}, {"acme", "acme", false}, {"acme", "acme", false}},
		"a tenant as the one before":          {{"acme", "acme", false}, {"globex", "acme", true}, {"globex", "globex", false}},
		"a tenant as the one behind":          {{"acme", "acme", false}, {"acme", "globex", true}, {"globex", "globex", false}},
		"nobody, a tenant and nobody between": {{"acme", "acme", false}, {"", "acme", true}, {"acme", "acme", false}, {"", "globex", true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner, api := diaries(t, postgres.Options{})
			var committed []func(context.Context) error
			var want []diary
			for i, u := range units {
				store := api
				if u.tenant != "" {
					store = api.Tenant(u.tenant)
				}
				committed = append(committed, committing(store, note(u.merchant, i))...)
				if !u.refused {
					want = append(want, diary{i, u.tenant, "200ms", false})
				}
			}
			for i, err := range gathered(t, api, committed...) {
				if units[i].refused && code(err) != "42501" || !units[i].refused && err != nil {
					t.Errorf("unit %d was told %v", i, err)
				}
			}
			if diff := cmp.Diff(want, readDiaries(t, owner)); diff != "" {
				t.Errorf("written (-want +got):\n%s", diff)
			}
			wantNobody(t, api)
		})
	}
}

// TestSettingsOfOneTransaction: what a unit sets is seen by no other, and what the
// transaction sets is gone with it.
func TestSettingsOfOneTransaction(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		own           time.Duration
		joined, alone string
	}{
		{25 * time.Millisecond, "25ms", "25ms"},
		{5 * time.Second, "200ms", "5s"},
		{-1, "200ms", "0"},
	} {
		t.Run(c.own.String(), func(t *testing.T) {
			t.Parallel()
			owner, db := diaries(t, postgres.Options{LockTimeout: c.own})
			setting := &pgx.Batch{}
			setting.Queue(`select set_config('lock_timeout', '7000', true), set_config('enable_seqscan', 'on', true)`)
			setting.QueuedQueries = append(setting.QueuedQueries, note("acme", 3).QueuedQueries...)
			reading := note("acme", 4)
			reading.QueuedQueries[0].Exec(func(pgconn.CommandTag) error { return nil })
			acme := db.Tenant("acme")
			release := db.HoldSlot()
			told := make(chan error, 4)
			for i, b := range []*pgx.Batch{note("acme", 1), note("acme", 2), setting, reading} {
				joins := i < 2
				go func() { told <- acme.Commit(t.Context(), b) }()
				if joins {
					await.True(t, "it waits", func() bool { return db.Pending() == i+1 })
				} else if err := <-told; err != nil { // it needs no slot
					t.Error(err)
				}
			}
			release()
			for range 2 {
				if err := <-told; err != nil {
					t.Error(err)
				}
			}
			if err := acme.Commit(t.Context(), note("acme", 5)); err != nil {
				t.Error(err)
			}
			want := []diary{
				{1, "acme", c.joined, false},
				{2, "acme", c.joined, false},
				{3, "acme", "7s", true},
				{4, "acme", c.alone, true},
				{5, "acme", c.alone, true},
			}
			if diff := cmp.Diff(want, readDiaries(t, owner)); diff != "" {
				t.Errorf("written (-want +got):\n%s", diff)
			}
			wantNobody(t, db)
		})
	}
}

// wantNobody looks that the next on the connection has no name.
func wantNobody(t *testing.T, api *postgres.DB) {
	t.Helper()
	var seen int
	if err := api.QueryRow(t.Context(), `select count(*) from diaries`).Scan(&seen); err != nil || seen != 0 {
		t.Errorf("who has no name sees %d rows, %v", seen, err)
	}
}
