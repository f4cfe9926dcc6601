package migrations_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestEveryTableOfMerchantsHasPolicies holds the catalog to a decision about every
// table: a new one is behind policies, or is said here to be no merchant's.
func TestEveryTableOfMerchantsHasPolicies(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)

	open := texts(t, db, `
select relname::text
  from pg_class
 where relnamespace = 'public'::regnamespace
   and relkind in ('r', 'p', 'f', 'm')
   and not relrowsecurity
 order by relname`)
	want := []string{
		"audit_results",     // figures of all
		"cache_secret",      // one, the api's own
		"janitor_lease",     // the workers'
		"numbering_mark",    // of all tables
		"outbox_offsets",    // how far readers are
		"projections",       // how far a generation is
		"retention_windows", // the workers'
		"schema_migrations", // the schema's
	}
	if diff := cmp.Diff(want, open); diff != "" {
		t.Errorf("tables without policies (-decided +found):\n%s", diff)
	}

	policies := texts(t, db, `
select format('%s: %s to %s for %s', tablename, policyname, array_to_string(roles, ', '), lower(cmd))
  from pg_policies
 where schemaname = 'public'
   and roles <> '{payonce_worker}'
 order by 1`)
	want = []string{
		"account_balances: tenant to payonce_api for select",
		"charge_list: tenant to payonce_api for select",
		"idempotency_keys: tenant to payonce_api for all",
		"inbox: tenant to payonce_api for all",
		"inbox_quarantine: tenant to payonce_api for all",
		"ledger_events: tenant to payonce_api for all",
		"ledger_postings: tenant to payonce_api for all",
		"outbox: append to payonce_api for insert",
		"outbox: tenant to payonce_api for select",
		"reservations: tenant to payonce_api for all",
		"stock: tenant to payonce_api for all",
	}
	if diff := cmp.Diff(want, policies); diff != "" {
		t.Errorf("policies of others than the worker (-decided +found):\n%s", diff)
	}

	// A role that is nothing of ours has what everybody has: nothing.
	everybody := texts(t, db, `
select 'reads or writes ' || c.relname
  from pg_class c
 cross join unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger']) as verb
 where c.relnamespace = 'public'::regnamespace
   and c.relkind in ('r', 'p', 'v', 'm', 'f')
   and has_table_privilege('public', c.oid, verb)
 union all
select 'uses ' || c.relname
  from pg_class c
 where c.relnamespace = 'public'::regnamespace
   and case when c.relkind = 'S' then has_sequence_privilege('public', c.oid, 'usage, select, update') end
 union all
select 'executes ' || proname
  from pg_proc
 where pronamespace = 'public'::regnamespace
   and has_function_privilege('public', pg_proc.oid, 'execute')
 union all
select 'creates in the schema'
 where has_schema_privilege('public', 'public', 'create')`)
	if len(everybody) > 0 {
		t.Errorf("everybody %q", everybody)
	}
}

// seed is a row of every table that the api may read by merchant. %[1]s is the
// merchant, %[2]s tells one row from another; a message is about the charge of
// the same merchant, the first.
type seed struct {
	table, insert string
	writable      bool // by the api, if it is its merchant's
}

func seeds() []seed {
	return []seed{
		{"ledger_events", `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_%[1]s%[2]s', 1, 'charge.requested.v1', 1, '%[1]s', '{}', '{}', now())`, true},
		{"ledger_postings", `
insert into ledger_postings (stream_id, version, leg, merchant_id, debit, credit, amount, currency)
values ('ch_%[1]s%[2]s', 1, 1, '%[1]s', 'a:USD', 'b:USD', 1, 'USD')`, true},
		{"idempotency_keys", `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, location, body, expires_at)
values ('%[1]s', 'POST /v1/charges', 'the-same%[2]s', '', 202, 'application/json', '', '{}', now())`, true},
		{"outbox", `
insert into outbox (topic, message_id, payload, metadata)
values ('events', '%[1]s%[2]s', '', '{"ordering_key":"ch_%[1]s"}')`, true},
		{"inbox", `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
values ('fulfillment', '%[1]s%[2]s', 'ch_%[1]s', 'stripe.refund.created', '', '{}', '')`, true},
		{"inbox_quarantine", `
insert into inbox_quarantine (receiver, message_id, payload, metadata, payload_hash)
values ('fulfillment', '%[1]s', '', '{}', '%[2]s')`, true},
		{"stock", `
insert into stock (merchant_id, sku, supplied, available)
values ('%[1]s', 'mug%[2]s', 1, 1)`, false},
		{"reservations", `
insert into reservations (charge_id, merchant_id, sku, quantity)
values ('ch_%[1]s%[2]s', '%[1]s', 'mug', 1)`, false},
		{"charge_list", `
insert into charge_list (generation, charge_id, merchant_id, order_id, status, created_at, version, view)
values (1, 'ch_%[1]s%[2]s', '%[1]s', '17', 'pending', now(), 1, '{}')`, false},
		{"account_balances", `
insert into account_balances (generation, merchant_id, account, debits, credits)
values (1, '%[1]s', 'a:USD%[2]s', 1, 1)`, false},
	}
}

// TestTenancy looks at every table with merchants as the api, for one of two of
// them and for none: what it reads, adds and changes is that merchant's.
func TestTenancy(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	run := func(sql string) {
		t.Helper()
		if _, err := db.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	merchants := []string{"acme", "globex"}
	for _, merchant := range merchants {
		run("insert into merchants (merchant_id) values ('" + merchant + "')")
		for _, s := range seeds() {
			run(fmt.Sprintf(s.insert, merchant, ""))
		}
	}
	api := pgtest.As(t, db, postgres.RoleAPI)
	try := func(q postgres.Querier, sql string) error {
		rows, err := q.Query(t.Context(), sql)
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	}

	readable := texts(t, db, `
select relname::text
  from pg_class
 where relnamespace = 'public'::regnamespace
   and relrowsecurity
   and has_any_column_privilege('payonce_api', oid, 'select')
 order by 1`)
	for _, table := range readable {
		if !slices.ContainsFunc(seeds(), func(s seed) bool { return s.table == table }) {
			t.Errorf("the api reads %s, which this test does not know", table)
		}
	}
	for _, s := range seeds() {
		t.Run(s.table, func(t *testing.T) {
			t.Parallel()
			count := func(q postgres.Querier) (n int) {
				t.Helper()
				if err := q.QueryRow(t.Context(), "select count(*) from "+s.table).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			if n := count(api); n != 0 {
				t.Errorf("without a merchant there are %d rows", n)
			}
			for _, merchant := range merchants {
				if n := count(api.Tenant(merchant)); n != 1 {
					t.Errorf("of %s there are %d rows, want 1", merchant, n)
				}
			}
			for _, nobody := range []string{"", "initech", "acme' or true --", "acme ", "ACME", "%"} {
				if n := count(api.Tenant(nobody)); n != 0 {
					t.Errorf("as %q there are %d rows", nobody, n)
				}
			}
			if s.table != "outbox" { // whose messages say nothing and are a wake-up at most
				for name, q := range map[string]postgres.Querier{"acme": api.Tenant("acme"), "nobody": api} {
					if err := try(q, fmt.Sprintf(s.insert, "globex", " more")); sqlState(err) != "42501" {
						t.Errorf("%s adds a row of globex: %v, want 42501", name, err)
					}
				}
			}
			if err := try(api.Tenant("globex"), fmt.Sprintf(s.insert, "globex", " own")); (err == nil) != s.writable {
				t.Errorf("globex adds a row of its own: %v", err)
			}
		})
	}
	t.Run("what is changed", func(t *testing.T) {
		t.Parallel()
		if err := try(api.Tenant("acme"), `update inbox set duplicates = 77`); err != nil {
			t.Fatal(err)
		}
		got := texts(t, db, `select distinct ordering_key from inbox where duplicates = 77`)
		if diff := cmp.Diff([]string{"ch_acme"}, got); diff != "" {
			t.Errorf("acme changes messages of (-want +got):\n%s", diff)
		}
	})
}

// TestWhatTheRolesMayNot tries the ways around grants and policies that PostgreSQL
// has. What it leaves to everybody are temporary tables and large objects.
func TestWhatTheRolesMayNot(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	for _, role := range []postgres.Role{postgres.RoleAPI, postgres.RoleWorker} {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			acting := pgtest.As(t, db, role)
			conn, err := acting.Pool().Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			if _, err := conn.Exec(t.Context(), "set row_security = off"); err != nil {
				t.Fatal(err)
			}
			for _, sql := range []string{
				"select count(*) from ledger_events", // with row security off: refused, not open
				"select query_to_xml('select * from api_keys', true, true, '')",
				"select * from pg_authid",
				"select * from pg_shadow",
				"select * from pg_user_mapping",
				"copy api_keys to stdout",
				"copy (select 1) to program 'true'",
				"copy (select 1) to '/nowhere'",
				"select pg_read_file('PG_VERSION')",
				"select pg_ls_dir('.')",
				"select lo_import('/nowhere')",
				"select lo_export(1, '/nowhere')",
				"set session_replication_role = replica", // would leave triggers out
				"alter system set fsync = off",
				"create extension pg_trgm",
				"create schema more",
				"create table more ()",
				"create function more() returns int language sql as 'select 1'",
				"create trigger more before insert on ledger_events execute function refuse_change()",
				"alter table ledger_events disable trigger all",
				"alter table ledger_events disable row level security",
				"create policy more on ledger_events using (true)",
				"drop policy tenant on ledger_events",
				"drop table ledger_events",
				"comment on table ledger_events is 'mine'",
				"create publication more",
				"select pg_create_physical_replication_slot('more')",
				"select pg_switch_wal()",
				"alter role " + string(role) + " login",
				"alter role " + string(role) + " bypassrls",
				"create role more",
				"select refuse_change()",
			} {
				if _, err := conn.Exec(t.Context(), sql); sqlState(err) != "42501" {
					t.Errorf("%s: %v, want 42501", sql, err)
				}
			}
		})
	}
}
