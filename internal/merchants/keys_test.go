package merchants_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	register(t, db, acme(), shop(), key, "another key of acme")
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, "the key of globex")

	t.Run("an API key authenticates its merchant", func(t *testing.T) {
		t.Parallel()
		want := acme()
		want.HasWebhook = true
		for _, key := range []string{key, "another key of acme"} {
			got, err := merchants.Authenticate(t.Context(), db, key)
			testdb.Must(t, err)
			testrun.Same(t, "the merchant of "+key, want, got)
		}
		got, err := merchants.Authenticate(t.Context(), db, "the key of globex")
		testdb.Must(t, err)
		testrun.Same(t, "globex", merchants.Merchant{ID: "globex", FeeFixed: map[string]int64{}, Scopes: merchants.Scopes()}, got)
	})

	t.Run("anything else opens nothing, and is refused in the same way", func(t *testing.T) {
		t.Parallel()
		for _, key := range []string{"", " ", key[:len(key)-1], key + "x", " " + key, strings.ToUpper(key), merchants.Prefix(key), "acme", "\x00", "\x00\x00\x00\x00", "\xff", "\xff\xff\xff\xff", "%", strings.Repeat("x", 10_000)} {
			m, err := merchants.Authenticate(t.Context(), db, key)
			if !errors.Is(err, merchants.ErrUnauthorized) || err.Error() != merchants.ErrUnauthorized.Error() || m.ID != "" {
				t.Errorf("%.40q: %v, %v", key, m, err)
			}
		}
	})

	t.Run("a database that cannot answer is not a wrong key", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := merchants.Authenticate(ctx, db, key)
		if errors.Is(err, merchants.ErrUnauthorized) || !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
	})
}

// commit queues writes and commits them.
func commit(t *testing.T, db *postgres.DB, queue func(*pgx.Batch)) {
	t.Helper()
	b := &pgx.Batch{}
	queue(b)
	testdb.Must(t, db.Commit(t.Context(), b))
}

// issue commits one key of a registered merchant.
func issue(t *testing.T, db *postgres.DB, merchant, key string, scopes []merchants.Scope, life time.Duration) {
	t.Helper()
	grant := merchants.Grant{Merchant: merchant, Scopes: scopes}
	if life != 0 {
		grant.Life = &life
	}
	commit(t, db, func(b *pgx.Batch) { merchants.IssueKey(b, key, grant) })
}

// revoke commits the end of the one key that a name means.
func revoke(t *testing.T, db *postgres.DB, name string) {
	t.Helper()
	commit(t, db, func(b *pgx.Batch) { merchants.RevokeKey(b, find(t, db, "", name, 1)[0], 0) })
}

func find(t *testing.T, db *postgres.DB, merchant, name string, want int) []merchants.Key {
	t.Helper()
	keys, err := merchants.FindKeys(t.Context(), db, merchant, name)
	if err != nil || len(keys) != want {
		t.Fatalf("%q means %d keys, want %d: %v", name, len(keys), want, err)
	}
	return keys
}

func wantOpen(t *testing.T, db *postgres.DB, key string, open bool) {
	t.Helper()
	m, err := merchants.Authenticate(t.Context(), db, key)
	if open && err != nil || !open && (!errors.Is(err, merchants.ErrUnauthorized) || m.ID != "") {
		t.Errorf("%.16s opens %q: %v, want it open: %t", key, m.ID, err, open)
	}
}

// pass lets so much time pass, as the database sees it, for every key and secret.
func pass(t *testing.T, db *postgres.DB, interval string) {
	t.Helper()
	commit(t, db, func(b *pgx.Batch) {
		b.Queue(`update api_keys set created_at = created_at - $1::interval, expires_at = expires_at - $1::interval`, interval)
		b.Queue(`update webhook_secrets set created_at = created_at - $1::interval, ends_at = ends_at - $1::interval`, interval)
	})
}

func join(scopes []merchants.Scope) string { return strings.Trim(fmt.Sprint(scopes), "[]") }

func TestParseScopes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		names []string
		want  string
	}{
		{[]string{"refunds:write"}, "refunds:write"},
		{[]string{"refunds:write", "charges:write"}, "charges:write refunds:write"},
		{[]string{"refunds:write", "refunds:write"}, "refunds:write"},
		{[]string{"charges:write", "charges:read", "refunds:write"}, join(merchants.Scopes())},
	} {
		got, err := merchants.ParseScopes(test.names)
		if join(got) != test.want || err != nil {
			t.Errorf("%v are %v: %v", test.names, got, err)
		}
	}
	for _, names := range [][]string{nil, {}, {""}, {"Operator"}, {" operator"}, {"admin"}, {"charges"}, {"charges:*"}, {"refunds:write", "charges:delete"}} {
		if got, err := merchants.ParseScopes(names); err == nil || !strings.Contains(err.Error(), "charges:write, charges:read, refunds:write") {
			t.Errorf("%q are %v: %v", names, got, err)
		}
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	register(t, db, acme(), merchants.Webhook{})
	hours, forever := merchants.NewKey(), merchants.NewKey()
	issue(t, db, "acme", hours, merchants.Scopes(), 24*time.Hour)
	issue(t, db, "acme", forever, merchants.Scopes(), 0)
	pass(t, db, "23 hours 59 minutes")
	wantOpen(t, db, hours, true)
	wantOpen(t, db, forever, true)
	pass(t, db, "1 minute")
	wantOpen(t, db, hours, false)
	wantOpen(t, db, forever, true)

	k := find(t, db, "", hours, 1)[0]
	if k.ExpiresAt == nil || k.ExpiresAt.Sub(k.CreatedAt).Round(time.Second) != 24*time.Hour {
		t.Errorf("it lived from %v to %v", k.CreatedAt, k.ExpiresAt)
	}
	if k := find(t, db, "", forever, 1)[0]; k.ExpiresAt != nil || k.RevokedAt != nil {
		t.Errorf("it ends: %+v", k)
	}
	for _, life := range []time.Duration{time.Nanosecond, time.Microsecond - 1, -time.Nanosecond, -time.Hour} {
		b := &pgx.Batch{}
		merchants.IssueKey(b, merchants.NewKey(), merchants.Grant{Merchant: "acme", Scopes: merchants.Scopes(), Life: &life})
		if err := db.Commit(t.Context(), b); groupcommit.Constraint(err) != "api_keys_expire_after_their_birth" {
			t.Errorf("a life of %s: %v", life, err)
		}
	}
}

func TestFindKeys(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	register(t, db, acme(), merchants.Webhook{}, "sk_test_demo", "sk_test_shop", "sk_prod_of_acme_and_nobody_else")
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, "sk_test_glob", "sk_prod_of_acme_and_globex_0123456789")
	made := merchants.NewKey()
	issue(t, db, "globex", made, merchants.Scopes(), 0)
	for _, test := range []struct {
		name, merchant, text string
		want                 int
	}{
		{"a prefix", "", merchants.Prefix(made), 1},
		{"some of a prefix", "", merchants.Prefix(made)[:12], 0},
		{"more than a prefix", "", made[:20], 0},
		{"a whole key", "", made, 1},
		{"a whole key beside others with its prefix", "", "sk_test_demo", 1},
		{"a prefix of several keys", "", "sk_tes", 3},
		{"of one merchant", "globex", "sk_tes", 1},
		{"a key of another merchant", "acme", made, 0},
		{"a prefix that is also the beginning of another", "", "sk_prod_of_acme", 1},
		{"wildcards", "", "%%%%%%%%%%%%", 0},
		{"what is no text", "", "\xff\x00\xff", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			find(t, db, test.merchant, test.text, test.want)
		})
	}
}

func TestListKeys(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	register(t, db, acme(), merchants.Webhook{}, key)
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, "the key of globex")
	issue(t, db, "acme", "sk_test_reads_of_acme_0123456789", []merchants.Scope{merchants.ChargesRead}, time.Hour)
	oldKey := merchants.Key{Prefix: key[:15], Merchant: "acme", Scopes: merchants.Scopes()}
	globex := merchants.Key{Prefix: "the key ", Merchant: "globex", Scopes: merchants.Scopes()}
	newKey := merchants.Key{Prefix: "sk_test_reads_of", Merchant: "acme", Scopes: []merchants.Scope{merchants.ChargesRead}}
	for merchant, want := range map[string][]merchants.Key{
		"": {oldKey, globex, newKey}, "acme": {oldKey, newKey}, "globex": {globex}, "unknown": nil,
	} {
		got, err := merchants.ListKeys(t.Context(), db, merchant)
		testdb.Must(t, err)
		testrun.Same(t, "the keys of "+merchant, want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(merchants.Key{}), cmpopts.IgnoreTypes(time.Time{}, (*time.Time)(nil)))
	}
}

func TestNewKey(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^sk_live_[A-Za-z0-9_-]{8}[A-Za-z0-9_-]{43}$`) // a name, and 256 bits
	keys, prefixes := map[string]bool{}, map[string]bool{}
	for range 100 {
		key := merchants.NewKey()
		prefix := merchants.Prefix(key)
		if !form.MatchString(key) || keys[key] || prefixes[prefix] || prefix != key[:16] {
			t.Errorf("the key %q with prefix %q, seen %t", key, prefix, keys[key])
		}
		keys[key], prefixes[prefix] = true, true
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
