package main

import (
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

func seedAcme(t *testing.T, db *postgres.DB, keys ...string) {
	t.Helper()
	for _, key := range keys {
		mustExecute(t, db, seedCmd{Merchant: "acme", APIKey: key})
	}
}

func wantOpens(t *testing.T, db *postgres.DB, key string, opens bool) {
	t.Helper()
	if _, err := merchants.Authenticate(t.Context(), db, key); opens != (err == nil) {
		t.Errorf("%s opens: %v, want %t", merchants.Prefix(key), err, opens)
	}
}

func TestKeysCreate(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	seedAcme(t, db, "sk_test_of_acme_0123456789abcdef")

	t.Run("the whole key is alone on stdout and nowhere else", func(t *testing.T) {
		t.Parallel()
		out, said, err := execute(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"refunds:write", "charges:read"}})
		if err != nil {
			t.Fatal(err)
		}
		key := strings.TrimSuffix(out, "\n")
		m, err := merchants.Authenticate(t.Context(), db, key)
		if err != nil || m.ID != "acme" || len(m.Scopes) != 2 || !m.May(merchants.RefundsWrite) || !m.May(merchants.ChargesRead) {
			t.Errorf("%q opens %+v: %v", key, m, err)
		}
		if strings.Contains(said, key) || !strings.Contains(said, merchants.Prefix(key)) || !strings.Contains(said, "for charges:read,refunds:write, expires never;") {
			t.Errorf("it says %q", said)
		}
		text := mustExecute(t, db, listKeysCmd{}) + mustExecute(t, db, listKeysCmd{JSON: true})
		if strings.Contains(text, key) || !strings.Contains(text, merchants.Prefix(key)) {
			t.Errorf("the list is %s", text)
		}
	})

	t.Run("JSON has the key and what it is for", func(t *testing.T) {
		t.Parallel()
		life := 720 * time.Hour
		out, said, err := execute(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"admin"}, Expires: &life, JSON: true})
		if err != nil || said != "" {
			t.Fatalf("%v, and %q", err, said)
		}
		made := decoded[struct {
			Key, Prefix, Merchant string
			Scopes                []string
			CreatedAt             time.Time  `json:"created_at"`
			ExpiresAt             time.Time  `json:"expires_at"`
			RevokedAt             *time.Time `json:"revoked_at"`
		}](t, out)
		wantOpens(t, db, made.Key, true)
		if made.Prefix != merchants.Prefix(made.Key) || made.Merchant != "acme" || len(made.Scopes) != 1 || made.Scopes[0] != "admin" ||
			made.ExpiresAt.Sub(made.CreatedAt).Round(time.Second) != life || made.RevokedAt != nil {
			t.Errorf("it is %+v", made)
		}
	})

	t.Run("an unknown merchant is refused", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, db, createKeyCmd{Merchant: "nobody", Scopes: []string{"admin"}}, `there is no merchant "nobody": payonce seed registers one`)
	})
}

func TestKeysRevoke(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	seedAcme(t, db, "sk_test_demo", "sk_test_shop", "sk_test_stay")
	before := strings.TrimSuffix(mustExecute(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"admin"}}), "\n")

	t.Run("a prefix revokes a key, and may be repeated", func(t *testing.T) {
		t.Parallel()
		byPrefix := revokeKeyCmd{Prefix: merchants.Prefix(before), JSON: true}
		first := mustExecute(t, db, byPrefix)
		if keys := dataOf[merchants.Key](t, first); len(keys) != 1 || keys[0].RevokedAt == nil || keys[0].Prefix != merchants.Prefix(before) {
			t.Errorf("revoked is %s", first)
		}
		wantOpens(t, db, before, false)
		if second := mustExecute(t, db, byPrefix); second != first {
			t.Errorf("the second time it is %s", second)
		}
	})

	t.Run("a prefix of several keys shows them and revokes none", func(t *testing.T) {
		t.Parallel()
		out, said, err := execute(t, db, revokeKeyCmd{Prefix: "sk_tes"})
		if err == nil || !strings.Contains(err.Error(), "keys may be meant") || out != "" || strings.Count(said, "sk_tes ") != 3 {
			t.Errorf("%v, and %q %q", err, out, said)
		}
		wantOpens(t, db, "sk_test_stay", true)
	})

	t.Run("a whole key is revoked and not printed", func(t *testing.T) {
		t.Parallel()
		out, said, err := execute(t, db, revokeKeyCmd{Prefix: "sk_test_demo"})
		if err != nil || strings.Contains(out+said, "sk_test_demo") || strings.Count(out, "sk_tes ") != 1 {
			t.Errorf("%v, and %q %q", err, out, said)
		}
		wantOpens(t, db, "sk_test_demo", false)
		wantOpens(t, db, "sk_test_stay", true)
	})

	t.Run("an unknown key is refused and not printed", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{merchants.NewKey(), "", "sk_", "sk_live_"} {
			out, said, err := execute(t, db, revokeKeyCmd{Prefix: name, All: true})
			if err == nil || out+said != "" || name != "" && strings.Contains(err.Error(), name) {
				t.Errorf("%q: %v, and %q %q", name, err, out, said)
			}
		}
	})
}

func TestKeysRevoke_all(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	seedAcme(t, db, "sk_test_demo", "sk_test_shop")
	mustExecute(t, db, seedCmd{Merchant: "globex", APIKey: "sk_test_glob"})
	mustExecute(t, db, revokeKeyCmd{Prefix: "sk_tes", Merchant: "acme", All: true})
	wantOpens(t, db, "sk_test_demo", false)
	wantOpens(t, db, "sk_test_shop", false)
	wantOpens(t, db, "sk_test_glob", true)
	keys := dataOf[merchants.Key](t, mustExecute(t, db, listKeysCmd{Merchant: "acme", JSON: true}))
	if len(keys) != 2 || keys[0].RevokedAt == nil || keys[1].RevokedAt == nil {
		t.Errorf("the keys are %+v", keys)
	}
	if keys := dataOf[merchants.Key](t, mustExecute(t, db, listKeysCmd{Merchant: "nobody", JSON: true})); len(keys) != 0 {
		t.Errorf("an unknown merchant has %+v", keys)
	}
	head, _, _ := strings.Cut(mustExecute(t, db, listKeysCmd{}), "\n")
	if strings.Join(strings.Fields(head), " ") != "PREFIX MERCHANT SCOPES CREATED EXPIRES REVOKED" {
		t.Errorf("the list begins with %s", head)
	}
}

func TestSeed(t *testing.T) {
	t.Parallel()

	t.Run("a seeded key has all scopes, also when it is repeated", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		for range 2 {
			if out := mustExecute(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_demo"}); out != "" {
				t.Errorf("it prints %q", out)
			}
		}
		m, err := merchants.Authenticate(t.Context(), db, "sk_test_demo")
		if err != nil || m.ID != "acme" || len(m.Scopes) != 4 {
			t.Errorf("it opens %+v: %v", m, err)
		}
		if keys := dataOf[merchants.Key](t, mustExecute(t, db, listKeysCmd{JSON: true})); len(keys) != 1 {
			t.Errorf("the keys are %+v", keys)
		}
	})

	t.Run("a key is printed if it was made", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		wantOpens(t, db, strings.TrimSuffix(mustExecute(t, db, seedCmd{Merchant: "acme"}), "\n"), true)
		made := decoded[seeded](t, mustExecute(t, db, seedCmd{Merchant: "acme", JSON: true}))
		if made.Prefix != merchants.Prefix(made.MadeKey) {
			t.Errorf("made %+v", made)
		}
		wantOpens(t, db, made.MadeKey, true)
		if out := mustExecute(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_demo", JSON: true}); strings.Contains(out, "sk_test_demo") {
			t.Errorf("a given key is printed: %s", out)
		}
	})

	t.Run("a merchant that exists keeps its fees, with a message", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		first := seedCmd{Merchant: "acme", APIKey: "sk_test_demo", FeeBasisPoints: 100, FeeFixed: map[string]int64{"USD": 7, "EUR": 5}}
		otherFixed, otherPoints := first, first
		otherFixed.FeeFixed, otherPoints.FeeBasisPoints = map[string]int64{"EUR": 5}, 300
		const kept = "acme was there before and keeps its fees: 100 basis points, EUR=5, USD=7\n"
		for _, test := range []struct {
			cmd  seedCmd
			says string
		}{{first, ""}, {first, ""}, {otherFixed, kept}, {otherPoints, kept}} {
			if _, said, err := execute(t, db, test.cmd); said != test.says || err != nil {
				t.Errorf("%+v: %v, it says %q", test.cmd, err, said)
			}
		}
	})

	t.Run("a key with fewer rights than a seeded one is refused", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		seedAcme(t, db, "sk_test_demo", "sk_test_over")
		fewer := strings.TrimSuffix(mustExecute(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"charges:read"}}), "\n")
		mustExecute(t, db, revokeKeyCmd{Prefix: "sk_test_over"})
		wantRefused(t, db, seedCmd{Merchant: "acme", APIKey: fewer}, "fewer scopes")
		wantRefused(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_over"}, "revoked or has expired")
		wantRefused(t, db, seedCmd{Merchant: "globex", APIKey: "sk_test_demo"}, "another merchant")
		var others int
		if err := db.QueryRow(t.Context(), `select count(*) from merchants where merchant_id <> 'acme'`).Scan(&others); err != nil || others != 0 {
			t.Errorf("a refused seed has left %d merchants: %v", others, err)
		}
		wantOpens(t, db, "sk_test_over", false)
	})
}
