package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// seedWith seeds acme with a webhook secret.
func seedWith(t *testing.T, db *postgres.DB, secret string) error {
	t.Helper()
	s := seedCmd{Merchant: "acme", APIKey: "sk_test_demo", WebhookURL: "https://shop.example", WebhookSecret: secret}
	return s.Run(t.Context(), &console{stdout: io.Discard, stderr: io.Discard}, db)
}

// TestSeed_atOnceNoSecretIsDroppedSilently: of seeds at once that give other secrets one is taken, and
// the others end with an error.
func TestSeed_atOnceNoSecretIsDroppedSilently(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	const rivals = 8
	type end struct {
		secret string
		err    error
	}
	ends := make(chan end, rivals)
	for range rivals {
		go func() {
			secret := merchants.NewWebhookSecret()
			ends <- end{secret, seedWith(t, db, secret)}
		}()
	}
	taken := ""
	for range rivals {
		e := <-ends
		switch {
		case e.err == nil && taken != "":
			t.Error("two secrets were taken")
		case e.err == nil:
			taken = e.secret
		case !strings.Contains(e.err.Error(), "payonce webhooks rotate replaces it"):
			t.Error(e.err)
		}
	}
	if got := testdb.All[string](t, db, `select secret from webhook_secrets`); fmt.Sprint(got) != fmt.Sprint([]string{taken}) {
		t.Errorf("stored is %v, taken was %q", got, taken)
	}
}

// TestRotate_readsALostAnswerAgain: the secret is printed if it is stored, whatever the commit's answer.
func TestRotate_readsALostAnswerAgain(t *testing.T) {
	t.Parallel()
	for _, side := range []failpoint.Side{failpoint.Before, failpoint.After} {
		t.Run(string(side), func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			direct, cutter := testdb.Connect(t, url), failpoint.StartCutter(t, url)
			db := testdb.OpenAt(t, cutter.URL(), postgres.Options{MaxConns: 1})
			testdb.Must(t, seedWith(t, direct, merchants.NewWebhookSecret()))
			cutter.Arm(side, 3)
			var out strings.Builder
			err := (&webhooksRotateCmd{Merchant: "acme", Overlap: model.Duration(time.Hour)}).Run(t.Context(), &console{stdout: &out, stderr: io.Discard}, db)
			if cutter.Cuts() != 1 || (err == nil) != (side == failpoint.After) {
				t.Errorf("after %d cuts: %v", cutter.Cuts(), err)
			}
			newest := testdb.One[string](t, direct, `select secret from webhook_secrets order by generation desc limit 1`)
			if stored := strings.TrimSpace(out.String()) == newest; stored != (side == failpoint.After) {
				t.Errorf("printed is %q, the newest is %q", &out, newest)
			}
		})
	}
}
