package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// counted counts the round trips that read the merchants of API keys, their statements, and the
// reads of idempotency keys. With hold, a read of merchants waits until hold is closed. By the
// clock, a request takes no time, however busy the machine is.
type counted struct {
	*postgres.DB
	clock

	rounds, statements, keys atomic.Int64
	hold                     chan struct{}
}

func (c *counted) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	defer c.rounds.Add(1) // once it has read
	c.statements.Add(1)
	if c.hold != nil {
		<-c.hold
	}
	return c.DB.Query(ctx, sql, args...)
}

// want compares the reads of idempotency keys with those of one request, which reads a merchant once.
func (c *counted) want(t *testing.T, keys int64) {
	t.Helper()
	if r, s, k := c.rounds.Swap(0), c.statements.Swap(0), c.keys.Swap(0); r != 1 || s != 1 || k != keys {
		t.Errorf("there were %d reads of merchants with %d statements, and %d of keys, want %d of keys", r, s, k, keys)
	}
}

// countingReads serves on a database whose reads are counted.
func countingReads(t *testing.T, changes ...func(*httpapi.Config)) (*world, *counted) {
	t.Helper()
	c := &counted{}
	w := serve(t, append(changes, func(api *httpapi.Config) {
		c.DB, _ = api.DB.(*postgres.DB)
		api.DB, api.Now = c, c.now
		read := api.Intake.Options.Read
		api.Intake.Options.Read = func(ctx context.Context, q groupcommit.Querier, key idempotency.Key) (idempotency.KeyState, error) {
			c.keys.Add(1)
			return read(ctx, q, key)
		}
	})...)
	return w, c
}

// TestKeyedRequest_readsItsKeyOnce: the API key takes one read, and the idempotency key another.
func TestKeyedRequest_readsItsKeyOnce(t *testing.T) {
	t.Parallel()
	w, c := countingReads(t)
	first := w.accept(t, "first", body("order_id", `"1"`))
	c.want(t, 1)
	charge := w.accept(t, "k", body("order_id", `"2"`)).header.Get("Location")
	c.want(t, 1)
	wantReplay(t, first, w.send(t, post("first", body("order_id", `"1"`))))
	c.want(t, 1)
	wantProblem(t, w.send(t, post("k", body("order_id", `"3"`))), "/problems/idempotency-key-reused")
	c.want(t, 1)
	for _, path := range []string{charge + "/cancel", charge + "/refunds"} {
		one := w.send(t, to(path, "k", "{}"))
		c.want(t, 1)
		again := w.send(t, to(path, "k", "{}"))
		c.want(t, 1)
		if one.status >= 500 || again.status != one.status || again.body != one.body {
			t.Errorf("%s: %d %s and then %d %s", path, one.status, one.body, again.status, again.body)
		}
	}
	w.wantAbandoned(t, "k", "pending")
	c.want(t, 3) // to take it, to see what it led to, and of the cancellation
	for _, unread := range []call{
		get("/v1/balances"),
		get("/v1/charges").with("Idempotency-Key", "k"),
		post("k", body()).with("Idempotency-Key"),
		to("/v1/charges/%00/nothing", "k", ""),
	} {
		w.send(t, unread)
		c.want(t, 0)
	}
}

// TestKeyedRequest_aLockOnKeysDelaysNoOthers: a lock on the table of keys delays requests that
// have one. Few of their reads are in flight, also after the lock time-out, so others are served.
// The delayed ones have effects once, if they are sent again.
func TestKeyedRequest_aLockOnKeysDelaysNoOthers(t *testing.T) {
	t.Parallel()
	const many, few = 24, 2
	db := openWith(t, postgres.Options{LockTimeout: 200 * time.Millisecond, MaxConns: few + 3})
	w := serveOn(t, db, func(api *httpapi.Config) { api.Intake.Options.Read = intake.BatchedRead(db, few) })
	held := testdb.Begin(t, w.db.Pool(), `lock table idempotency_keys in access exclusive mode`)
	var calls []call
	for i := range many {
		calls = append(calls, post(fmt.Sprint("k", i), body("order_id", fmt.Sprintf(`"%d"`, i))))
	}
	stuck := w.sendAll(t, calls...)
	waitingBetween(t, w.db, 1, few)
	for answered := 0; answered < many; {
		select {
		case a := <-stuck:
			answered++
			wantProblem(t, a, "/problems/unavailable")
		default:
			w.read(t, get("/v1/balances"))
			if n := testdb.One[int](t, w.db, selectWaiting); n > few {
				t.Fatalf("%d reads wait for the lock, want at most %d", n, few)
			}
		}
	}
	testdb.Must(t, held.Rollback(t.Context()))
	await.Row(t, w.db, `select not exists (select from idempotency_keys)`)
	again := w.sendAll(t, calls...)
	for range many {
		wantStatus(t, <-again, http.StatusAccepted)
	}
}

// TestAuthentication_batchesKeepCallersApart: each request of a batch is authenticated as its own
// caller and sees its own keys.
func TestAuthentication_batchesKeepCallersApart(t *testing.T) {
	t.Parallel()
	const crowd, revoked = 12, "sk_test_0000revoked"
	w, c := countingReads(t, func(api *httpapi.Config) { api.Limits.Authenticating = 1 })
	b := &pgx.Batch{}
	merchants.AddKey(b, "acme", revoked)
	testdb.Must(t, w.db.Commit(t.Context(), b))
	ours := func(i int) call { return post(fmt.Sprint("k", i), body("order_id", fmt.Sprintf(`"%d"`, i))) }
	var firsts [crowd]answer
	for i := range firsts {
		firsts[i] = w.send(t, ours(i))
	}
	for _, key := range []string{strangerKey, revoked} { // from now on they are recent
		w.read(t, get("/v1/balances").as(key))
	}
	exec(t, w.db, `update api_keys set revoked_at = clock_timestamp() where prefix = $1`, merchants.Prefix(revoked))
	c.rounds.Store(0)
	c.keys.Store(0)
	c.statements.Store(0)
	c.hold = make(chan struct{})
	var callers [crowd][3]<-chan answer
	for i := range callers {
		for n, request := range []call{ours(i), ours(i).as(strangerKey), ours(i).as(revoked)} {
			callers[i][n] = w.sendAll(t, request)
		}
	}
	await.True(t, "a read is in flight", func() bool { return c.statements.Load() > 0 })
	close(c.hold)
	for i, answers := range callers {
		wantReplay(t, firsts[i], <-answers[0])
		a := <-answers[1] // the same keys, and none of its own
		if a.status != http.StatusAccepted || a.header.Get("Idempotent-Replayed") != "" || a.body == firsts[i].body {
			t.Errorf("the other merchant: status %d: %s", a.status, a.body)
		}
		wantProblem(t, <-answers[2], "/problems/unauthorized")
	}
	if n := c.rounds.Load(); n >= 3*crowd {
		t.Errorf("%d reads of %d requests", n, 3*crowd)
	}
	if n := c.keys.Load(); n > 2*crowd { // none for a key that was refused
		t.Errorf("%d reads of keys for %d requests", n, 3*crowd)
	}
	await.Row(t, w.db, `
select count(*) filter (where scope = 'acme') = $1 and count(*) filter (where scope = 'globex') = $1
  from idempotency_keys`, crowd)
}
