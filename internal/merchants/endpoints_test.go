package merchants_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/merchants"
)

// TestEndpoints: who asks at the same moment is told of its own merchant, and a
// secret that was replaced counts until its end.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	db := told(t)
	register(t, db, merchants.Merchant{ID: "globex"}, merchants.Webhook{URL: "https://globex.example/hook", Secret: "whsec_Z2xvYmV4"})
	register(t, db, merchants.Merchant{ID: "silent"}, merchants.Webhook{})
	endpoints := merchants.NewEndpoints(db, 0)
	same := func(secrets int) {
		t.Helper()
		var all sync.WaitGroup
		for range 16 {
			for merchant, signing := range map[string]int{"acme": secrets, "globex": 1} {
				all.Go(func() {
					want, err := merchants.ReadWebhook(t.Context(), db, merchant)
					if err != nil || len(want.Secrets) != signing || want.URL == "" {
						t.Errorf("%s alone: %d secrets, want %d, %v", merchant, len(want.Secrets), signing, err)
					}
					got, err := endpoints.Read(t.Context(), merchant)
					if diff := cmp.Diff(want, got); err != nil || diff != "" {
						t.Errorf("%s: %v (-want +got):\n%s", merchant, err, diff)
					}
				})
			}
			for _, merchant := range []string{"silent", "nobody"} {
				all.Go(func() {
					if e, err := endpoints.Read(t.Context(), merchant); !errors.Is(err, merchants.ErrNoWebhook) {
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
	passForSecrets(t, db, "2 hours")
	same(1)
}
