package intake_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// TestGroupCommit_ofSeveralRequests: requests of two merchants at once, whose accepts are
// committed together, and then some under keys that come three times. Of each key
// there is one charge, it is its merchant's own, and all have its answer.
func TestGroupCommit_ofSeveralRequests(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	owner := testdb.Reused(t)
	// As the api's.
	db := testdb.OpenAt(t, owner.Pool().Config().ConnString(), postgres.Options{
		Role:   postgres.RoleAPI,
		Writes: groupcommit.NewStatements(slices.Concat(idempotency.Writes(), ledger.Writes(), outbox.Writes())...), LockTimeout: 25 * time.Millisecond,
	})
	in := &intake.Intake{DB: db, Options: idempotency.Options{
		Read: intake.BatchedRead(db, 0), Retention: time.Hour, Wait: time.Minute,
	}}
	const keys, repeated, times = 80, 20, 3
	answers := make([][times]string, keys)
	accept := func(from, to, times int) {
		var work errgroup.Group
		for i := range times {
			for key := from; key < to; key++ {
				work.Go(func() error {
					account := acme()
					account.MerchantID = []string{"acme", "globex"}[key%2]
					accepted, err := in.AcceptCharge(t.Context(), account, request(fmt.Sprint("k", key/2)), mug())
					answers[key][i] = string(accepted.Body)
					return err
				})
			}
		}
		testdb.Must(t, work.Wait())
	}
	accept(0, keys-repeated, 1)
	if db.Committer().Stats().Batches == 0 {
		t.Error("no accept shared a commit")
	}
	accept(keys-repeated, keys, times)
	for key, same := range answers {
		if same[0] == "" || key >= keys-repeated && (same[1] != same[0] || same[2] != same[0]) {
			t.Errorf("key %d has the answers %q", key, same)
		}
	}
	wantCharges(t, owner, keys)
	strays := testdb.One[int](t, owner, `
select count(*)
  from idempotency_keys k
  left join ledger_events e
    on e.merchant_id = k.scope
   and k.headers #>> '{Location,0}' like '%' || e.stream_id
 where e.stream_id is null
    or e.txid::text <> k.xmin::text`)
	if strays != 0 {
		t.Errorf("%d keys without a charge of their merchant and their commit", strays)
	}
}

// TestBatchedRead asks for many keys while all connections are in use: those that then share
// a round trip are each read as the tenant of their scope.
func TestBatchedRead(t *testing.T) {
	t.Parallel()
	owner := testdb.Reused(t)
	db := testdb.OpenAt(t, owner.Pool().Config().ConnString(), postgres.Options{Role: postgres.RoleAPI, MaxConns: 1})
	for _, scope := range []string{"acme", "globex"} {
		b := &pgx.Batch{}
		idempotency.Claim(b, idempotency.Key{Scope: scope, Value: "taken"}, idempotency.Request{},
			idempotency.Answer{StatusCode: http.StatusOK, Body: []byte(scope)}, time.Now().Add(time.Hour))
		testdb.Must(t, owner.Commit(t.Context(), b))
	}
	held, err := db.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	read := intake.BatchedRead(db, 1)
	var asked errgroup.Group
	for n := range 300 {
		key := idempotency.Key{Scope: []string{"acme", "globex", "initech"}[n%3], Value: []string{"taken", "free"}[n%2]}
		asked.Go(func() error {
			state, err := read(t.Context(), nil, key)
			taken := key.Scope != "initech" && key.Value == "taken"
			if state.Key != key || state.Found != taken || state.Now.IsZero() || taken && string(state.Body) != key.Scope {
				t.Errorf("%+v: found %v, %+v", key, state.Found, state)
			}
			return err
		})
	}
	held.Release()
	if err := asked.Wait(); err != nil {
		t.Error(err)
	}
}
