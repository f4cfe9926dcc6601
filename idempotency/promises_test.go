package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

var errPlanted = errors.New("planted")

// TestPromises asks each entry for what all of them promise. TestPromises_withoutTheStandby goes on.
func TestPromises(t *testing.T) {
	t.Parallel()
	for _, e := range entries {
		for name, holds := range map[string]func(*testing.T, entry){
			"the work is done once for each key and scope":                 onceForEachKey,
			"another request under the key is refused":                     anotherRequest,
			"an answer is kept for its retention by the database's clock":  retention,
			"an expired key is refused for ever":                           expired,
			"beside a rival in flight a call that may not wait is refused": refusedInFlight,
			"beside a rival in flight a call waits without a connection":   besideARival(pgx.Tx.Commit, "of the rival", 0),
			"a rival that rolls back leaves the key free":                  besideARival(pgx.Tx.Rollback, "done", 1),
			"of many calls at once one does the work":                      manyAtOnce,
			"an error leaves the key free":                                 errorLeavesTheKeyFree,
			"a panic leaves the key free":                                  panicLeavesTheKeyFree,
			"a connection that is cut anywhere leaves one effect":          cutAnywhere,
			"a caller that has left before gets ErrUnknown":                hasLeft,
			"a lock of the work is not a rival":                            anotherLock,
			"what is no key is refused before the work":                    refusals,
			"a key that the server does not let us read is unknown":        refusedRead,
		} {
			t.Run(e.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				holds(t, e)
			})
		}
	}
}

func onceForEachKey(t *testing.T, e entry) {
	t.Helper()
	db, calls := testdb.Reused(t), 0
	for n, c := range []call{{}, {scope: "globex"}, {key: "K1"}, {scope: "ACME"}} {
		c.work = func(exec func(string) error) (string, error) {
			calls++
			return fmt.Sprint("call ", calls), exec(insertEffect)
		}
		for again := range 4 {
			wantSeen(t, e.do(t.Context(), on(db), c), fmt.Sprint("call ", n+1), again > 0)
		}
		wantEffects(t, db, n+1)
	}
}

func anotherRequest(t *testing.T, e entry) {
	t.Helper()
	db := testdb.Reused(t)
	e.do(t.Context(), on(db), call{})
	for range 2 {
		wantError(t, e.do(t.Context(), on(db), call{request: `{"amount":2}`}), idempotency.ErrReused)
	}
	wantEffects(t, db, 1)
}

func retention(t *testing.T, e entry) {
	t.Helper()
	db := testdb.Reused(t)
	for kept, want := range map[time.Duration]time.Duration{90 * time.Minute: 90 * time.Minute, 0: 24 * time.Hour, -1: 24 * time.Hour} {
		e.do(t.Context(), on(db), call{key: kept.String(), options: idempotency.Options{Retention: kept}})
		left := testdb.One[float64](t, db, `
select extract(epoch from expires_at - clock_timestamp())
  from idempotency_keys
 where key = $1
   and expires_at = date_trunc('second', expires_at)`, kept.String())
		if left > want.Seconds() || left < want.Seconds()-60 {
			t.Errorf("retention %v: for %v s, want %v", kept, left, want)
		}
	}
}

func expired(t *testing.T, e entry) {
	t.Helper()
	db := testdb.Reused(t)
	ask := call{options: idempotency.Options{Retention: time.Nanosecond}}
	wantSeen(t, e.do(t.Context(), on(db), ask), "done", false)
	for _, deleted := range []int{1, 0} {
		wantError(t, e.do(t.Context(), on(db), ask), idempotency.ErrExpired)
		wantError(t, e.do(t.Context(), on(db), call{request: `{"amount":2}`}), idempotency.ErrReused)
		wantExpired(t, db, 10, deleted)
	}
	testdb.Exec(t, db.Pool(), `update idempotency_keys set expires_at = expires_at + interval '1 hour'`) // as if the server's clock had stepped back
	wantError(t, e.do(t.Context(), on(db), ask), idempotency.ErrExpired)
	wantEffects(t, db, 1)
}

func refusedInFlight(t *testing.T, e entry) {
	t.Helper()
	db := patient(t)
	rival := e.rival(t, db)
	for _, wait := range []time.Duration{-1, time.Millisecond, 300 * time.Millisecond} {
		wantError(t, e.do(t.Context(), on(db), call{options: idempotency.Options{Wait: wait}}), idempotency.ErrInFlight)
	}
	testdb.Must(t, rival.Commit(t.Context()))
	wantSeen(t, e.do(t.Context(), on(db), call{}), "of the rival", true)
	wantEffects(t, db, 0)
}

// besideARival asks four times while a rival is in flight, which then commits or rolls back.
func besideARival(end func(pgx.Tx, context.Context) error, answer string, effects int) func(*testing.T, entry) {
	return func(t *testing.T, e entry) {
		t.Helper()
		url := testdb.URL(t)
		rival := e.rival(t, testdb.OpenAt(t, url, postgres.Options{}))
		db := testdb.OpenAt(t, url, postgres.Options{MaxConns: 2, LockTimeout: 20 * time.Millisecond})
		var waiting sync.WaitGroup
		for range 4 {
			waiting.Go(func() {
				got := e.do(t.Context(), on(db), call{options: idempotency.Options{Wait: time.Minute}})
				wantSeen(t, got, answer, got.Replayed)
			})
		}
		testrun.Blocked(t, db, 1)
		testrun.True(t, "all wait without a connection", func() bool { return db.Pool().Stat().AcquiredConns() == 0 })
		testdb.Must(t, end(rival, t.Context()))
		waiting.Wait()
		wantEffects(t, db, effects)
	}
}

func manyAtOnce(t *testing.T, e entry) {
	t.Helper()
	testrun.Long(t, "it makes many calls")
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		settings := map[string]string{"default_transaction_isolation": level}
		db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{MaxConns: 4, Settings: settings})
		var firsts atomic.Int64
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				got := e.do(t.Context(), on(db), call{options: idempotency.Options{Wait: time.Minute}})
				if !got.Replayed {
					firsts.Add(1)
				}
				wantSeen(t, got, "done", got.Replayed)
			})
		}
		all.Wait()
		if firsts.Load() != 1 {
			t.Errorf("%s: %d answers are the first", level, firsts.Load())
		}
		wantEffects(t, db, 1)
	}
}

func errorLeavesTheKeyFree(t *testing.T, e entry) {
	t.Helper()
	db := testdb.Reused(t)
	got := e.do(t.Context(), on(db), call{work: func(exec func(string) error) (string, error) {
		return "", errors.Join(exec(insertEffect), errPlanted)
	}})
	wantError(t, got, errPlanted)
	if errors.Is(got.Err, idempotency.ErrUnknown) {
		t.Errorf("%v", got.Err)
	}
	wantEffects(t, db, 0)
	wantSeen(t, e.do(t.Context(), on(db), call{}), "done", false)
}

func panicLeavesTheKeyFree(t *testing.T, e entry) {
	t.Helper()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{MaxConns: 1})
	func() {
		defer func() {
			if cause := recover(); cause != errPlanted { //nolint:errorlint // the very value
				t.Errorf("it panics with %v", cause)
			}
		}()
		e.do(t.Context(), on(db), call{work: func(exec func(string) error) (string, error) {
			testdb.Must(t, exec(insertEffect))
			panic(errPlanted)
		}})
	}()
	wantSeen(t, e.do(t.Context(), on(db), call{}), "done", false)
	wantEffects(t, db, 1)
}

// cutAnywhere cuts the connection at each round trip in turn, and asks a second time without a fault.
func cutAnywhere(t *testing.T, e entry) {
	t.Helper()
	testrun.Long(t, "it cuts each connection")
	for name, test := range map[string]struct {
		side        failpoint.Side
		away, fails bool   // no connection can be made afterwards; the work fails when it is called again
		want        string // at one of the round trips, the COMMIT
	}{
		"a COMMIT whose answer is lost is found by its key":    {failpoint.After, false, false, "replayed"},
		"a COMMIT that never reached the server is done again": {failpoint.Before, false, false, "done again"},
		"without a server afterwards it is unknown":            {failpoint.After, true, false, "unknown"},
		"work that fails afterwards ends as unknown":           {failpoint.Before, false, true, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, got := testdb.URL(t), map[string]bool{}
			hook := &trips{side: test.side, away: test.away}
			direct, through := testdb.OpenAt(t, url, postgres.Options{}), testdb.OpenAt(t, hook.proxied(t, url), postgres.Options{MaxConns: 1})
			for n := int64(1); hook.n.Load() >= n-1; n++ {
				calls, key := 0, fmt.Sprint("k", n)
				hook.n.Store(0)
				hook.cut.Store(n)
				first := e.do(t.Context(), on(through), call{key: key, work: func(exec func(string) error) (string, error) {
					if calls++; calls > 1 && test.fails {
						return "", errPlanted
					}
					return effect(exec)
				}})
				again := e.do(t.Context(), on(direct), call{key: key})
				switch unknown := errors.Is(first.Err, idempotency.ErrUnknown); {
				case again.Err != nil, first.Err == nil && !again.Replayed, first.Err != nil && !unknown && again.Replayed:
					t.Errorf("cut at round trip %d: %+v, then %+v", n, first, again)
				case unknown:
					got["unknown"] = true
				case first.Replayed:
					got["replayed"] = true
				case calls > 1:
					got["done again"] = true
				}
				wantEffects(t, direct, int(n))
			}
			if !got[test.want] {
				t.Errorf("no call was %s, but some %v", test.want, got)
			}
		})
	}
}

func hasLeft(t *testing.T, e entry) {
	t.Helper()
	db := testdb.Reused(t)
	ctx, leave := context.WithCancel(t.Context())
	got := e.do(ctx, on(db), call{work: func(exec func(string) error) (string, error) {
		defer leave()
		return effect(exec)
	}})
	wantSeen(t, got, "done", false) // a COMMIT that was begun continues
	got = e.do(ctx, on(db), call{})
	if !errors.Is(got.Err, idempotency.ErrUnknown) || !errors.Is(got.Err, context.Canceled) {
		t.Errorf("%+v", got)
	}
	wantEffects(t, db, 1)
}

func anotherLock(t *testing.T, e entry) {
	t.Helper()
	testrun.Long(t, "it waits for a time-out")
	db := patient(t)
	const register = `insert into merchants (merchant_id) values ('acme')`
	testdb.Begin(t, db.Pool(), register)
	got := e.do(t.Context(), on(db), call{work: func(exec func(string) error) (string, error) { return "", exec(register) }})
	if got.Err == nil || errors.Is(got.Err, idempotency.ErrInFlight) {
		t.Errorf("%+v", got)
	}
	wantEffects(t, db, 0)
}

func refusals(t *testing.T, e entry) {
	t.Helper()
	db, calls := testdb.Reused(t), 0
	for _, c := range []call{{key: strings.Repeat("k", 256)}, {key: "ключ"}, {scope: strings.Repeat("s", 511)}, {scope: "\xff"}, {scope: "a\x00"}} {
		c.work = func(func(string) error) (string, error) { calls++; return "", nil }
		wantError(t, e.do(t.Context(), on(db), c), idempotency.ErrInvalid)
	}
	if calls > 0 {
		t.Errorf("%d calls of the work", calls)
	}
}

func refusedRead(t *testing.T, e entry) {
	t.Helper()
	got := e.do(t.Context(), on(testdb.Connect(t, testdb.Empty(t))), call{work: func(func(string) error) (string, error) {
		t.Error("a call of the work")
		return "", nil
	}})
	if wantError(t, got, idempotency.ErrUnknown); !strings.Contains(fmt.Sprint(got.Err), `relation "idempotency_keys" does not exist`) {
		t.Errorf("%v", got.Err)
	}
}

// TestPromises_withoutTheStandby sends a request while the standby is away, and lets its commit
// end in each way in which PostgreSQL makes it visible on the primary alone. Until the standby is
// back nothing is replayed, since a failover would lose it.
func TestPromises_withoutTheStandby(t *testing.T) {
	testrun.Long(t, "it starts a server")
	t.Parallel()
	server, whole := testrun.Server(t, local.Options{InMemory: true, Fsync: true}), t
	db := testdb.OpenAt(t, testdb.Migrated(t, server, "service"), postgres.Options{CommitTimeout: time.Second, LockTimeout: 500 * time.Millisecond})
	standby := testdb.StandbyOf(t, server, "service")
	const waiting = `from pg_stat_activity where wait_event = 'SyncRep' and datname = 'service'`
	endWaits := func(how string) func(*testing.T) { // as an operator does
		return func(t *testing.T) {
			t.Helper()
			testdb.Exec(t, standby, `select `+how+`(pid) `+waiting)
		}
	}
	keys := 0
	for _, e := range entries {
		for name, end := range map[string]func(*testing.T){ // of the wait for the standby
			"an operator cancels the wait":    endWaits("pg_cancel_backend"),
			"an operator terminates the wait": endWaits("pg_terminate_backend"),
			"the primary restarts": func(t *testing.T) {
				t.Helper()
				testdb.Must(t, server.Restart(t.Context()))
				standby = testdb.StandbyOf(whole, server, "service")
			},
		} {
			t.Run(e.name+", "+name, func(t *testing.T) {
				keys++
				ask := call{key: fmt.Sprint("k", keys)}
				standby.Leaves(t)
				sent, back := make(chan struct{}), atomic.Bool{}
				go func() {
					defer close(sent)
					got := e.do(t.Context(), on(db), ask)
					if e.name == "Receive" && got.Err == nil && !back.Load() { // a pool of pgx does not show what the others need to know
						t.Errorf("answered %+v without the standby", got)
					}
				}()
				testrun.Row(t, standby, `select exists (select `+waiting+`)`)
				end(t)
				testrun.Row(t, standby, `select count(*) = $1 from idempotency_keys`, keys)
				soon, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if got := e.do(soon, on(db), ask); !errors.Is(got.Err, idempotency.ErrUnknown) {
					t.Errorf("a replay without the standby: %+v", got)
				}
				back.Store(true)
				standby.Returns(t)
				testrun.Receive(t, "the end of the request", sent)
				testrun.True(t, "the request is answered", func() bool {
					got := e.do(t.Context(), on(db), ask)
					return got.Err == nil && got.Replayed
				})
				wantEffects(t, db, keys)
			})
		}
	}
}
