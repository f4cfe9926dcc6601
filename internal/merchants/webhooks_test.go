package merchants_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// withWebhook is a database with acme, an endpoint and its first secret.
func withWebhook(t *testing.T) *postgres.DB {
	t.Helper()
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
