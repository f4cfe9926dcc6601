package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
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

// TestRotate_printsASecretThatMayBeStored: the old secrets have ended, so the merchant needs the one that signs.
func TestRotate_printsASecretThatMayBeStored(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	direct, proxy := testdb.Connect(t, url), failpoint.StartCutter(t, url)
	testdb.Must(t, seedWith(t, direct, merchants.NewWebhookSecret()))
	db := testdb.Connect(t, proxy.URL())
	var printed, said strings.Builder
	proxy.Arm(failpoint.After, 2)
	r := webhooksRotateCmd{Merchant: "acme"}
	err := r.Run(t.Context(), &console{stdout: &printed, stderr: &said}, db)
	if groupcommit.OutcomeOf(err) != groupcommit.Unknown || proxy.Cuts() != 1 || !strings.Contains(said.String(), "may have been stored") {
		t.Errorf("it ends with %v after %d cuts and says %s", err, proxy.Cuts(), said.String())
	}
	signing := testdb.All[string](t, direct, `select secret from webhook_secrets where ends_at is null`)
	testrun.Same(t, "secrets that sign", []string{strings.TrimSpace(printed.String())}, signing)
}
