package migrations_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// crowded are a thousand merchants with their charges and keys.
const crowded = `
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || n, v, case v when 1 then 'charge.requested.v1' else 'payment.started.v1' end,
       1, 'm' || n % 1000, '{}', '{}', now()
  from generate_series(1, 10000) n,
       generate_series(1, 2) v;
insert into idempotency_keys
       (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
select 'm' || n % 1000, 'POST /v1/charges', 'key-' || n, '', 202, '', '', now()
  from generate_series(1, 20000) n;
insert into charge_list
       (generation, charge_id, merchant_id, order_id, status, created_at, version, view)
select 1, 'ch_' || n, 'm' || n % 20, 'order-' || n, 'pending', now() - n * interval '1 second', 1, '{}'
  from generate_series(1, 20000) n;
analyze ledger_events, idempotency_keys, charge_list`

// TestPlansUnderPolicies explains what requests read, as the owner and as the
// api: a policy may filter what the plan of the statement finds, and no more.
func TestPlansUnderPolicies(t *testing.T) {
	pgtest.Long(t, "it fills tables")
	t.Parallel()
	db := pgtest.Open(t)
	if _, err := db.Pool().Exec(t.Context(), crowded); err != nil {
		t.Fatal(err)
	}
	all := statements(t)
	for _, read := range []struct {
		name, file, words string
		types, args       string
		settings          string
		index             string
	}{
		{
			name: "a charge", file: "../ledger/stream.go", words: "order by version",
			types: "text", args: "'ch_7'", index: "ledger_events_version_once",
		},
		{
			name: "a key", file: "../idempotency/look.go", words: "as asked",
			types: "text, text[], text[]", args: "'m7', '{POST /v1/charges}', '{key-7}'", index: "idempotency_keys_once",
		},
		{
			name: "what a key led to", file: "../idempotency/list.go", words: "recursive operations",
			types: "text, text", args: "'m7', 'key-7'", index: "idempotency_keys_once",
		},
		{
			name: "a page of charges", file: "../ledger/charge_list.go", words: "(created_at, charge_id) < ($2, $3)",
			types: "text, timestamptz, text, int", args: "'m7', 'infinity', '', 10",
			settings: "set enable_seqscan = off; set enable_bitmapscan = off; set enable_sort = off; set enable_incremental_sort = off",
			index:    "charge_list_by_time",
		},
	} {
		t.Run(read.name, func(t *testing.T) {
			t.Parallel()
			var sql string
			for at, text := range all {
				if strings.HasPrefix(at, read.file) && strings.Contains(text, read.words) && (sql == "" || len(text) < len(sql)) {
					sql = text
				}
			}
			if sql == "" {
				t.Fatalf("%s has no statement with %q", read.file, read.words)
			}
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				prepare := read.settings + "; set plan_cache_mode = " + mode + "; prepare read (" + read.types + ") as " + sql
				owner := planOf(t, db, prepare, read.args)
				api := planOf(t, pgtest.As(t, db, postgres.RoleAPI), prepare, read.args)
				if !strings.Contains(owner, read.index) || strings.Contains(owner, "Seq Scan on") {
					t.Errorf("%s: as the owner it does not walk %s:\n%s", mode, read.index, owner)
				}
				if diff := cmp.Diff(shape(owner), shape(api)); diff != "" {
					t.Errorf("%s: the plans differ (-owner +api):\n%s", mode, diff)
				}
			}
		})
	}
}

// planOf is the plan of a prepared statement for merchant m7.
func planOf(t *testing.T, db *postgres.DB, prepare, args string) string {
	t.Helper()
	conn, err := db.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, _ = conn.Exec(context.WithoutCancel(t.Context()), "discard all")
		conn.Release()
	}()
	for _, sql := range []string{strings.TrimPrefix(prepare, "; "), `select set_config('payonce.merchant', 'm7', false)`} {
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := conn.Query(t.Context(), "explain (costs off) execute read("+args+")", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// shape is how a plan goes through tables and indexes, without what it looks at
// there. A policy on what is known before the first row is a Result around a scan.
func shape(plan string) []string {
	return regexp.MustCompile(`(?m)\w[\w ]* Scan\b.*|Nested Loop.*|(?:Hash|Merge) .*Join.*|Sort$|Limit$`).FindAllString(plan, -1)
}
