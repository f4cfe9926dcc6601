package merchants_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

const (
	key    = "sk_test_demo_of_acme_0123456789"
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
)

func acme() merchants.Merchant {
	return merchants.Merchant{ID: "acme", FeeBasisPoints: 250, FeeFixed: map[string]int64{"EUR": 5}}
}

func shop() merchants.Webhook {
	return merchants.Webhook{URL: "https://shop.example/webhooks", Secret: secret}
}

// register commits an account and its keys.
func register(t *testing.T, db *postgres.DB, m merchants.Merchant, w merchants.Webhook, keys ...string) {
	t.Helper()
	b := &pgx.Batch{}
	if err := merchants.Register(b, m, w); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		merchants.AddKey(b, m.ID, key)
	}
	if err := db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	register(t, db, acme(), shop(), key, "another key of acme")
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, "the key of globex")

	t.Run("a key opens its merchant's account", func(t *testing.T) {
		t.Parallel()
		want := acme()
		want.HasWebhook = true
		for _, key := range []string{key, "another key of acme"} {
			got, err := merchants.Authenticate(t.Context(), db, key)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		}
		got, err := merchants.Authenticate(t.Context(), db, "the key of globex")
		if diff := cmp.Diff(merchants.Merchant{ID: "globex", FeeFixed: map[string]int64{}}, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})

	t.Run("anything else opens nothing, and is refused in the same way", func(t *testing.T) {
		t.Parallel()
		for _, key := range []string{"", " ", key[:len(key)-1], key + "x", " " + key, strings.ToUpper(key), merchants.Prefix(key), "acme", "\x00", "\xff", "%", strings.Repeat("x", 10_000)} {
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

	t.Run("no key is stored", func(t *testing.T) {
		t.Parallel()
		var dump string
		err := db.QueryRow(t.Context(), `select string_agg(k::text || encode(k.key_hash, 'escape'), e'\n') from api_keys k`).Scan(&dump)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{key, key[:16], key[len(key)-8:], "another key of acme"} {
			if strings.Contains(dump, part) {
				t.Errorf("%q is stored", part)
			}
		}
		if !strings.Contains(dump, merchants.Prefix(key)) {
			t.Error("the prefix is not stored")
		}
	})
}

func TestRegister(t *testing.T) {
	t.Parallel()

	t.Run("an account that registers again keeps its fees and its endpoint", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		register(t, db, acme(), shop(), key)
		other := acme()
		other.FeeBasisPoints, other.FeeFixed = 1, nil
		register(t, db, other, merchants.Webhook{}, key)
		got, err := merchants.Authenticate(t.Context(), db, key)
		want := acme()
		want.HasWebhook = true
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		wantWebhook(t, db, shop())
	})

	t.Run("and takes a new endpoint", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		register(t, db, acme(), merchants.Webhook{}, key)
		if _, err := merchants.ReadWebhook(t.Context(), db, "acme"); !errors.Is(err, merchants.ErrNoWebhook) {
			t.Errorf("the error is %v, want ErrNoWebhook", err)
		}
		register(t, db, acme(), shop())
		wantWebhook(t, db, shop())
		moved := merchants.Webhook{URL: "https://new.example", Secret: "whsec_bmV3"}
		register(t, db, acme(), moved)
		wantWebhook(t, db, moved)
	})

	t.Run("an endpoint comes with a secret", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		b := &pgx.Batch{}
		if err := merchants.Register(b, acme(), merchants.Webhook{URL: "https://shop.example"}); err != nil {
			t.Fatal(err)
		}
		merchants.AddKey(b, "acme", key)
		if err := db.Commit(t.Context(), b); postgres.Constraint(err) != "merchants_check" {
			t.Errorf("the error is %v", err)
		}
		if _, err := merchants.Authenticate(t.Context(), db, key); !errors.Is(err, merchants.ErrUnauthorized) {
			t.Errorf("the key of the refused account: %v", err)
		}
	})

	t.Run("a key stays with the merchant that has it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		register(t, db, acme(), merchants.Webhook{}, key)
		register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, key)
		if got, err := merchants.Authenticate(t.Context(), db, key); got.ID != "acme" || err != nil {
			t.Errorf("it opens %q: %v", got.ID, err)
		}
	})

	t.Run("nobody has no endpoint", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		if _, err := merchants.ReadWebhook(t.Context(), db, "nobody"); !errors.Is(err, merchants.ErrNoWebhook) {
			t.Errorf("the error is %v, want ErrNoWebhook", err)
		}
	})
}

func wantWebhook(t *testing.T, db *postgres.DB, want merchants.Webhook) {
	t.Helper()
	got, err := merchants.ReadWebhook(t.Context(), db, "acme")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, endpoint (-want +got):\n%s", err, diff)
	}
}

func TestNewKey(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^sk_live_[A-Za-z0-9_-]{43}$`) // 256 bits
	seen := map[string]bool{}
	for range 100 {
		key := merchants.NewKey()
		if !form.MatchString(key) || seen[key] {
			t.Errorf("the key %q, seen %v", key, seen[key])
		}
		seen[key] = true
	}
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"": "", "x": "", "ab": "a", "sk_test_demo": "sk_tes",
		"sk_live_0123456789abcdef": "sk_live_0123", "ключключключ": "ключкл", "€€€": "€",
	} {
		got := merchants.Prefix(key)
		if got != want || !utf8.ValidString(got) {
			t.Errorf("the prefix of %q is %q, want %q", key, got, want)
		}
	}
}
