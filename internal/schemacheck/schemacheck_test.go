package schemacheck_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/schemacheck"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

var update = flag.Bool("update", false, "write schema.txt of each package")

type pattern struct {
	name, schema string
	check        func(context.Context, *pgxpool.Pool) error
}

var patterns = []pattern{
	{"idempotency", idempotency.Schema(), idempotency.Check},
	{"inbox", inbox.Schema(), inbox.Check},
	{"outbox", outbox.Schema(), outbox.Check},
}

// TestDescribe_ofTheSchema_isTheEmbeddedList derives the list of each package from its SQL.
func TestDescribe_ofTheSchema_isTheEmbeddedList(t *testing.T) {
	t.Parallel()
	for _, p := range patterns {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			pool := open(t, testdb.Empty(t))
			testdb.Exec(t, pool, p.schema)
			rows, _ := pool.Query(t.Context(), `select relname::text from pg_class where relnamespace = 'public'::regnamespace`)
			names, err := pgx.CollectRows(rows, pgx.RowTo[string])
			testdb.Must(t, err)
			lines, err := schemacheck.Describe(t.Context(), pool, names)
			testdb.Must(t, err)
			file := "../../" + p.name + "/schema.txt"
			if *update {
				testdb.Must(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
			}
			want, err := os.ReadFile(file)
			testdb.Must(t, err)
			if diff := cmp.Diff(strings.Split(strings.TrimSpace(string(want)), "\n"), lines); diff != "" {
				t.Errorf("run: go test ./internal/schemacheck -update\n%s/schema.txt (-file +schema.sql):\n%s", p.name, diff)
			}
		})
	}
}

func TestCheck_acceptsTheSchema(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ statement, options string }{
		"as it is": {"", ""},
		"for a role without rights that only reads": {
			`revoke all on all tables in schema public from payonce_worker;
			 do $$ begin execute format('revoke all on database %I from public', current_database()); end $$`,
			"&role=payonce_worker&default_transaction_read_only=on",
		},
		"with further columns, constraints and indexes": {
			`alter table inbox add column tenant text check (tenant <> '');
			 alter table outbox add constraint small check (length(payload) < 1000000);
			 create unique index more on idempotency_keys (key, scope, operation)`, "",
		},
		"with an index that only serves speed away": {`drop index inbox_due`, ""},
		"through a pooler, without prepared statements": {
			"", "&default_query_exec_mode=simple_protocol",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			testdb.Exec(t, open(t, url), test.statement)
			for _, p := range patterns {
				if err := p.check(t.Context(), open(t, url+test.options)); err != nil {
					t.Errorf("%s: %v", p.name, err)
				}
			}
		})
	}
}

// TestCheck_namesWhatIsWrong plants faults in the schemas of the three packages.
func TestCheck_namesWhatIsWrong(t *testing.T) {
	t.Parallel()
	const inboxBegins = "the schema of inbox does not fit: "
	for name, test := range map[string]struct {
		statement string
		want      []string // beginnings of what idempotency, inbox and outbox say; nil where they accept
	}{
		"no table": {
			`drop table idempotency_keys, inbox, inbox_quarantine, outbox, outbox_offsets, numbering_mark cascade`,
			[]string{
				"the schema of idempotency does not fit: table idempotency_keys is missing",
				inboxBegins + "table inbox is missing; table inbox_quarantine is missing",
				"the schema of outbox does not fit: table numbering_mark is missing; table outbox is missing; table outbox_offsets is missing; view numbering is missing; view outbox_oldest is missing",
			},
		},
		"another schema": {
			`create schema app; alter table inbox set schema app; alter table inbox_quarantine set schema app`,
			[]string{"", inboxBegins + `table inbox is missing; table inbox_quarantine is missing; the tables are in another schema than the search_path "$user", public: app has inbox, inbox_quarantine`, ""},
		},
		"a column is missing": {`alter table inbox drop column last_error`, []string{"", inboxBegins + "column inbox.last_error is missing, want text", ""}},
		"a type":              {`alter table inbox alter waits type bigint`, []string{"", inboxBegins + "column inbox.waits is bigint not null default 0, want integer not null default 0", ""}},
		"not null":            {`alter table inbox alter payload drop not null`, []string{"", inboxBegins + "column inbox.payload is bytea, want bytea not null", ""}},
		"a default":           {`alter table inbox alter received_in drop default`, []string{"", inboxBegins + "column inbox.received_in is xid8 not null, want xid8 not null default pg_current_xact_id()", ""}},
		"a constraint":        {`alter table idempotency_keys drop constraint idempotency_keys_once`, []string{"the schema of idempotency does not fit: constraint idempotency_keys.idempotency_keys_once is missing, want PRIMARY KEY (scope, operation, key)", "", ""}},
		"a constraint that old rows may break": {
			`alter table inbox drop constraint inbox_done_by_holder, add constraint inbox_done_by_holder check (done_fence = fence) not valid`,
			[]string{"", inboxBegins + "constraint inbox.inbox_done_by_holder is CHECK ((done_fence = fence)) NOT VALID, want CHECK ((done_fence = fence))", ""},
		},
		"a unique index is not unique": {
			`drop index inbox_one_running_per_key; create index inbox_one_running_per_key on inbox (receiver, ordering_key) where status = 'running'`,
			[]string{"", inboxBegins + "unique index inbox.inbox_one_running_per_key is missing, want btree (receiver, ordering_key) WHERE (status = 'running'::text)", ""},
		},
		"a unique index that could not be built": {
			`update pg_index set indisvalid = false where indexrelid = 'inbox_one_running_per_key'::regclass`,
			[]string{"", inboxBegins + "unique index inbox.inbox_one_running_per_key is btree (receiver, ordering_key) WHERE (status = 'running'::text) INVALID, want btree", ""},
		},
		"a table that a crash empties": {`alter table inbox set unlogged`, []string{"", inboxBegins + "table inbox is unlogged, want permanent", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := open(t, testdb.Empty(t))
			for _, p := range patterns {
				testdb.Exec(t, pool, p.schema)
			}
			testdb.Exec(t, pool, test.statement)
			for i, p := range patterns {
				wantError(t, p.check(t.Context(), pool), test.want[i])
			}
		})
	}
}

func TestCheck_saysWhereTheRoleMayNotSearch(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	testdb.Exec(t, db.Pool(), `create schema app; alter table inbox set schema app; alter table inbox_quarantine set schema app`)
	err := inbox.Check(t.Context(), testdb.As(t, db, postgres.RoleWorker).Pool())
	if err == nil || !strings.HasSuffix(err.Error(), "the role payonce_worker has no right to use the schema app, which has inbox, inbox_quarantine") {
		t.Errorf("Check: %v", err)
	}
}

func TestCheck_withoutADatabase_returnsItsError(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	away := open(t, "postgres://nobody@127.0.0.1:1/none?connect_timeout=5")
	for _, p := range patterns {
		wantError(t, p.check(t.Context(), nil), "check the schema of "+p.name+": the pool is nil")
		if err := p.check(canceled, pool); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", p.name, err)
		}
		if _, ok := errors.AsType[*pgconn.ConnectError](p.check(t.Context(), away)); !ok {
			t.Errorf("%s of a database that is away: %v", p.name, p.check(t.Context(), away))
		}
	}
}

func wantError(t *testing.T, err error, begins string) {
	t.Helper()
	switch {
	case begins == "" && err != nil:
		t.Errorf("Check: %v, want nil", err)
	case begins != "" && (err == nil || !strings.HasPrefix(err.Error(), begins)):
		t.Errorf("Check:\n%v\nwant\n%s", err, begins)
	}
}

func open(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	testdb.Must(t, err)
	t.Cleanup(pool.Close)
	return pool
}
