package merchants_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestAuthenticate: an API key authenticates its merchant, beside others at the same moment; anything
// else opens nothing, and is refused in the same way. A delivery at that moment has its merchant's endpoint.
func TestAuthenticate(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	const globex = "the key of globex"
	register(t, db, acme(), shop(), key, "another key of acme")
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, globex)
	ours := acme()
	ours.HasWebhook = true
	theirs := merchants.Merchant{ID: "globex", FeeFixed: map[string]int64{}, Scopes: merchants.Scopes()}
	want := map[string]merchants.Merchant{key: ours, "another key of acme": ours, globex: theirs}
	for _, wrong := range []string{
		"", " ", key[:len(key)-1], key + "x", " " + key, strings.ToUpper(key), merchants.Prefix(key),
		"acme", "\x00", "\x00\x00\x00\x00", "\xff", "%", strings.Repeat("x", 10_000),
	} {
		want[wrong] = merchants.Merchant{}
	}
	var all sync.WaitGroup
	together := merchants.NewAuthenticate(db, 1)
	for key, merchant := range want {
		for range 4 {
			all.Go(func() {
				got, err := together(t.Context(), key)
				if unauthorized := errors.Is(err, merchants.ErrUnauthorized); unauthorized != (merchant.ID == "") ||
					err != nil && err.Error() != merchants.ErrUnauthorized.Error() {
					t.Errorf("%.40q: %v", key, err)
				}
				testrun.Same(t, "the merchant of "+key, merchant, got)
			})
		}
	}
	endpoints := merchants.NewEndpoints(db, 1)
	for merchant, url := range map[string]string{"acme": shop().URL, "globex": "", "unknown": ""} {
		for range 16 {
			all.Go(func() {
				if got, err := endpoints(t.Context(), merchant); got.URL != url || errors.Is(err, merchants.ErrNoWebhook) != (url == "") {
					t.Errorf("the endpoint of %s is %+v, %v", merchant, got, err)
				}
			})
		}
	}
	all.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := together(ended, key); errors.Is(err, merchants.ErrUnauthorized) || !errors.Is(err, context.Canceled) {
		t.Errorf("a database that cannot answer is a wrong key: %v", err)
	}
}

// A session keeps the plan that it made while there were few keys. As they grow it
// reads what a request asks for and no more.
func TestAuthenticate_readsNoMoreAsKeysGrow(t *testing.T) {
	testrun.Long(t, "it writes thousands of rows")
	t.Parallel()
	const add = `
with n as (select * from generate_series(%d, %d) n), m as (
  insert into merchants (merchant_id)
  select 'm' || n
    from n
)
insert into api_keys (key_hash, prefix, merchant_id, scopes)
select sha256(convert_to(key, 'UTF8')), left(key, 16), 'm' || n, '{charges:read}'
  from n,
       lateral (select 'sk_test_' || lpad(n::text, 8, '0') || repeat('x', 24) as key) k`
	for _, before := range []string{"", fmt.Sprintf(add, 1, 30)} {
		db := testdb.Open(t)
		for _, sql := range []string{before, `analyze`} {
			testdb.Exec(t, db.Pool(), sql)
		}
		tx := testdb.Begin(t, db.Pool(), `set local transaction isolation level read committed`)
		for range 10 {
			if _, err := merchants.NewAuthenticate(tx, 1)(t.Context(), "sk_test_00000001xxxxxxxxxxxxxxxxxxxxxxxx"); err != nil &&
				!errors.Is(err, merchants.ErrUnauthorized) {
				t.Fatal(err)
			}
		}
		testdb.Exec(t, db.Pool(), fmt.Sprintf(add, 1001, 6000))
		read := func() int {
			return testdb.One[int](t, tx, `
select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int
  from pg_stat_xact_user_tables
 where relname in ('api_keys', 'merchants')`)
		}
		earlier := read()
		m, err := merchants.NewAuthenticate(tx, 1)(t.Context(), "sk_test_00005000xxxxxxxxxxxxxxxxxxxxxxxx")
		if rows := read() - earlier; err != nil || m.ID != "m5000" || rows != 2 {
			t.Errorf("after %q it opens %q, %v; %d rows are read, want the key and its merchant", before, m.ID, err, rows)
		}
	}
}

// commit queues writes and commits them.
func commit(t *testing.T, db *postgres.DB, queue func(*pgx.Batch)) {
	t.Helper()
	b := &pgx.Batch{}
	queue(b)
	testdb.Must(t, db.Commit(t.Context(), b))
}

func find(t *testing.T, db *postgres.DB, merchant, name string, want int) []merchants.Key {
	t.Helper()
	keys, err := merchants.FindKeys(t.Context(), db, merchant, &name)
	if err != nil || len(keys) != want {
		t.Fatalf("%q means %d keys, want %d: %v", name, len(keys), want, err)
	}
	return keys
}

func TestFindKeys(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	register(t, db, acme(), merchants.Webhook{}, "sk_test_demo", "sk_test_shop", "sk_prod_of_acme_and_nobody_else")
	made := merchants.NewKey()
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, "sk_test_glob", "sk_prod_of_acme_and_globex_0123456789")
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, made)
	for _, test := range []struct {
		merchant, text string
		want           int
	}{
		{"", merchants.Prefix(made), 1},
		{"", merchants.Prefix(made)[:12], 0},
		{"", made[:20], 0},
		{"", made, 1},
		{"", "sk_test_demo", 1}, // beside others with its prefix
		{"", "sk_tes", 3},
		{"globex", "sk_tes", 1},
		{"acme", made, 0},
		{"", "sk_prod_of_acme", 1}, // also the beginning of another
		{"", "%%%%%%%%%%%%", 0},
		{"", "\xff\x00\xff", 0},
	} {
		find(t, db, test.merchant, test.text, test.want)
	}
	if all, err := merchants.FindKeys(t.Context(), db, "globex", nil); err != nil || len(all) != 3 || !all[2].Is(made) {
		t.Errorf("globex has %+v, %v", all, err)
	}
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"": "", "x": "", "ab": "a", "sk_test_demo": "sk_tes",
		"sk_live_0123456789abcdef": "sk_live_0123", "sk_live_0123456789abcdef0123456789": "sk_live_01234567",
		"ключключключ": "ключкл", "€€€": "€", "a\x00b\x00": "a",
	} {
		got := merchants.Prefix(key)
		if got != want || !utf8.ValidString(got) {
			t.Errorf("the prefix of %q is %q, want %q", key, got, want)
		}
	}
}
