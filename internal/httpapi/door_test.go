package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// counted counts what is read at the door, and in how many statements, and looks at
// keys. Where it holds, a read at the door waits until it is let go.
type counted struct {
	*postgres.DB

	doors, statements, looks atomic.Int64
	hold                     chan struct{} // closed to let go
}

func (c *counted) Read(ctx context.Context, reads ...postgres.Read) error {
	defer c.doors.Add(1) // once it has read
	c.statements.Add(int64(len(reads)))
	if c.hold != nil {
		<-c.hold
	}
	return c.DB.Read(ctx, reads...)
}

// reads are how many there were at the door, of how many statements, and looks.
type reads struct{ doors, statements, looks int64 }

// A key is let in by one statement, and looked at by one more.
func none() reads   { return reads{} }
func letIn() reads  { return reads{doors: 1, statements: 1} }
func looked() reads { return reads{doors: 1, statements: 2, looks: 1} }
func behind() reads { return reads{doors: 1, statements: 1, looks: 1} }

func (c *counted) want(t *testing.T, want reads) {
	t.Helper()
	if got := (reads{c.doors.Swap(0), c.statements.Swap(0), c.looks.Swap(0)}); got != want {
		t.Errorf("there were %+v, want %+v", got, want)
	}
}

// atTheDoor is the API on a database whose reads are counted.
func atTheDoor(t *testing.T, change func(*httpapi.API)) (*world, *counted) {
	t.Helper()
	c := &counted{}
	w := serveOn(t, pgtest.Reused(t), func(api *httpapi.API) {
		db, ok := api.DB.(*postgres.DB)
		if !ok {
			t.Fatalf("the database is a %T", api.DB)
		}
		c.DB = db
		api.DB = c
		api.Intake.Keys.Observer.Reading = func() func() { c.looks.Add(1); return func() {} }
		change(api)
	})
	return w, c
}

// TestOneReadBeforeTheCommit: who has been here before is let in, and told what is
// known under the key, by one read.
func TestOneReadBeforeTheCommit(t *testing.T) {
	t.Parallel()
	w, c := atTheDoor(t, func(*httpapi.API) {})
	first := w.accept(t, "stranger", body("order_id", `"1"`))
	c.want(t, reads{looks: 1}) // the API key is asked for in the line of strangers
	charge := w.accept(t, "k", body("order_id", `"2"`)).header.Get("Location")
	c.want(t, looked())
	wantReplay(t, first, w.send(t, post("stranger", body("order_id", `"1"`))))
	c.want(t, looked())
	wantProblem(t, w.send(t, post("k", body("order_id", `"3"`))), "/problems/idempotency-key-reused")
	c.want(t, looked())
	for _, path := range []string{charge + "/cancel", charge + "/refunds"} {
		one := w.send(t, to(path, "k", "{}"))
		c.want(t, looked())
		again := w.send(t, to(path, "k", "{}"))
		c.want(t, looked())
		if one.status >= 500 || again.status != one.status || again.body != one.body {
			t.Errorf("%s: %d %s and then %d %s", path, one.status, one.body, again.status, again.body)
		}
	}
	for _, unread := range []call{
		get("/v1/balances"),
		get("/v1/charges").with("Idempotency-Key", "k"),
		post("k", body()).with("Idempotency-Key"),
		post("k", body()).with("Idempotency-Key", "4111111111111111"),
		to("/v1/charges/%00/nothing", "k", ""),
	} {
		w.send(t, unread)
		c.want(t, letIn())
	}
}

// TestTheDoorIsOnlyTheDoor: where a cache is asked first, and where the key is seen in
// the body, the key is looked at behind it.
func TestTheDoorIsOnlyTheDoor(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*httpapi.API)
		replay reads
	}{
		"of a cache": {func(api *httpapi.API) {
			api.Intake.Keys.Cache = &memory{records: map[string]idempotency.Record{}}
		}, letIn()},
		"of natural keys": {func(api *httpapi.API) { api.NaturalKeys = true }, behind()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, c := atTheDoor(t, test.change)
			w.send(t, get("/v1/balances"))
			c.want(t, none())
			first := w.accept(t, "k", body())
			c.want(t, behind())
			wantReplay(t, first, w.send(t, post("k", body())))
			c.want(t, test.replay)
		})
	}
}

// TestALockOnAllKeys holds up who has one, at the door and then behind it, and nobody
// else.
func TestALockOnAllKeys(t *testing.T) {
	t.Parallel()
	const many = 8
	for name, test := range map[string]struct {
		timeout time.Duration
		looks   int64 // more than so many are made before the lock is gone
	}{
		"at the door": {patience, 0},
		"behind it":   {300 * time.Millisecond, many},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var looks atomic.Int64
			w := serveOn(t, openWith(t, postgres.Options{LockTimeout: test.timeout}), func(api *httpapi.API) {
				api.Limits.Authenticating = 1
				api.Intake.Keys.Observer.Reading = func() func() { looks.Add(1); return func() {} }
			})
			for _, key := range []string{apiKey, strangerKey} {
				w.send(t, get("/v1/balances").as(key))
			}
			held := begin(t, w.db)
			exec(t, held, `lock table idempotency_keys in access exclusive mode`)
			stuck := &crowd{answers: make(chan answer, many)}
			for i := range many {
				stuck.send(t, w, post(fmt.Sprint("k", i), body("order_id", fmt.Sprintf(`"%d"`, i))))
			}
			waitingBetween(t, w.db, 1, many)
			for _, free := range []call{get("/v1/balances"), get("/v1/balances").as(strangerKey)} {
				if a := w.send(t, free); a.status != http.StatusOK {
					t.Errorf("status %d: %s", a.status, a.body)
				}
			}
			await.Progress(t, fmt.Sprintf("there are more than %d looks", test.looks), func() (seen string, done bool) {
				return strconv.FormatInt(looks.Load(), 10), looks.Load() > test.looks
			})
			if err := held.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range many {
				if a := <-stuck.answers; a.status != http.StatusAccepted {
					t.Errorf("status %d: %s", a.status, a.body)
				}
			}
			stuck.all.Wait()
		})
	}
}

// TestALateBody: what was known when the head of a request came is old when its body
// comes later.
func TestALateBody(t *testing.T) {
	pgtest.Long(t, "it waits for bodies")
	t.Parallel()
	w, c := atTheDoor(t, func(*httpapi.API) {})
	w.accept(t, "k", body())
	c.want(t, reads{looks: 1})
	request := post("k", body())
	var head strings.Builder
	fmt.Fprintf(&head, "POST %s HTTP/1.1\r\nHost: payonce\r\nContent-Length: %d\r\n", request.path, len(request.body))
	if err := request.header.Write(&head); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, strings.TrimPrefix(w.url, "http://"), head.String()+"\r\n")
	await.True(t, "the API key is read", func() bool { return c.doors.Load() == 1 })
	exec(t, w.db, `
update idempotency_keys
   set body = null, content_type = null, request = null, expires_at = clock_timestamp()`)
	await.Row(t, w.db, `select clock_timestamp() > expires_at + interval '2 s' from idempotency_keys`)
	if _, err := io.WriteString(conn, request.body); err != nil {
		t.Fatal(err)
	}
	a := readAnswer(t, bufio.NewReader(conn))
	wantProblem(t, a, "/problems/idempotency-key-expired")
	c.want(t, reads{doors: 1, statements: 2, looks: 2})
}

// TestWhoWaitsLooksAgain: what was seen before a wait is not believed after it.
func TestWhoWaitsLooksAgain(t *testing.T) {
	t.Parallel()
	db := openWith(t, postgres.Options{LockTimeout: 50 * time.Millisecond})
	var commits []idempotency.Commit
	var rival pgx.Tx
	w := serveOn(t, db, func(api *httpapi.API) {
		api.Intake.Keys.Waiters = make(chan struct{}, 1)
		api.Intake.Keys.Observer.Committed = func(kind idempotency.Commit) {
			commits = append(commits, kind)
			if kind == idempotency.CommitInFlight {
				if err := rival.Commit(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	})
	w.send(t, get("/v1/balances"))
	rival = hold(t, w.db, "k")
	wantProblem(t, w.send(t, post("k", body()).with("Prefer", "wait=5")), "/problems/idempotency-key-reused")
	if want := []idempotency.Commit{idempotency.CommitInFlight}; !slices.Equal(commits, want) {
		t.Errorf("commits were %v, want %v", commits, want)
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
	c.looks.Store(0)
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
	if n := c.looks.Load(); n > 3*crowd { // of the revoked one fewer, once it is a stranger's
		t.Errorf("%d looks of %d requests", n, 3*crowd)
	}
	var of string
	for merchant, want := range map[string]int64{"acme": crowd, "globex": crowd} {
		var n int64
		if err := w.db.QueryRow(t.Context(), `select $1, count(*) from idempotency_keys where scope = $1`, merchant).Scan(&of, &n); err != nil || n != want {
			t.Errorf("%s has %d keys, want %d (%v)", merchant, n, want, err)
		}
	}
}
