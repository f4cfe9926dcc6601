package intake_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

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
			if state.Key != key || state.Found != taken || state.Now.IsZero() || taken && string(state.Record.Body) != key.Scope {
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
