package merchants_test

import (
	"errors"
	"testing"

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
		merchants.Register(b, m, w)
		for _, key := range keys {
			merchants.AddKey(b, m.ID, key)
		}
	})
}

func TestRegister(t *testing.T) {
	t.Parallel()

	t.Run("an account that registers again keeps its fees and its endpoint", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		register(t, db, acme(), shop(), key)
		other := acme()
		other.FeeBasisPoints, other.FeeFixed = 1, nil
		register(t, db, other, merchants.Webhook{}, key)
		register(t, db, other, merchants.Webhook{Secret: "whsec_b3RoZXI="}, key)
		got, err := merchants.Authenticate(t.Context(), db, key)
		want := acme()
		want.HasWebhook = true
		testdb.Must(t, err)
		testrun.Same(t, "the account", want, got)
		wantWebhook(t, db, shop().URL, secret)
	})

	t.Run("and takes a new endpoint, which goes by the secret that it had", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		register(t, db, acme(), merchants.Webhook{}, key)
		if _, err := merchants.NewEndpoints(db, 1)(t.Context(), "acme"); !errors.Is(err, merchants.ErrNoWebhook) {
			t.Errorf("the error is %v, want ErrNoWebhook", err)
		}
		register(t, db, acme(), shop())
		wantWebhook(t, db, shop().URL, secret)
		for _, moved := range []merchants.Webhook{
			{URL: "https://new.example"},
			{URL: "https://newer.example", Secret: secret},
			{URL: "https://newest.example", Secret: "whsec_bmV3"},
		} {
			register(t, db, acme(), moved)
			wantWebhook(t, db, moved.URL, secret)
		}
	})

	t.Run("an endpoint comes with a secret", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		b := &pgx.Batch{}
		merchants.Register(b, acme(), merchants.Webhook{URL: "https://shop.example"})
		merchants.AddKey(b, "acme", key)
		if err := db.Commit(t.Context(), b); groupcommit.Constraint(err) != "merchants_webhook_secret_exists" {
			t.Errorf("the error is %v", err)
		}
		if _, err := merchants.Authenticate(t.Context(), db, key); !errors.Is(err, merchants.ErrUnauthorized) {
			t.Errorf("the key of the refused account: %v", err)
		}
	})

	t.Run("a key stays with the merchant that has it, and an unknown merchant has no endpoint", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		register(t, db, acme(), merchants.Webhook{}, key)
		register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, key)
		if got, err := merchants.Authenticate(t.Context(), db, key); got.ID != "acme" || err != nil {
			t.Errorf("it opens %q: %v", got.ID, err)
		}
		revoke(t, db, key)
		register(t, db, acme(), merchants.Webhook{}, key) // revives nothing
		wantOpen(t, db, key, false)
		if _, err := merchants.NewEndpoints(db, 1)(t.Context(), "unknown"); !errors.Is(err, merchants.ErrNoWebhook) {
			t.Errorf("the error is %v, want ErrNoWebhook", err)
		}
	})
}

// wantWebhook wants a delivery to go there, signed by these secrets.
func wantWebhook(t *testing.T, db *postgres.DB, url string, secrets ...string) {
	t.Helper()
	got, err := merchants.NewEndpoints(db, 1)(t.Context(), "acme")
	testdb.Must(t, err)
	testrun.Same(t, "endpoint", merchants.Endpoint{URL: url, Secrets: secrets}, got)
}
