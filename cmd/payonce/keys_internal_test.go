package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
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
		if err := (seedCmd{Merchant: "acme", APIKey: key}).seed(t.Context(), &bytes.Buffer{}, db); err != nil {
			t.Fatal(err)
		}
	}
}

// createKey creates as the command does.
func createKey(t *testing.T, db *postgres.DB, c createKeyCmd) (stdout, stderr string) {
	t.Helper()
	scopes, err := c.check()
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err = capture(func(stdout, stderr io.Writer) error { return c.create(t.Context(), stdout, stderr, db, scopes) })
	if err != nil {
		t.Fatal(err)
	}
	return stdout, stderr
}

func revokeKey(t *testing.T, db *postgres.DB, c revokeKeyCmd) (stdout, stderr string, err error) {
	t.Helper()
	return capture(func(stdout, stderr io.Writer) error { return c.revoke(t.Context(), stdout, stderr, db) })
}

func list(t *testing.T, db *postgres.DB, c listKeysCmd) string {
	t.Helper()
	return output(t, func(stdout io.Writer) error { return c.list(t.Context(), stdout, db) })
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
		out, said := createKey(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"refunds:write", "charges:read"}})
		key := strings.TrimSuffix(out, "\n")
		m, err := merchants.Authenticate(t.Context(), db, key)
		if err != nil || m.ID != "acme" || len(m.Scopes) != 2 || !m.May(merchants.RefundsWrite) || !m.May(merchants.ChargesRead) {
			t.Errorf("%q opens %+v: %v", key, m, err)
		}
		if strings.Contains(said, key) || !strings.Contains(said, merchants.Prefix(key)) || !strings.Contains(said, "for charges:read,refunds:write, expires never;") {
			t.Errorf("it says %q", said)
		}
		if text := list(t, db, listKeysCmd{}) + list(t, db, listKeysCmd{JSON: true}); strings.Contains(text, key) || !strings.Contains(text, merchants.Prefix(key)) {
			t.Errorf("the list is %s", text)
		}
	})

	t.Run("JSON has the key and what it is for", func(t *testing.T) {
		t.Parallel()
		life := 720 * time.Hour
		out, said := createKey(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"admin"}, Expires: &life, JSON: true})
		var made struct {
			Key, Prefix, Merchant string
			Scopes                []string
			CreatedAt             time.Time  `json:"created_at"`
			ExpiresAt             time.Time  `json:"expires_at"`
			RevokedAt             *time.Time `json:"revoked_at"`
		}
		decoder := json.NewDecoder(strings.NewReader(out))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&made); err != nil || said != "" {
			t.Fatalf("%s: %v, and %q", out, err, said)
		}
		wantOpens(t, db, made.Key, true)
		if made.Prefix != merchants.Prefix(made.Key) || made.Merchant != "acme" || len(made.Scopes) != 1 || made.Scopes[0] != "admin" ||
			made.ExpiresAt.Sub(made.CreatedAt).Round(time.Second) != life || made.RevokedAt != nil {
			t.Errorf("it is %+v", made)
		}
	})

	t.Run("an unknown merchant is refused", func(t *testing.T) {
		t.Parallel()
		var out, said bytes.Buffer
		err := createKeyCmd{Merchant: "nobody"}.create(t.Context(), &out, &said, db, merchants.Scopes())
		if err == nil || err.Error() != `there is no merchant "nobody": payonce seed registers one` || out.Len()+said.Len() > 0 {
			t.Errorf("%v, and %s%s", err, &out, &said)
		}
	})
}

func TestKeysCreate_refuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, flag string
		scopes     []string
		life       time.Duration
	}{
		{"no scope", "--scopes", nil, time.Hour},
		{"an unknown scope", "--scopes", []string{"charges"}, time.Hour},
		{"no life", "--expires", []string{"admin"}, 0},
		{"a life in the past", "--expires", []string{"admin"}, -time.Hour},
		{"hardly a life", "--expires", []string{"admin"}, time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := createKeyCmd{Merchant: "acme", Scopes: test.scopes, Expires: &test.life}.check()
			if err == nil || !strings.HasPrefix(err.Error(), test.flag) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestKeysRevoke(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	seedAcme(t, db, "sk_test_demo", "sk_test_shop", "sk_test_stay")
	before, _ := createKey(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"admin"}})
	before = strings.TrimSuffix(before, "\n")

	t.Run("a prefix revokes a key, and may be repeated", func(t *testing.T) {
		t.Parallel()
		first, said, err := revokeKey(t, db, revokeKeyCmd{Prefix: merchants.Prefix(before), JSON: true})
		if err != nil || said != "" {
			t.Fatalf("%v, and %q", err, said)
		}
		if keys := dataOf[merchants.Key](t, first); len(keys) != 1 || keys[0].RevokedAt == nil || keys[0].Prefix != merchants.Prefix(before) {
			t.Errorf("revoked is %s", first)
		}
		wantOpens(t, db, before, false)
		if again, _, err := revokeKey(t, db, revokeKeyCmd{Prefix: merchants.Prefix(before), JSON: true}); err != nil || again != first {
			t.Errorf("%v, the second time it is %s", err, again)
		}
	})

	t.Run("a prefix of several keys shows them and revokes none", func(t *testing.T) {
		t.Parallel()
		out, said, err := revokeKey(t, db, revokeKeyCmd{Prefix: "sk_tes"})
		if err == nil || !strings.Contains(err.Error(), "keys may be meant") || out != "" || strings.Count(said, "sk_tes ") != 3 {
			t.Errorf("%v, and %q %q", err, out, said)
		}
		wantOpens(t, db, "sk_test_stay", true)
	})

	t.Run("a whole key is revoked and not printed", func(t *testing.T) {
		t.Parallel()
		out, said, err := revokeKey(t, db, revokeKeyCmd{Prefix: "sk_test_demo"})
		if err != nil || strings.Contains(out+said, "sk_test_demo") || strings.Count(out, "sk_tes ") != 1 {
			t.Errorf("%v, and %q %q", err, out, said)
		}
		wantOpens(t, db, "sk_test_demo", false)
		wantOpens(t, db, "sk_test_stay", true)
	})

	t.Run("an unknown key is refused and not printed", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{merchants.NewKey(), "", "sk_", "sk_live_"} {
			out, said, err := revokeKey(t, db, revokeKeyCmd{Prefix: name, All: true})
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
	if err := (seedCmd{Merchant: "globex", APIKey: "sk_test_glob"}).seed(t.Context(), &bytes.Buffer{}, db); err != nil {
		t.Fatal(err)
	}
	if _, _, err := revokeKey(t, db, revokeKeyCmd{Prefix: "sk_tes", Merchant: "acme", All: true}); err != nil {
		t.Fatal(err)
	}
	wantOpens(t, db, "sk_test_demo", false)
	wantOpens(t, db, "sk_test_shop", false)
	wantOpens(t, db, "sk_test_glob", true)
	if keys := dataOf[merchants.Key](t, list(t, db, listKeysCmd{Merchant: "acme", JSON: true})); len(keys) != 2 || keys[0].RevokedAt == nil || keys[1].RevokedAt == nil {
		t.Errorf("the keys are %+v", keys)
	}
	if keys := dataOf[merchants.Key](t, list(t, db, listKeysCmd{Merchant: "nobody", JSON: true})); len(keys) != 0 {
		t.Errorf("an unknown merchant has %+v", keys)
	}
	head, _, _ := strings.Cut(list(t, db, listKeysCmd{}), "\n")
	if strings.Join(strings.Fields(head), " ") != "PREFIX MERCHANT SCOPES CREATED EXPIRES REVOKED" {
		t.Errorf("the list begins with %s", head)
	}
}

func runSeed(t *testing.T, db *postgres.DB, s seedCmd) (string, error) {
	t.Helper()
	stdout, _, err := capture(func(stdout, _ io.Writer) error { return s.seed(t.Context(), stdout, db) })
	return stdout, err
}

func TestSeed(t *testing.T) {
	t.Parallel()

	t.Run("a seeded key has all scopes, also when it is repeated", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		for range 2 {
			if out, err := runSeed(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_demo"}); out != "" || err != nil {
				t.Errorf("%q, %v", out, err)
			}
		}
		m, err := merchants.Authenticate(t.Context(), db, "sk_test_demo")
		if err != nil || m.ID != "acme" || len(m.Scopes) != 4 {
			t.Errorf("it opens %+v: %v", m, err)
		}
		if keys := dataOf[merchants.Key](t, list(t, db, listKeysCmd{JSON: true})); len(keys) != 1 {
			t.Errorf("the keys are %+v", keys)
		}
	})

	t.Run("without a key a new one is printed", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		out, err := runSeed(t, db, seedCmd{Merchant: "acme"})
		if err != nil {
			t.Fatal(err)
		}
		wantOpens(t, db, strings.TrimSuffix(out, "\n"), true)
		out, err = runSeed(t, db, seedCmd{Merchant: "acme", JSON: true})
		var made seeded
		if err := errors.Join(err, json.Unmarshal([]byte(out), &made)); err != nil || made.Prefix != merchants.Prefix(made.MadeKey) {
			t.Fatalf("%s: %v", out, err)
		}
		wantOpens(t, db, made.MadeKey, true)
	})

	t.Run("a merchant that exists keeps its fees, with a message", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		before := seedCmd{Merchant: "acme", APIKey: "sk_test_demo", FeeBasisPoints: 100, FeeFixed: map[string]int64{"USD": 7, "EUR": 5}}
		after := seedCmd{Merchant: "acme", APIKey: "sk_test_demo", FeeBasisPoints: 100, FeeFixed: map[string]int64{"EUR": 5}}
		for _, s := range []seedCmd{before, after} {
			if _, err := runSeed(t, db, s); err != nil {
				t.Fatal(err)
			}
		}
		m, err := merchants.Authenticate(t.Context(), db, "sk_test_demo")
		if err != nil {
			t.Fatal(err)
		}
		if said := after.keptFees(m); said != "acme was there before and keeps its fees: 100 basis points, EUR=5, USD=7" {
			t.Errorf("it says %q", said)
		}
		if said := before.keptFees(m); said != "" {
			t.Errorf("it says %q", said)
		}
		after.FeeFixed, after.FeeBasisPoints = before.FeeFixed, 300
		if after.keptFees(m) == "" {
			t.Error("of other basis points nothing is said")
		}
	})

	t.Run("a given key is not printed", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		out, err := runSeed(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_demo", JSON: true})
		if err != nil || strings.Contains(out, "sk_test_demo") {
			t.Errorf("%v: %s", err, out)
		}
	})

	t.Run("a key with fewer rights than a seeded one is refused", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		seedAcme(t, db, "sk_test_demo", "sk_test_over")
		out, _ := createKey(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"charges:read"}})
		fewer := strings.TrimSuffix(out, "\n")
		if _, _, err := revokeKey(t, db, revokeKeyCmd{Prefix: "sk_test_over"}); err != nil {
			t.Fatal(err)
		}
		for key, says := range map[string]string{fewer: "fewer scopes", "sk_test_over": "revoked or has expired"} {
			if _, err := runSeed(t, db, seedCmd{Merchant: "acme", APIKey: key}); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("the error is %v, want %s", err, says)
			}
		}
		if _, err := runSeed(t, db, seedCmd{Merchant: "globex", APIKey: "sk_test_demo"}); err == nil || !strings.Contains(err.Error(), "another merchant") {
			t.Errorf("the error is %v", err)
		}
		var others int
		if err := db.QueryRow(t.Context(), `select count(*) from merchants where merchant_id <> 'acme'`).Scan(&others); err != nil || others != 0 {
			t.Errorf("a refused seed has left %d merchants: %v", others, err)
		}
		wantOpens(t, db, "sk_test_over", false)
	})
}
