package testrun

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stall is how long a wait lasts without any change. A run that is expected to fail,
// such as that of a planted bug, shortens it by the variable AWAIT_STALL.
const Stall = 2 * time.Minute

var limit = limitOf(os.Getenv("AWAIT_STALL"))

func limitOf(variable string) time.Duration {
	if d, err := time.ParseDuration(variable); err == nil {
		return d
	}
	return Stall
}

// poll lies between the first two reads of a condition, and longestPoll between two of one that lasts: a
// read costs the program and the database that are waited for their time. longestTick is what a read
// may add to a stall: a machine that stopped the process for longer did not run what the test waits
// for either.
const (
	poll        = 5 * time.Millisecond
	longestPoll = 50 * time.Millisecond
	longestTick = time.Second
)

// TB is the part of testing.TB that this package needs. rapid.T has it too.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// True waits until holds returns true, and ends the test if it does not.
func True(tb TB, what string, holds func() bool) {
	tb.Helper()
	Progress(tb, what, func() (string, bool) { return "", holds() })
}

// Progress waits until look says that it is done. What look describes is the
// progress: each change of it restarts the clock, and the last one is printed
// when the wait fails.
func Progress(tb TB, what string, look func() (seen string, done bool)) {
	tb.Helper()
	if seen, done := Changing(limit, look); !done {
		tb.Fatalf("no change for %v while waiting until %s; last seen: %s", limit, what, seen)
	}
}

// Within reports whether holds returns true before it was false for d, by the
// same clock. It is for tests that decide themselves what a failure means.
func Within(d time.Duration, holds func() bool) bool {
	_, held := Changing(d, func() (string, bool) { return "", holds() })
	return held
}

// inARow is how many tries of Soon have to be fast one after another.
const inARow = 3

// Soon does something, again and again until it takes less than d three times in a row. A busy
// machine is late at times. What has to wait for its timer is late always, and what is woken
// only now and then is not woken three times in a row.
func Soon(tb TB, d time.Duration, do func(try int)) {
	tb.Helper()
	fast := 0
	for try, first := 0, time.Now(); fast < inARow; try++ { //nolint:forbidigo // a try may last longer than longestTick
		began := time.Now() //nolint:forbidigo // what is measured
		do(try)
		took := time.Since(began) //nolint:forbidigo // as above
		fast++
		if took >= d {
			fast = 0
		}
		if time.Since(first) > limit && fast == 0 { //nolint:forbidigo // as above
			tb.Fatalf("it took %s at try %d, want less than %s %d times in a row", took, try+1, d, inARow)
		}
	}
}

// Receive returns the next value of a channel, or the zero value once it is
// closed. It ends the test if there is neither.
func Receive[T any](tb TB, what string, from <-chan T) (value T) {
	tb.Helper()
	_, received := Changing(limit, func() (string, bool) {
		select {
		case value = <-from:
			return "", true
		case <-time.After(longestTick):
			return "", false
		}
	})
	if !received {
		tb.Fatalf("nothing came for %v while waiting for %s", limit, what)
	}
	return value
}

// Bounded is the context of something that a test waits for, also at its end.
func Bounded(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), Stall)
	tb.Cleanup(cancel)
	return ctx
}

// Changing waits as Progress does, until nothing has changed for d. It is for tests that decide
// themselves what a failure means.
func Changing(d time.Duration, look func() (seen string, done bool)) (seen string, done bool) {
	for last, spent, pause := "", time.Duration(0), poll; ; pause = min(pause*5/4, longestPoll) {
		began := time.Now() //nolint:forbidigo // the one clock of waiting tests
		seen, done = look()
		if done || spent >= d {
			return seen, done
		}
		time.Sleep(pause)                            //nolint:forbidigo // the one place where tests poll
		spent += min(time.Since(began), longestTick) //nolint:forbidigo // as above
		if seen != last {
			last, spent = seen, 0
		}
	}
}

// Querier reads from a database: a pgx connection, a pool, a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Row waits until a query of one boolean returns true. An error of the query ends the test.
func Row(tb testing.TB, db Querier, sql string, args ...any) {
	tb.Helper()
	True(tb, "this is true: "+sql, func() (done bool) {
		if err := db.QueryRow(tb.Context(), sql, args...).Scan(&done); err != nil {
			tb.Fatalf("%s: %v", sql, err)
		}
		return done
	})
}

// Blocked waits until n sessions of the database wait for a lock that another
// session holds.
func Blocked(tb testing.TB, db Querier, n int) {
	tb.Helper()
	Row(tb, db, `
-- testrun.Blocked
select count(*) >= $1
  from pg_stat_activity
 where datname = current_database()
   and pid <> pg_backend_pid()
   and wait_event_type = 'Lock'`, n)
}
