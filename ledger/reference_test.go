package ledger_test

import (
	"errors"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

func TestFindByPaymentIntent(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")...)
	appended(t, db, ledger.New("ch_2"), because("a"), paid("globex", "pi_2")...)
	appended(t, db, ledger.New("ch_3"), because("a"), paid("acme", "pi_3")[:2]...)

	t.Run("finds the charge that was captured under it", func(t *testing.T) {
		t.Parallel()
		for intent, want := range map[string]ledger.Owner{"pi_1": {"ch_1", "acme"}, "pi_2": {"ch_2", "globex"}} {
			if got, err := ledger.FindByPaymentIntent(t.Context(), db, domain.Provider, intent); got != want || err != nil {
				t.Errorf("%s is %q, %v, want %s", intent, got, err, want)
			}
		}
	})

	for name, reference := range map[string][2]string{
		"an intent that is not captured yet":   {domain.Provider, "pi_3"},
		"an intent of nobody":                  {domain.Provider, "pi_4"},
		"an intent of another provider":        {"other", "pi_1"},
		"an intent that only begins like ours": {domain.Provider, "pi_"},
		"no intent":                            {domain.Provider, ""},
	} {
		t.Run(name+" has no charge", func(t *testing.T) {
			t.Parallel()
			got, err := ledger.FindByPaymentIntent(t.Context(), db, reference[0], reference[1])
			if got != (ledger.Owner{}) || !errors.Is(err, ledger.ErrNotFound) {
				t.Errorf("found %q, %v", got, err)
			}
		})
	}
}

// TestFindByPaymentIntentWalksItsIndex offers nothing but indexes, and looks
// which one was taken.
func TestFindByPaymentIntentWalksItsIndex(t *testing.T) {
	t.Parallel()
	db, err := postgres.Open(t.Context(), testdb.URL(t), postgres.Options{
		AllowUnsafeDurability: true, AllowPlaintext: true, Settings: map[string]string{"enable_seqscan": "off"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")...)
	if _, err := ledger.FindByPaymentIntent(t.Context(), db, domain.Provider, "pi_1"); err != nil {
		t.Fatal(err)
	}
	db.Pool().Reset() // what a session did is counted when it rests or ends
	await.Row(t, db, `select idx_scan = 1 from pg_stat_user_indexes where indexrelname = 'ledger_events_one_capture_per_reference'`)
}

func TestFind(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")...)
	if got, err := ledger.Find(t.Context(), db, "ch_1"); got != (ledger.Owner{"ch_1", "acme"}) || err != nil {
		t.Errorf("found %q, %v", got, err)
	}
	for _, id := range []string{"ch_2", "ch_", ""} {
		if got, err := ledger.Find(t.Context(), db, id); got != (ledger.Owner{}) || !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%q: found %q, %v", id, got, err)
		}
	}
}
