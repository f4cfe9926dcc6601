package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/common/model"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

const day = 24 * time.Hour

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
		testdb.Must(t, err)
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
		life := model.Duration(720 * time.Hour)
		out, said, err := execute(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"refunds:write"}, Expires: &life, JSON: true})
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
		if made.Prefix != merchants.Prefix(made.Key) || made.Merchant != "acme" || len(made.Scopes) != 1 || made.Scopes[0] != "refunds:write" ||
			made.ExpiresAt.Sub(made.CreatedAt).Round(time.Second) != time.Duration(life) || made.RevokedAt != nil {
			t.Errorf("it is %+v", made)
		}
	})

	t.Run("an unknown merchant is refused, and by each list", func(t *testing.T) {
		t.Parallel()
		const unknown = "unknown"
		for _, command := range []databaseCommand{
			createKeyCmd{Merchant: unknown, Scopes: []string{"refunds:write"}},
			listKeysCmd{Merchant: unknown},
			stockListCmd{Merchant: unknown},
			actionsCmd{Merchant: unknown, Limit: 1},
		} {
			wantRefused(t, db, command, `there is no merchant "unknown": payonce seed registers one`)
		}
	})
}

func TestKeysCreate_testKeyMayBeGiven(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	seedAcme(t, db, "sk_test_demo")
	mustExecute(t, db, seedCmd{Merchant: "globex", APIKey: "sk_test_glob"})
	given := createKeyCmd{Merchant: "acme", Scopes: []string{"charges:read"}, APIKey: "sk_test_read"}
	for range 2 {
		if out := mustExecute(t, db, given); out != given.APIKey+"\n" {
			t.Errorf("it prints %q", out)
		}
	}
	wantOpens(t, db, given.APIKey, true)
	for _, other := range []string{"sk_test_demo", "sk_test_glob"} {
		given.APIKey = other
		wantRefused(t, db, given, "is there already")
	}
}

// TestWebhookSecret_isReadFromAFileOrTheEnvironment parses the command line, as main does.
func TestWebhookSecret_isReadFromAFileOrTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	testdb.Must(t, os.WriteFile(file, []byte("whsec_file\n"), 0o600))
	seed := []string{"seed", "--merchant=acme", "--webhook-url=https://shop.example"}
	rotate := []string{"webhooks", "rotate", "--merchant=acme"}
	for name, test := range map[string]struct {
		args        []string
		environment string
		want        string // "": refused
	}{
		"a file":                             {append(slices.Clone(rotate), "--webhook-secret-file="+file), "", "whsec_file"},
		"the environment":                    {rotate, "whsec_environment", "whsec_environment"},
		"a file of a seed":                   {append(slices.Clone(seed), "--webhook-secret-file="+file), "", "whsec_file"},
		"an argument beside a test key":      {append(slices.Clone(seed), "--api-key=sk_test_demo", "--webhook-secret=whsec_hush"), "", "whsec_hush"},
		"an argument beside a generated key": {append(slices.Clone(seed), "--webhook-secret=whsec_hush"), "", ""},
		"an argument of a rotation":          {append(slices.Clone(rotate), "--webhook-secret", "whsec_hush"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("WEBHOOK_SECRET", test.environment)
			var cmd commands
			parser, err := kong.New(&cmd)
			testdb.Must(t, err)
			_, err = parser.Parse(test.args)
			got := cmd.Webhooks.Rotate.WebhookSecret
			if test.args[0] == "seed" {
				got = cmd.Seed.WebhookSecret
			}
			if (err == nil) != (test.want != "") || err == nil && got != test.want {
				t.Errorf("it is %q: %v", got, err)
			}
			if err != nil && (strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "--webhook-secret-file")) {
				t.Errorf("the refusal is %v", err)
			}
		})
	}
}

func TestKeysRevoke(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	seedAcme(t, db, "sk_test_demo", "sk_test_shop", "sk_test_stay")
	before := strings.TrimSuffix(mustExecute(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"refunds:write"}}), "\n")

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

	t.Run("a key may end later, and a nearer end stays", func(t *testing.T) {
		t.Parallel()
		key := strings.TrimSuffix(mustExecute(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"refunds:write"}}), "\n")
		for _, test := range []struct{ in, left time.Duration }{{2 * day, 2 * day}, {day, day}, {3 * day, day}} {
			keys := dataOf[merchants.Key](t, mustExecute(t, db, revokeKeyCmd{Prefix: key, In: model.Duration(test.in), JSON: true}))
			if len(keys) != 1 || keys[0].RevokedAt != nil || keys[0].ExpiresAt == nil || keys[0].ExpiresAt.Sub(keys[0].CreatedAt).Round(time.Minute) != test.left {
				t.Errorf("in %s: %+v", test.in, keys)
			}
		}
		wantOpens(t, db, key, true)
		mustExecute(t, db, revokeKeyCmd{Prefix: key})
		wantOpens(t, db, key, false)
		keys := dataOf[merchants.Key](t, mustExecute(t, db, revokeKeyCmd{Prefix: key, In: model.Duration(time.Hour), JSON: true}))
		if len(keys) != 1 || keys[0].RevokedAt == nil || keys[0].ExpiresAt.Sub(keys[0].CreatedAt).Round(time.Minute) != day {
			t.Errorf("a revoked key ends later: %+v", keys)
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
		if err != nil || m.ID != "acme" || len(m.Scopes) != len(merchants.Scopes()) {
			t.Errorf("it opens %+v: %v", m, err)
		}
		if keys := dataOf[merchants.Key](t, mustExecute(t, db, listKeysCmd{JSON: true})); len(keys) != 1 {
			t.Errorf("the keys are %+v", keys)
		}
	})

	t.Run("a key is printed if it was made", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		out, said, err := execute(t, db, seedCmd{Merchant: "acme"})
		if err != nil || !strings.Contains(said, "a key of acme for charges:write,charges:read,refunds:write, expires never") {
			t.Errorf("%v: it says %q of a key with all scopes", err, said)
		}
		wantOpens(t, db, strings.TrimSuffix(out, "\n"), true)
		made := decoded[seeded](t, mustExecute(t, db, seedCmd{Merchant: "globex", JSON: true}))
		if made.Prefix != merchants.Prefix(made.MadeKey) {
			t.Errorf("made %+v", made)
		}
		wantOpens(t, db, made.MadeKey, true)
		if out, said, err := execute(t, db, seedCmd{Merchant: "acme"}); err != nil || out != "" || !strings.Contains(said, "acme has a key already") {
			t.Errorf("%v: a repeated seed prints %q and says %q", err, out, said)
		}
		if keys := dataOf[merchants.Key](t, mustExecute(t, db, listKeysCmd{Merchant: "acme", JSON: true})); len(keys) != 1 {
			t.Errorf("a repeated seed has made a key: %+v", keys)
		}
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
		const fewer = "sk_test_read"
		mustExecute(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"charges:read"}, APIKey: fewer})
		mustExecute(t, db, revokeKeyCmd{Prefix: "sk_test_over"})
		wantRefused(t, db, seedCmd{Merchant: "acme", APIKey: fewer}, "fewer scopes")
		wantRefused(t, db, seedCmd{Merchant: "acme", APIKey: "sk_test_over"}, "revoked or has expired")
		wantRefused(t, db, seedCmd{Merchant: "globex", APIKey: "sk_test_demo"}, "another merchant")
		if others := testdb.One[int](t, db, `select count(*)::int from merchants where merchant_id <> 'acme'`); others != 0 {
			t.Errorf("a refused seed has left %d merchants", others)
		}
		wantOpens(t, db, "sk_test_over", false)
	})
}
