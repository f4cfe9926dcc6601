package idempotency_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// ends is a pool whose transactions a function commits. It refuses to end one, or a savepoint,
// without a deadline.
type ends struct {
	*pgxpool.Pool

	commit func(ctx context.Context, tx pgx.Tx) error
}

func (e ends) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := e.Pool.Begin(ctx)
	return endsTx{tx, e.commit}, err
}

type endsTx struct {
	pgx.Tx

	commit func(ctx context.Context, tx pgx.Tx) error
}

func (e endsTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := e.Tx.Begin(ctx)
	return endsTx{tx, func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }}, err
}

func (e endsTx) Commit(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("without a deadline")
	}
	return e.commit(ctx, e.Tx)
}

// armed is a pool that arms a cutter before it commits.
func armed(pool *pgxpool.Pool, arm func()) ends {
	return ends{pool, func(ctx context.Context, tx pgx.Tx) error {
		arm()
		return tx.Commit(ctx)
	}}
}

func TestOnce_cutInCommit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		side  failpoint.Side
		last  bool // no connection can be acquired afterwards
		err   error
		calls int64 // of the function, with a second call of Once
	}{
		{"a commit whose answer is lost is found by its key", failpoint.After, false, nil, 1},
		{"a commit that never reached the server leaves the key free", failpoint.Before, false, groupcommit.ErrNotCommitted, 2},
		{"a commit without a server afterwards is unknown, and the next call replays it", failpoint.After, true, idempotency.ErrUnknown, 1},
		{"a commit without a server afterwards is unknown, and the next call does it", failpoint.Before, true, idempotency.ErrUnknown, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			direct, proxy, w := testdb.OpenAt(t, url, postgres.Options{}), failpoint.StartCutter(t, url), &work{}
			arm := proxy.Arm
			if test.last {
				arm = proxy.ArmLast
			}
			db := armed(testdb.OpenAt(t, proxy.URL(), postgres.Options{MaxConns: 1}).Pool(), func() { arm(test.side, -1) })
			got := once(t.Context(), db, order{ID: "o-1"}, w.do)
			if !errors.Is(got.Err, test.err) || got.Err == nil && (got.Value.Number != 1 || !got.Replayed) || proxy.Cuts() != 1 {
				t.Errorf("after %d cuts: %+v", proxy.Cuts(), got)
			}
			if got := once(t.Context(), direct.Pool(), order{ID: "o-1"}, w.do); got.Err != nil || got.Value.Number != test.calls || w.calls.Load() != test.calls {
				t.Errorf("after %d calls: %+v", w.calls.Load(), got)
			}
			wantEffects(t, direct, 1)
		})
	}
}

// TestOnce_cutAnywhere cuts the connection after each of its round trips in turn. Whatever
// the call returned, the next one finds or makes its one effect.
func TestOnce_cutAnywhere(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	direct, w := testdb.OpenAt(t, url, postgres.Options{}), &work{}
	for n, cut := 1, true; cut; n++ {
		hook := &nth{n: int64(n)}
		proxy, err := failpoint.NewProxy(t.Context(), url, func() failpoint.Hook { return hook })
		testdb.Must(t, err)
		pool, err := pgxpool.New(t.Context(), proxy.URL())
		testdb.Must(t, err)
		o := order{ID: fmt.Sprint("o-", n)}
		got := once(t.Context(), pool, o, w.do)
		pool.Close()
		proxy.Close()
		again := once(t.Context(), direct.Pool(), o, w.do)
		if again.Err != nil || got.Err == nil && (!again.Replayed || again.Value != got.Value) {
			t.Errorf("cut after round trip %d: %+v, then %+v", n, got, again)
		}
		if again.Replayed && got.Err != nil && !errors.Is(got.Err, idempotency.ErrUnknown) {
			t.Errorf("cut after round trip %d: it was done, and the error is %v", n, got.Err)
		}
		wantEffects(t, direct, n)
		if cut = hook.trips.Load() >= hook.n; !cut && n < 8 {
			t.Errorf("there were only %d round trips", n-1)
		}
	}
}

// nth cuts the connection after the n-th round trip.
type nth struct {
	n     int64
	trips atomic.Int64
}

func (*nth) Before(*failpoint.Trip) failpoint.Fault { return failpoint.None }

func (c *nth) After(*failpoint.Trip) failpoint.Fault {
	if c.trips.Add(1) == c.n {
		return failpoint.Cut
	}
	return failpoint.None
}

const childVariable = "IDEMPOTENCY_TEST_CHILD"

// TestOnce_diesBetweenClaimAndCommit has another process claim the key and call the
// function. It is killed, or goes on, while this process waits for it.
func TestOnce_diesBetweenClaimAndCommit(t *testing.T) {
	t.Parallel()
	if url := os.Getenv(childVariable); url != "" {
		child(t, url)
		return
	}
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed: %v", killed), func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			db, w := testdb.OpenAt(t, url, postgres.Options{}), &work{}
			process, goOn := startChild(t, url)
			var waiting errgroup.Group
			waiting.Go(func() error {
				got := once(t.Context(), db.Pool(), order{ID: "o-1"}, w.do)
				if got.Replayed == killed {
					t.Errorf("%+v", got)
				}
				return got.Err
			})
			await.Blocked(t, db, 1)
			if killed {
				testdb.Must(t, process.Kill())
			}
			_ = goOn.Close() // the child goes on at the end of its input
			if err := waiting.Wait(); err != nil {
				t.Error(err)
			}
			wantEffects(t, db, 1)
		})
	}
}

// child calls the function in this process, and ends it when its input ends.
func child(t *testing.T, url string) {
	t.Helper()
	got := once(t.Context(), testdb.OpenAt(t, url, postgres.Options{}).Pool(), order{ID: "o-1"}, func(ctx context.Context, tx pgx.Tx) (receipt, error) {
		r, err := new(work).do(ctx, tx)
		fmt.Fprintln(os.Stdout, childVariable)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return r, err
	})
	if got.Err != nil {
		t.Error(got.Err)
	}
}

// startChild starts the child and returns when it has called the function.
func startChild(t *testing.T, url string) (process *os.Process, goOn io.Closer) {
	t.Helper()
	self, err := os.Executable()
	testdb.Must(t, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	command := exec.CommandContext(ctx, self, "-test.run=^TestOnce_diesBetweenClaimAndCommit$")
	command.Env = append(os.Environ(), childVariable+"="+url)
	in, err := command.StdinPipe()
	testdb.Must(t, err)
	out, err := command.StdoutPipe()
	testdb.Must(t, err)
	testdb.Must(t, command.Start())
	t.Cleanup(func() {
		cancel()
		_ = command.Wait() // it was killed, or has ended
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == childVariable {
			return command.Process, in
		}
	}
	t.Fatal("the child ended before it called the function")
	return nil, nil
}
