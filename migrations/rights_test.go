package migrations_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// refused is PostgreSQL's code for a missing right, and for a row that no policy permits.
const refused = "42501"

// TestRights_areAsDecided compares every right and policy with testdata/rights.txt, in both
// directions: a new table needs a decision, if only that the programs get nothing.
func TestRights_areAsDecided(t *testing.T) {
	t.Parallel()
	var decided []string
	for line := range strings.Lines(read(t, "rights.txt")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			decided = append(decided, line)
		}
	}
	found := testdb.All[string](t, testdb.Reused(t), read(t, "rights.sql"))
	slices.Sort(decided)
	slices.Sort(found)
	testrun.Same(t, "rights", decided, found)
}

type seed struct{ table, insert string }

// seeds are rows of every table that the api may read by merchant, which is %[1]s.
var seeds = []seed{
	{"ledger_events", `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_%[1]s', 1, 'charge.requested.v1', 1, '%[1]s', '{}', '{}', now())`},
	{"ledger_postings", `
insert into ledger_postings (stream_id, version, leg, merchant_id, debit, credit, amount, currency)
values ('ch_%[1]s', 1, 1, '%[1]s', 'a:USD', 'b:USD', 1, 'USD')`},
	{"idempotency_keys", `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, body, expires_at)
values ('%[1]s', 'POST /v1/charges', 'the-same', '', 202, '{}', now())`},
	{"held_orders", `insert into held_orders values ('%[1]s', '17', 'ch_%[1]s')`},
	{"account_balances", `
insert into account_balances (merchant_id, account, debits, credits)
values ('%[1]s', 'a:USD', 1, 1)`},
}

// TestTenancy acts as the api on every table with merchants, for one of two merchants and
// for none: it reads that merchant's rows alone. What it adds is
// TestHostileAPI_insertsWhatARequestCauses.
func TestTenancy(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	merchants := []string{"acme", "globex"}
	for _, merchant := range merchants {
		testdb.Exec(t, db.Pool(), "insert into merchants (merchant_id) values ('"+merchant+"')")
		for _, s := range seeds {
			testdb.Exec(t, db.Pool(), fmt.Sprintf(s.insert, merchant))
		}
	}
	api := testdb.As(t, db, postgres.RoleAPI)
	for _, table := range testdb.All[string](t, db, `
select relname::text
  from pg_class
 where relnamespace = 'public'::regnamespace
   and relrowsecurity
   and has_any_column_privilege('payonce_api', oid, 'select')`) {
		if !slices.ContainsFunc(seeds, func(s seed) bool { return s.table == table }) {
			t.Errorf("the api reads %s, which this test does not know", table)
		}
	}
	for _, s := range seeds {
		t.Run(s.table, func(t *testing.T) {
			t.Parallel()
			for merchant, want := range map[string]int{
				"acme": 1, "globex": 1,
				"": 0, "initech": 0, "acme' or true --": 0, "acme ": 0, "ACME": 0, "%": 0,
			} {
				if rows := testdb.All[string](t, api.Tenant(merchant), "select '' from "+s.table); len(rows) != want {
					t.Errorf("%q reads %d rows, want %d", merchant, len(rows), want)
				}
			}
			if rows := testdb.All[string](t, api, "select '' from "+s.table); len(rows) != 0 {
				t.Errorf("without a merchant there are %d rows", len(rows))
			}
		})
	}
}

// TestSecrets_workerDeletesThoseThatHaveEnded: the policy hides a secret that still signs,
// and refuses to replace one.
func TestSecrets_workerDeletesThoseThatHaveEnded(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	testdb.Exec(t, db.Pool(), `insert into merchants (merchant_id) values ('acme')`)
	testdb.Exec(t, db.Pool(), `
insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at)
values ('acme', 1, 'whsec_b2xk', sha256('s'), 'test', now()),
       ('acme', 2, 'whsec_bmV3', sha256('s'), 'test', null)`)
	worker := testdb.As(t, db, postgres.RoleWorker)
	if _, err := worker.Pool().Exec(t.Context(), `update webhook_secrets set secret = 'whsec_b3duZWQ='`); testdb.Code(err) != refused {
		t.Errorf("the worker replaces a secret: %v, want %s", err, refused)
	}
	testdb.Exec(t, worker.Pool(), `update webhook_secrets set secret = null`)
	left := testdb.All[string](t, db, `select generation::text from webhook_secrets where secret is not null`)
	testrun.Same(t, "secrets that are left", []string{"2"}, left)
}

// TestRoles_cannotAvoidGrantsAndPolicies tries the ways around grants and policies that PostgreSQL has.
// What it leaves to every user are temporary tables and large objects.
func TestRoles_cannotAvoidGrantsAndPolicies(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, role := range []postgres.Role{postgres.RoleAPI, postgres.RoleWorker, postgres.RoleConsole} {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			conn, err := testdb.As(t, db, role).Pool().Acquire(t.Context())
			testdb.Must(t, err)
			defer conn.Release()
			// A read that policies would filter is now refused.
			testdb.Exec(t, conn, `set row_security = off`)
			for statement := range strings.Lines(read(t, "refused.sql")) {
				if statement = strings.TrimSpace(statement); strings.HasPrefix(statement, "--") {
					continue
				}
				if _, err := conn.Exec(t.Context(), strings.ReplaceAll(statement, "$role", string(role))); testdb.Code(err) != refused {
					t.Errorf("%s: %v, want %s", statement, err, refused)
				}
			}
		})
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", file))
	testdb.Must(t, err)
	return string(content)
}
