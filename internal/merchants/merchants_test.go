package merchants_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

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
