package merchants_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
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
select sha256(convert_to(key, 'UTF8')), left(key, 16), 'm' || n, '{admin}'
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
			write := func(sql string) {
				t.Helper()
				testdb.Exec(t, db.Pool(), sql)
			}
			for _, sql := range before {
				write(sql)
			}
			for range 10 {
				if _, err := merchants.Authenticate(t.Context(), conn, "sk_test_00000001xxxxxxxxxxxxxxxxxxxxxxxx"); err != nil && !errors.Is(err, merchants.ErrUnauthorized) {
					t.Fatal(err)
				}
			}
			write(fmt.Sprintf(add, many))
			tx, err := conn.Begin(t.Context())
			testdb.Must(t, err)
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }() // it only reads
			read := func() (rows int) {
				t.Helper()
				err := tx.QueryRow(t.Context(), `
select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int
  from pg_stat_xact_user_tables
 where relname in ('api_keys', 'merchants')`).Scan(&rows)
				testdb.Must(t, err)
				return rows
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

// TestQueueMerchant: reads of one batch return each the merchant of their own key, or none.
func TestQueueMerchant(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	register(t, db, merchants.Merchant{ID: "acme"}, merchants.Webhook{}, "a key of acme")
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, "a key of globex")
	keys := []string{"a key of acme", "a key of nobody", "a key of globex", "a key of nobody"}
	found, b := make([]merchants.Merchant, len(keys)), &pgx.Batch{}
	for i, key := range keys {
		merchants.QueueMerchant(b, key, &found[i])
	}
	testdb.Must(t, testdb.As(t, db, postgres.RoleAPI).Read(t.Context(), b))
	var ids []string
	for _, m := range found {
		ids = append(ids, m.ID)
	}
	if want := []string{"acme", "", "globex", ""}; !slices.Equal(ids, want) {
		t.Errorf("the keys are those of %q, want %q", ids, want)
	}
}
