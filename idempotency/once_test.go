package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

type receipt struct {
	Number int64 `json:"number"`
	Paid   int64 `json:"paid"`
	Nonce  int   `json:"-"`
}

// result is what Once returned.
type result[T any] struct {
	Value    T
	Replayed bool
	Err      error
}

func o1() idempotency.Key { return idempotency.Key{Scope: "acme", Operation: "order.v1", Value: "o-1"} }

// onceOf calls a function for the order o-1.
func onceOf[T any](ctx context.Context, db idempotency.Beginner, fn func(context.Context, pgx.Tx) (T, error)) (r result[T]) {
	r.Value, r.Replayed, r.Err = idempotency.Once(ctx, db, o1(), idempotency.Request{}, idempotency.Options{}, fn)
	return r
}

func pay(ctx context.Context, tx pgx.Tx) (receipt, error) {
	_, err := tx.Exec(ctx, insertEffect)
	return receipt{Number: 1, Paid: math.MaxInt64, Nonce: 1}, err
}

// wantPaid checks that a call, which may be the first, has one receipt.
func wantPaid(t *testing.T, got result[receipt], replayed bool) {
	t.Helper()
	want := result[receipt]{Value: receipt{Number: 1, Paid: math.MaxInt64}, Replayed: replayed}
	testrun.Same(t, "the receipt", want, got)
}

// unreadable is written as JSON and never read.
type unreadable struct{}

func (*unreadable) UnmarshalJSON([]byte) error { return errPlanted }

func TestOnce_results(t *testing.T) {
	t.Parallel()
	db, calls := testdb.Reused(t), 0
	for n := range 2 {
		wantPaid(t, onceOf(t.Context(), db.Pool(), pay), n > 0) // the first call returns what later ones read
	}
	other := onceOf(t.Context(), db.Pool(), func(context.Context, pgx.Tx) (string, error) { return "", nil })
	if other.Err == nil || !strings.HasPrefix(other.Err.Error(), "read the stored result of order.v1: ") || !other.Replayed {
		t.Errorf("as another type: %+v", other)
	}

	db = testdb.Reused(t)
	lost := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (unreadable, error) {
		_, err := pay(ctx, tx)
		return unreadable{}, err
	})
	if !errors.Is(lost.Err, errPlanted) {
		t.Errorf("a result that no call could read: %+v", lost)
	}
	wantEffects(t, db, 0) // so the key is free
	for n := range 2 {
		got := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (receipt, error) {
			calls++
			_, _ = pay(ctx, tx)
			_, _ = tx.Exec(ctx, `select 1/0`) // a refusal does not hinder it
			return receipt{Paid: 1}, fmt.Errorf("pay: %w", &idempotency.FinalError{Code: "declined", Message: "the card was declined"})
		})
		final, ok := errors.AsType[*idempotency.FinalError](got.Err)
		if !ok || final.Code != "declined" || got.Err.Error() != "the card was declined" || got.Replayed != (n > 0) || got.Value != (receipt{}) || calls != 1 {
			t.Errorf("call %d: %+v, %d calls of the function", n+1, got, calls)
		}
	}
	wantEffects(t, db, 0) // a final error undoes the writes
}

func TestOnce_failures(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
	t.Parallel()
	for name, fail := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"a goroutine that ends": func(context.Context, pgx.Tx) error { runtime.Goexit(); return nil },
		"an ignored refusal":    func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, `select 1/0`); return nil },
		"a rollback of its own": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"a rollback in SQL":     func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `rollback`); return err },
		"a commit of its own":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"a removal of its own key": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `delete from idempotency_keys`)
			return err
		},
		"rows left open": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, insertEffect+` returning 1`) //nolint:sqlclosecheck // the fault
			return err
		},
		"a result that is no JSON": nil,
	} {
		t.Run(name+" undoes the writes and leaves the key free", func(t *testing.T) {
			t.Parallel()
			db, done := testdb.Reused(t), make(chan struct{})
			go func() {
				defer close(done)
				got := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (any, error) {
					_, err := pay(ctx, tx)
					if fail == nil {
						return math.Inf(1), err
					}
					return nil, errors.Join(err, fail(ctx, tx))
				})
				if got.Err == nil || errors.Is(got.Err, idempotency.ErrUnknown) {
					t.Errorf("%+v", got)
				}
			}()
			testrun.Receive(t, "the call", done)
			wantEffects(t, db, 0)
			wantPaid(t, onceOf(t.Context(), db.Pool(), pay), false)
			wantEffects(t, db, 1)
		})
	}
}

func TestOnce_inTheCallersTransaction(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, end := range []func(pgx.Tx) error{
		func(tx pgx.Tx) error { return tx.Rollback(t.Context()) },
		func(tx pgx.Tx) error { return tx.Commit(t.Context()) },
	} {
		tx, err := db.Pool().Begin(t.Context())
		testdb.Must(t, err)
		failing := func(context.Context, pgx.Tx) (receipt, error) { return receipt{}, errPlanted }
		if got := onceOf(t.Context(), tx, failing); !errors.Is(got.Err, errPlanted) {
			t.Errorf("%+v", got)
		}
		for n := range 2 {
			wantPaid(t, onceOf(t.Context(), tx, pay), n > 0)
		}
		testdb.Must(t, end(tx))
	}
	wantEffects(t, db, 1)
	wantPaid(t, onceOf(t.Context(), db.Pool(), pay), true)
}

// The session has the time-out of a minute, and a call of Once within itself is a rival.
func TestOnce_leavesTheSessionsLockTimeOutToTheWork(t *testing.T) {
	t.Parallel()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: time.Minute})
	got := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (timeout string, err error) {
		if _, _, err := idempotency.Once(ctx, db.Pool(), o1(), idempotency.Request{}, idempotency.Options{Wait: -1}, pay); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("the call within itself: %v", err)
		}
		err = tx.QueryRow(ctx, `select current_setting('lock_timeout')`).Scan(&timeout)
		return timeout, err
	})
	if got.Err != nil || got.Value != "1min" {
		t.Errorf("%+v", got)
	}
	wantEffects(t, db, 0)
}

func TestOnce_inEachModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range testdb.Modes() {
		pool := testdb.PoolIn(t, testdb.URL(t), mode)
		for n := range 2 {
			wantPaid(t, onceOf(t.Context(), pool, pay), n > 0)
		}
	}
}

func keyOf(value string) idempotency.Key {
	return idempotency.Key{Scope: "acme", Operation: "POST /v1/charges", Value: value}
}

func theAnswer() idempotency.Answer {
	return idempotency.Answer{
		StatusCode: http.StatusAccepted, Body: []byte("{\"id\": \"ch_1\"}\n\x00\xff"),
		Header: http.Header{"Content-Type": {"application/json"}, "Location": {"/v1/charges/ch_1"}, "Link": {"</a>", "</b>"}},
	}
}

func theRequest() idempotency.Request {
	return idempotency.Request{Fingerprint: []byte("fingerprint"), Canonical: []byte(`{"amount":1}`)}
}

func answer(context.Context, *pgx.Batch, time.Time) (idempotency.Answer, error) {
	return theAnswer(), nil
}

// A new request costs one round trip to read its key and one to commit, a replay the first alone.
func TestReceive_roundTrips(t *testing.T) {
	t.Parallel()
	counted := &trips{side: failpoint.After}
	db := on(testdb.OpenAt(t, counted.proxied(t, testdb.URL(t)), postgres.Options{MaxConns: 1}))
	var took [3]int64
	for n, key := range []string{"prepares the statements", "k", "k"} {
		before := counted.n.Load()
		wantSeen(t, entries[0].do(t.Context(), db, call{key: key}), "done", n == 2)
		took[n] = counted.n.Load() - before
	}
	if took[1] != 2 || took[2] != 1 {
		t.Errorf("a new request takes %d round trips, a replay %d", took[1], took[2])
	}
}

// A call that may meet a rival waits for it in a transaction of its own: a group would be refused.
func TestReceive_ofAWaiterRefusesNoGroup(t *testing.T) {
	testrun.Long(t, "it waits for locks")
	t.Parallel()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: 20 * time.Millisecond, Writes: groupcommit.NewStatements(idempotency.Writes()...)})
	rival := entries[0].rival(t, db)
	receive := func(key string) error {
		_, err := idempotency.Receive(t.Context(), db, idempotency.Key{Scope: "acme", Operation: "pay.v1", Value: key}, idempotency.Request{}, idempotency.Options{Wait: time.Minute}, answer)
		return err
	}
	var waiters, others errgroup.Group
	for range 4 {
		waiters.Go(func() error { return receive("k1") })
	}
	testrun.Blocked(t, db, 1)
	before := db.Committer().Stats().Refusals
	for n := range 16 {
		others.Go(func() (err error) {
			for m := 0; m < 100 && err == nil; m++ {
				err = receive(fmt.Sprint(n, "-", m))
			}
			return err
		})
	}
	testdb.Must(t, others.Wait())
	if refused := db.Committer().Stats().Refusals - before; refused > 4 {
		t.Errorf("%d group commits were refused, want one for each first try at most", refused)
	}
	testdb.Must(t, rival.Commit(t.Context()))
	testdb.Must(t, waiters.Wait())
}

// failing is a database whose key is free to read, and whose n-th commit ends with an error.
type failing struct {
	groupcommit.DB

	n    int
	with func(n int) error
}

func (db *failing) Commit(context.Context, *pgx.Batch) error {
	db.n++
	return db.with(db.n)
}

func TestReceive_triesAgainWithinBounds(t *testing.T) {
	t.Parallel()
	const wait = time.Minute // in which there are more tries than may fail
	refused := func(code string) error {
		return &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: code, Where: "idempotency_keys_once"}
	}
	for name, test := range map[string]struct {
		with  func(n int) error
		want  error
		tries int // more if 0
	}{
		"a rival in flight for ever is waited for no longer than Wait": {func(int) error { return refused("55P03") }, idempotency.ErrInFlight, 0},
		"after an unknown commit the rival may be ours": {func(n int) error {
			return map[bool]error{true: groupcommit.ErrUnknown, false: refused("55P03")}[n == 1]
		}, idempotency.ErrUnknown, 0},
		"the work runs again after a race of its own": {func(n int) error { return map[bool]error{true: errPlanted}[n < 16] }, nil, 16},
		"work that loses 16 of them is unknown":       {func(int) error { return errPlanted }, idempotency.ErrUnknown, 16},
		"a commit that loses a race may pass later":   {func(n int) error { return map[bool]error{true: refused("40001")}[n < 4] }, nil, 4},
		"one that loses each race is unknown":         {func(int) error { return refused("40P01") }, idempotency.ErrUnknown, 4},
		"one that is too slow is too":                 {func(int) error { return refused("57014") }, idempotency.ErrUnknown, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				isPlanted := func(err error) bool { return errors.Is(err, errPlanted) }
				o := idempotency.Options{Wait: wait, IsConflict: isPlanted, Read: func(context.Context, groupcommit.Querier, idempotency.Key) (idempotency.KeyState, error) {
					return idempotency.KeyState{Now: time.Now()}, nil
				}}
				began, db := time.Now(), &failing{with: test.with}
				_, err := idempotency.Receive(t.Context(), db, keyOf("k1"), theRequest(), o, func(_ context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
					if b.Len() > 0 || !now.Equal(began) {
						t.Errorf("decided at %v on %d statements", now, b.Len())
					}
					return theAnswer(), nil
				})
				took := time.Since(began)
				if !errors.Is(err, test.want) || test.tries > 0 && db.n != test.tries || (test.tries == 0) != (took == wait && errors.Is(err, idempotency.ErrInFlight)) {
					t.Errorf("after %d tries and %v: %v", db.n, took, err)
				}
			})
		})
	}
}

func wantExpired(t *testing.T, q groupcommit.Querier, limit, want int) {
	t.Helper()
	if got, err := idempotency.ExpireKeys(t.Context(), q, limit); err != nil || got != want {
		t.Errorf("%d expired, want %d: %v", got, want, err)
	}
}

// The oldest keys lose answer and request, up to the limit and each once. Those of a process that dies are expired by the
// next.
func TestExpireKeys(t *testing.T) {
	t.Parallel()
	db, b := testdb.Reused(t), &pgx.Batch{}
	first := testdb.One[time.Time](t, db, `select clock_timestamp() - interval '1 minute'`)
	for i := range 5 { // the oldest first
		idempotency.Claim(b, keyOf(fmt.Sprint("old", i)), theRequest(), theAnswer(), first.Add(time.Duration(i)*time.Millisecond))
	}
	testdb.Must(t, db.Commit(t.Context(), b))
	dead := testdb.Begin(t, db.Pool(), `select 1`)
	wantExpired(t, dead, 2, 2)
	testrun.Same(t, "tombstones", "old0 old1", testdb.One[string](t, dead, `
select string_agg(key, ' ' order by key)
  from idempotency_keys
 where body is null
   and request is null
   and headers = '{"Location": ["/v1/charges/ch_1"]}'`))
	wantExpired(t, db, 10, 3)
	testdb.Must(t, dead.Rollback(t.Context()))
	wantExpired(t, db, 10, 2)
	wantExpired(t, db, 10, 0)
}
