package intake_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// TestRequestsThatShareACommit: requests of two merchants at once, whose accepts are
// committed together, and then some under keys that come three times. Of each key
// there is one charge, it is its merchant's own, and all have its answer.
func TestRequestsThatShareACommit(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	address := pgtest.URL(t)
	owner := open(t, address, postgres.Options{})
	// As the api's.
	db := open(t, address, postgres.Options{Role: postgres.RoleAPI, Writes: groupcommit.NewOrder(slices.Concat(idempotency.Writes(), ledger.Writes(), outbox.Writes())...), LockTimeout: 25 * time.Millisecond})
	in := &intake.Intake{DB: db, Keys: idempotency.Receiver{
		Keys: idempotency.NewKeyReader(db, 0), Retention: time.Hour, Wait: 5 * time.Second, Waiters: make(chan struct{}, 64),
	}}
	const keys, repeated, times = 80, 20, 3
	answers := make([][times]string, keys)
	accept := func(from, to, times int) {
		var work errgroup.Group
		for i := range times {
			for key := from; key < to; key++ {
				work.Go(func() error {
					accepted, err := in.AcceptCharge(t.Context(), merchant(key), request(fmt.Sprint("k", key/2), "f"), mug())
					answers[key][i] = string(accepted.Body)
					return err
				})
			}
		}
		if err := work.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	accept(0, keys-repeated, 1)
	if db.Shared().Units == 0 {
		t.Error("no accept had company")
	}
	accept(keys-repeated, keys, times)
	for key, same := range answers {
		if same[0] == "" || key >= keys-repeated && (same[1] != same[0] || same[2] != same[0]) {
			t.Errorf("key %d has the answers %q", key, same)
		}
	}
	wantCharges(t, owner, keys)
	var strays int
	err := owner.QueryRow(t.Context(), `
select count(*)
  from idempotency_keys k
  left join ledger_events e
    on e.merchant_id = k.scope
   and k.location like '%' || e.stream_id
 where e.stream_id is null
    or e.txid::text <> k.xmin::text`).Scan(&strays)
	if err != nil || strays != 0 {
		t.Errorf("%d keys without a charge of their merchant and their commit, %v", strays, err)
	}
}

// merchant is one of two, who use the same keys.
func merchant(i int) intake.Account {
	a := acme()
	if i%2 == 1 {
		a.MerchantID = "globex"
	}
	return a
}
