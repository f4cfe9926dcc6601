package merchants_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

const (
	key    = "sk_test_demo_of_acme_0123456789"
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
)

func acme() merchants.Merchant {
	return merchants.Merchant{ID: "acme", FeeBasisPoints: 250, FeeFixed: map[string]int64{"EUR": 5}, Scopes: merchants.Scopes()}
}

func shop() merchants.Webhook {
	return merchants.Webhook{URL: "https://shop.example/webhooks", Secret: secret}
}

// register commits an account and its keys.
func register(t *testing.T, db *postgres.DB, m merchants.Merchant, w merchants.Webhook, keys ...string) {
	t.Helper()
	commit(t, db, func(b *pgx.Batch) {
		merchants.Register(b, m, w, nil)
		for _, key := range keys {
			merchants.IssueKey(b, key, merchants.Grant{Merchant: m.ID, Scopes: merchants.Scopes()})
		}
	})
}

// TestRegister: an account that registers again keeps its fees and its secret, and takes a new URL. A
// key stays with the merchant that has it, and a revoked one is not revived.
func TestRegister(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	db := testdb.Reused(t)
	register(t, db, acme(), shop(), key)
	other := acme()
	other.FeeBasisPoints, other.FeeFixed = 1, nil
	register(t, db, other, merchants.Webhook{URL: "https://new.example", Secret: "whsec_bmV3"}, key)
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, key)
	wantWebhook(t, db, "https://new.example", secret)
	authenticate := merchants.NewAuthenticate(db, 1)
	got, err := authenticate(t.Context(), key)
	want := acme()
	want.HasWebhook = true
	testdb.Must(t, err)
	testrun.Same(t, "the account", want, got)
	commit(t, db, func(b *pgx.Batch) { merchants.RevokeKey(b, find(t, db, "", key, 1)[0], 0) })
	register(t, db, acme(), merchants.Webhook{}, key)
	if _, err := authenticate(t.Context(), key); !errors.Is(err, merchants.ErrUnauthorized) {
		t.Errorf("a revoked key that registers again is authenticated with %v", err)
	}
}

// wantWebhook wants a delivery to go there, signed by these secrets.
func wantWebhook(t *testing.T, db *postgres.DB, url string, secrets ...string) {
	t.Helper()
	got, err := merchants.NewEndpoints(db, 1)(t.Context(), "acme")
	testdb.Must(t, err)
	testrun.Same(t, "endpoint", merchants.Endpoint{URL: url, Secrets: secrets}, got)
}

func TestMain(m *testing.M) { testrun.Main(m) }

// TestAuthenticate: an API key authenticates its merchant, beside others at the same moment; anything
// else opens nothing, and is refused in the same way. A delivery at that moment has its merchant's endpoint.
func TestAuthenticate(t *testing.T) {
	testrun.Long(t, "it needs a database")
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
	testrun.Long(t, "it needs a database")
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

// withWebhook is a database with acme, an endpoint and its first secret.
func withWebhook(t *testing.T) *postgres.DB {
	t.Helper()
	testrun.Long(t, "it needs a database")
	db := testdb.Reused(t)
	register(t, db, acme(), shop())
	return db
}

// secretsOf are acme's, the newest first.
func secretsOf(t *testing.T, db *postgres.DB) []merchants.Secret {
	t.Helper()
	secrets, err := merchants.ListSecrets(t.Context(), db, "acme")
	testdb.Must(t, err)
	return secrets
}

// rotate replaces acme's newest secret, and deletes those that have ended.
func rotate(t *testing.T, db *postgres.DB, next string, overlap time.Duration) {
	t.Helper()
	testdb.Must(t, rotateFrom(t, db, secretsOf(t, db)[0], next, overlap))
	if n := testdb.One[int](t, db, `select count(*) from webhook_secrets where ends_at <= clock_timestamp() and secret is not null`); n != 0 {
		t.Errorf("%d secrets that have ended are left", n)
	}
}

func rotateFrom(t *testing.T, db *postgres.DB, newest merchants.Secret, next string, overlap time.Duration) error {
	t.Helper()
	b := &pgx.Batch{}
	merchants.RotateSecret(b, newest, next, overlap, "cli:test")
	return db.Commit(t.Context(), b)
}

// pass lets so much time pass, as the database sees it.
func pass(t *testing.T, db *postgres.DB, interval string) {
	t.Helper()
	testdb.Exec(t, db.Pool(), `update webhook_secrets set created_at = created_at - $1::interval, ends_at = ends_at - $1::interval`, interval)
}

func TestRotateSecret(t *testing.T) {
	t.Parallel()
	const second, third, fourth = "whsec_c2Vjb25k", "whsec_dGhpcmQ=", "whsec_Zm91cnRo"

	type step struct {
		rotate  string // to this secret
		overlap time.Duration
		pass    string // so much time passes instead
		want    []string
	}
	for name, steps := range map[string][]step{
		"both sign until the overlap is over": {
			{rotate: second, overlap: 24 * time.Hour, want: []string{second, secret}},
			{pass: "23 hours 59 minutes", want: []string{second, secret}},
			{pass: "1 minute", want: []string{second}},
			{pass: "1000 years", want: []string{second}},
		},
		"twice in a row, each ends at its own time": {
			{rotate: second, overlap: time.Hour, want: []string{second, secret}},
			{rotate: third, overlap: 24 * time.Hour, want: []string{third, second, secret}},
			{pass: "1 hour", want: []string{third, second}},
			{pass: "23 hours", want: []string{third}},
			{rotate: fourth, overlap: time.Hour, want: []string{fourth, third}},
		},
		"a shorter overlap ends the older ones sooner too": {
			{rotate: second, overlap: 24 * time.Hour, want: []string{second, secret}},
			{rotate: third, want: []string{third}},
		},
		"the newest again leaves no other behind": {
			{rotate: second, overlap: time.Hour, want: []string{second, secret}},
			{pass: "1 hour", want: []string{second}},
			{rotate: second, want: []string{second}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := withWebhook(t)
			for _, s := range steps {
				if s.pass != "" {
					pass(t, db, s.pass)
				} else {
					rotate(t, db, s.rotate, s.overlap)
				}
				wantWebhook(t, db, shop().URL, s.want...)
			}
		})
	}

	t.Run("a clock that was set back ends nothing before it began", func(t *testing.T) {
		t.Parallel()
		db := withWebhook(t)
		pass(t, db, "-1 hour")
		rotate(t, db, second, 0)
		if first := secretsOf(t, db)[1]; !first.EndsAt.Equal(first.CreatedAt) {
			t.Errorf("the first lived from %v to %v", first.CreatedAt, first.EndsAt)
		}
		wantWebhook(t, db, shop().URL, second, secret)
	})

	t.Run("of two that replace one secret the second is refused, and no secret is lost", func(t *testing.T) {
		t.Parallel()
		db := withWebhook(t)
		newest := secretsOf(t, db)[0]
		testdb.Must(t, rotateFrom(t, db, newest, second, time.Hour))
		if err := rotateFrom(t, db, newest, third, 0); groupcommit.Constraint(err) != "webhook_secrets_pkey" {
			t.Errorf("the second: %v", err)
		}
		wantWebhook(t, db, shop().URL, second, secret)
	})
}
