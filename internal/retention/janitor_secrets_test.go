package retention_test

import (
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// A secret that is over lies in the clear no longer than until the next sweep,
// whether or not its merchant ever replaces one again.
func TestJanitorForgetsSecretsThatAreOver(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	exec(
		t, db,
		`insert into merchants (merchant_id) values ('acme'), ('globex')`,
		`insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at)
			select m, n, 'whsec_' || n, sha256('s'), 'test', (array[now() - interval '1 day', now(), now() + interval '1 day', null])[n]
			  from unnest(array['acme', 'globex']) m, generate_series(1, 4) n`,
	)
	k := newKeeper(testdb.As(t, db, postgres.RoleWorker), "a")
	told := make(chan struct{}, 1)
	k.each = func() { // rows are gone a moment before they are counted
		select {
		case told <- struct{}{}:
		default:
		}
	}
	stop := k.start(t)
	select {
	case <-told:
	case <-time.After(await.Stall):
		t.Fatalf("nothing is swept\n%s", k.log)
	}
	stop()
	wantCounts(t, map[string]int64{"webhook_secrets": 4}, k)
	var left string
	if err := db.QueryRow(t.Context(), `select string_agg(merchant_id || generation, ' ' order by 1) from webhook_secrets where secret is not null`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != "acme3 acme4 globex3 globex4" {
		t.Errorf("kept are %s", left)
	}
}
