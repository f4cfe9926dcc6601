package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// counted counts what is read beside tenants. Where it holds, the next read at the
// door waits until it is let go.
type counted struct {
	*postgres.DB

	doors, others atomic.Int64
	hold          chan struct{} // closed to let go
}

func (c *counted) Read(ctx context.Context, reads ...postgres.Read) error {
	c.doors.Add(1)
	if c.hold != nil {
		<-c.hold
	}
	return c.DB.Read(ctx, reads...)
}

func (c *counted) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	c.others.Add(1)
	return c.DB.Query(ctx, sql, args...)
}

func (c *counted) want(t *testing.T, doors, others int64) {
	t.Helper()
	if d, o := c.doors.Swap(0), c.others.Swap(0); d != doors || o != others {
		t.Errorf("%d reads at the door and %d others, want %d and %d", d, o, doors, others)
	}
}

// atTheDoor is the API on a database whose reads are counted. Its looks beside the
// door count as well.
func atTheDoor(t *testing.T, change func(*httpapi.API)) (*world, *counted) {
	t.Helper()
	c := &counted{}
	w := serveOn(t, pgtest.Open(t), func(api *httpapi.API) {
		db, ok := api.DB.(*postgres.DB)
		if !ok {
			t.Fatalf("the database is a %T", api.DB)
		}
		c.DB = db
		api.DB = c
		api.Intake.Looks = nil // so that a look is one of a tenant
		api.Intake.Observer.Looking = func() func() { c.others.Add(1); return func() {} }
		change(api)
	})
	return w, c
}

// TestOneReadBeforeTheCommit: who has been here before is let in, and told what is
// known under the key, by one read. Each look counts as one other.
func TestOneReadBeforeTheCommit(t *testing.T) {
	t.Parallel()
	w, c := atTheDoor(t, func(*httpapi.API) {})
	first := w.accept(t, "stranger", body("order_id", `"1"`))
	c.want(t, 0, 2) // its API key, and a look
	w.accept(t, "k", body("order_id", `"2"`))
	c.want(t, 1, 1) // the look is at the door
	wantReplay(t, first, w.send(t, post("stranger", body("order_id", `"1"`))))
	c.want(t, 1, 1)
	wantProblem(t, w.send(t, post("k", body("order_id", `"3"`))), "/problems/idempotency-key-reused")
	c.want(t, 1, 1)
	for _, unread := range []call{
		get("/v1/balances"),
		post("k", body()).with("Idempotency-Key"),
		post("k", body()).with("Idempotency-Key", "4111111111111111"),
		to("/v1/charges/%00/nothing", "k", ""),
	} {
		w.send(t, unread)
		c.want(t, 1, 0)
	}
}

// TestTheDoorIsOnlyTheDoor: where a cache is asked first, and where the key is seen in
// the body, the key is looked at behind it.
func TestTheDoorIsOnlyTheDoor(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*httpapi.API){
		"of a cache":      func(api *httpapi.API) { api.Intake.Cache = &memory{records: map[string]idempotency.Record{}} },
		"of natural keys": func(api *httpapi.API) { api.NaturalKeys = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, c := atTheDoor(t, func(api *httpapi.API) { change(api); api.Intake.Observer.Looking = nil })
			w.send(t, get("/v1/balances"))
			c.want(t, 0, 1)
			first := w.accept(t, "k", body())
			c.want(t, 1, 0)
			wantReplay(t, first, w.send(t, post("k", body())))
			c.want(t, 1, 0)
		})
	}
}

// TestWhoComesTogether: each is let in as what it is, and shown what is its own,
// whoever knocks at the same moment.
func TestWhoComesTogether(t *testing.T) {
	t.Parallel()
	const crowd, revoked = 12, "sk_test_0000revoked"
	w, c := atTheDoor(t, func(api *httpapi.API) { api.Limits.Authenticating = 1 })
	b := &pgx.Batch{}
	merchants.AddKey(b, "acme", revoked)
	if err := w.db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	ours := func(i int) call { return post(fmt.Sprint("k", i), body("order_id", fmt.Sprintf(`"%d"`, i))) }
	var firsts [crowd]answer
	for i := range firsts {
		firsts[i] = w.send(t, ours(i))
	}
	for _, key := range []string{strangerKey, revoked} { // from now on they are known
		if a := w.send(t, get("/v1/balances").as(key)); a.status != http.StatusOK {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	exec(t, w.db, `update api_keys set revoked_at = clock_timestamp() where prefix = $1`, merchants.Prefix(revoked))
	c.doors.Store(0)
	c.hold = make(chan struct{})
	var all, sending sync.WaitGroup
	send := func(request call, judge func(answer)) {
		sending.Add(1)
		all.Go(func() {
			sending.Done()
			a, err := w.try(t, request)
			if err != nil {
				t.Error(err)
				return
			}
			judge(a)
		})
	}
	for i := range crowd {
		send(ours(i), func(a answer) { wantReplay(t, firsts[i], a) })
		send(ours(i).as(strangerKey), func(a answer) { // the same keys, and none of his
			if a.status != http.StatusAccepted || a.header.Get("Idempotent-Replayed") != "" || a.body == firsts[i].body {
				t.Errorf("the other merchant: status %d: %s", a.status, a.body)
			}
		})
		send(ours(i).as(revoked), func(a answer) { wantProblem(t, a, "/problems/unauthorized") })
	}
	sending.Wait()
	close(c.hold)
	all.Wait()
	if n := c.doors.Load(); n >= 3*crowd {
		t.Errorf("%d reads of %d requests", n, 3*crowd)
	}
	var of string
	for merchant, want := range map[string]int64{"acme": crowd, "globex": crowd} {
		var n int64
		if err := w.db.QueryRow(t.Context(), `select $1, count(*) from idempotency_keys where scope = $1`, merchant).Scan(&of, &n); err != nil || n != want {
			t.Errorf("%s has %d keys, want %d (%v)", merchant, n, want, err)
		}
	}
}
