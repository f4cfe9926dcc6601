package merchants_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

// rotate replaces acme's newest secret.
func rotate(t *testing.T, db *postgres.DB, next string, overlap time.Duration) {
	t.Helper()
	testdb.Must(t, rotateFrom(t, db, secretsOf(t, db)[0], next, overlap))
}

func rotateFrom(t *testing.T, db *postgres.DB, newest merchants.Secret, next string, overlap time.Duration) error {
	t.Helper()
	b := &pgx.Batch{}
	merchants.RotateSecret(b, newest, next, overlap, "cli:test")
	return db.Commit(t.Context(), b)
}

func TestRotateSecret(t *testing.T) {
	t.Parallel()
	const second, third = "whsec_c2Vjb25k", "whsec_dGhpcmQ="

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
		},
		"a shorter overlap ends the older ones sooner too": {
			{rotate: second, overlap: 24 * time.Hour, want: []string{second, secret}},
			{rotate: third, want: []string{third}},
		},
		"a secret may come back": {
			{rotate: second, want: []string{second}},
			{rotate: secret, overlap: time.Hour, want: []string{secret, second}},
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

	t.Run("DeleteExpiredSecrets deletes what has ended, and its hash stays", func(t *testing.T) {
		t.Parallel()
		db := withWebhook(t)
		rotate(t, db, second, 2*time.Hour)
		rotate(t, db, third, time.Hour)
		before := secretsOf(t, db)
		for _, want := range []int{0, 1, 1, 0} { // both end in an hour
			n, err := merchants.DeleteExpiredSecrets(t.Context(), db, 1)
			if err != nil || n != want {
				t.Errorf("deleted %d, %v, want %d", n, err, want)
			}
			if want == 0 {
				pass(t, db, "1 hour")
			}
		}
		wantWebhook(t, db, shop().URL, third)
		for i, s := range secretsOf(t, db) {
			if s.Fingerprint != before[i].Fingerprint || s.Valid != (i == 0) {
				t.Errorf("listed is %+v, was %+v", s, before[i])
			}
		}
	})

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

	t.Run("of all that replace one secret at the same time one wins, and no secret is lost", func(t *testing.T) {
		t.Parallel()
		db := withWebhook(t)
		newest := secretsOf(t, db)[0]
		const rivals = 8
		won := make(chan string, rivals)
		var all sync.WaitGroup
		for i := range rivals {
			all.Go(func() {
				mine := fmt.Sprintf("whsec_%04d", i)
				err := rotateFrom(t, db, newest, mine, time.Hour)
				switch {
				case err == nil:
					won <- mine
				case groupcommit.Constraint(err) != "webhook_secrets_pkey":
					t.Errorf("%s: %v", mine, err)
				}
			})
		}
		all.Wait()
		if len(won) != 1 {
			t.Fatalf("%d of %d won", len(won), rivals)
		}
		wantWebhook(t, db, shop().URL, <-won, secret)
	})
}

func TestListSecrets(t *testing.T) {
	t.Parallel()
	db := withWebhook(t)
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{URL: "https://globex.example", Secret: "whsec_Z2xvYmV4"})
	register(t, db, merchants.Merchant{ID: "quiet"}, merchants.Webhook{})
	const second = "whsec_c2Vjb25k"
	rotate(t, db, second, time.Hour)
	all := secretsOf(t, db)
	var got []string
	for _, s := range all {
		got = append(got, fmt.Sprintf("%s %d %s %t %t", s.Merchant, s.Generation, s.CreatedBy, s.EndsAt == nil, s.Valid))
	}
	want := "acme 2 cli:test true true, acme 1 registration false true"
	if list := strings.Join(got, ", "); list != want {
		t.Errorf("listed: %s", list)
	}
	if all[0].Fingerprint == all[1].Fingerprint || !regexp.MustCompile(`^[0-9a-f]{12}$`).MatchString(all[0].Fingerprint) {
		t.Errorf("fingerprints %s and %s", all[0].Fingerprint, all[1].Fingerprint)
	}
	for i, is := range []bool{true, false} {
		if all[i].Is(second) != is || all[i].Is("") || all[i].Is(all[i].Fingerprint) {
			t.Errorf("secret %d is the second one: %t", i, !is)
		}
	}
	if shown := fmt.Sprintf("%+v", all); strings.Contains(shown, "whsec_") {
		t.Errorf("a secret is shown: %s", shown)
	}
	pass(t, db, "1 hour")
	if secretsOf(t, db)[1].Valid {
		t.Error("the first is valid after its end")
	}
}

func TestNewWebhookSecret(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^whsec_[A-Za-z0-9+/]{43}=$`) // 256 bits
	seen := map[string]bool{}
	for range 100 {
		s := merchants.NewWebhookSecret()
		if !form.MatchString(s) || seen[s] {
			t.Errorf("the secret %q, seen %t", s, seen[s])
		}
		seen[s] = true
	}
}

// TestEndpoints_answerEachCaller: callers at the same moment receive their own merchant's, and a
// secret that was replaced counts until its end.
func TestEndpoints_answerEachCaller(t *testing.T) {
	t.Parallel()
	db := withWebhook(t)
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{URL: "https://globex.example/hook", Secret: "whsec_Z2xvYmV4"})
	register(t, db, merchants.Merchant{ID: "silent"}, merchants.Webhook{})
	endpoints := merchants.NewEndpoints(db, 0)
	same := func(secrets int) {
		t.Helper()
		var all sync.WaitGroup
		for range 16 {
			for merchant, signing := range map[string]int{"acme": secrets, "globex": 1} {
				all.Go(func() {
					want, err := merchants.NewEndpoints(db, 1)(t.Context(), merchant)
					if err != nil || len(want.Secrets) != signing || want.URL == "" {
						t.Errorf("%s alone: %d secrets, want %d, %v", merchant, len(want.Secrets), signing, err)
					}
					got, err := endpoints(t.Context(), merchant)
					if diff := cmp.Diff(want, got); err != nil || diff != "" {
						t.Errorf("%s: %v (-want +got):\n%s", merchant, err, diff)
					}
				})
			}
			for _, merchant := range []string{"silent", "unknown"} {
				all.Go(func() {
					if e, err := endpoints(t.Context(), merchant); !errors.Is(err, merchants.ErrNoWebhook) {
						t.Errorf("%s: %+v, %v", merchant, e, err)
					}
				})
			}
		}
		all.Wait()
	}
	same(1)
	rotate(t, db, merchants.NewWebhookSecret(), time.Hour)
	same(2)
	pass(t, db, "2 hours")
	same(1)
}
