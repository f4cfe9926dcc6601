package merchants_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/testdb"
)

// A session keeps the plan that it made while there were few keys. As they grow it
// reads what a request asks for and no more.
func TestAuthenticate_readsNoMoreAsKeysGrow(t *testing.T) {
	testdb.Long(t, "it writes thousands of rows")
	t.Parallel()
	const (
		few  = `select * from generate_series(1, 30) n`
		many = `select * from generate_series(1001, 6000) n`
		add  = `
with n as (%s), m as (
  insert into merchants (merchant_id)
  select 'm' || n
    from n
)
insert into api_keys (key_hash, prefix, merchant_id, scopes)
select sha256(convert_to(key, 'UTF8')), left(key, 16), 'm' || n, '{charges:read}'
  from n,
       lateral (select 'sk_test_' || lpad(n::text, 8, '0') || repeat('x', 24) as key) k`
	)
	for name, before := range map[string][]string{
		"none":                {`analyze`},
		"thirty":              {fmt.Sprintf(add, few)},
		"thirty, and counted": {fmt.Sprintf(add, few), `update merchants set fee_basis_points = 1`, `analyze`},
	} {
		t.Run("where there were "+name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			conn, err := db.Pool().Acquire(t.Context())
			testdb.Must(t, err)
			defer conn.Release()
			for _, sql := range before {
				testdb.Exec(t, db.Pool(), sql)
			}
			for range 10 {
				if _, err := merchants.Authenticate(t.Context(), conn, "sk_test_00000001xxxxxxxxxxxxxxxxxxxxxxxx"); err != nil && !errors.Is(err, merchants.ErrUnauthorized) {
					t.Fatal(err)
				}
			}
			testdb.Exec(t, db.Pool(), fmt.Sprintf(add, many))
			tx, err := conn.Begin(t.Context())
			testdb.Must(t, err)
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }() // it only reads
			read := func() int {
				t.Helper()
				return testdb.One[int](t, tx, `
select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int
  from pg_stat_xact_user_tables
 where relname in ('api_keys', 'merchants')`)
			}
			earlier := read()
			m, err := merchants.Authenticate(t.Context(), tx, "sk_test_00005000xxxxxxxxxxxxxxxxxxxxxxxx")
			if err != nil || m.ID != "m5000" {
				t.Fatalf("it opens %q, %v", m.ID, err)
			}
			if rows := read() - earlier; rows != 2 {
				t.Errorf("%d rows are read, want the key and its merchant", rows)
			}
		})
	}
}
