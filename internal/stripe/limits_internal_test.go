package stripe

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/payonce/payonce/internal/testrun"
)

func TestLimiter_probesAProviderThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{})
		enter := func() func(int) {
			t.Helper()
			leave, err := l.enter(t.Context())
			testrun.Must(t, err)
			return leave
		}
		refused := func(what string) {
			t.Helper()
			_, err := l.enter(t.Context())
			if unavailable, ok := errors.AsType[*UnavailableError](err); !ok || unavailable.RetryAfter != openPause {
				t.Errorf("%s: %v, want to wait for %s", what, err, openPause)
			}
		}
		for range openAfter { // callers that give up say nothing about the provider
			gone, cancel := context.WithCancel(t.Context())
			leave, err := l.enter(gone)
			testrun.Must(t, err)
			cancel()
			leave(0)
		}
		for _, status := range []int{0, http.StatusServiceUnavailable, http.StatusTooManyRequests} {
			for range openAfter - 1 {
				enter()(status)
			}
			enter()(http.StatusPaymentRequired) // an answer
		}
		for range openAfter {
			enter()(0)
		}
		refused("a request while the provider is away")
		<-time.After(openPause + 1)
		probe := enter()
		refused("a second probe")
		probe(0)
		refused("a request after a probe that failed")
		<-time.After(openPause + 1)
		enter()(http.StatusOK)
		for range 2 * openAfter {
			defer enter()(http.StatusOK)
		}
	})
}

func TestLimiter_sharesItsLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{PerSecond: 20, InFlight: 8})
		for workers, want := range map[int]struct {
			inFlight int
			pause    time.Duration
		}{1: {8, time.Second / 20}, 4: {2, time.Second / 5}, 100: {1, 5 * time.Second}} {
			l.share(workers)
			var leave []func(int)
			var last time.Time
			for {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				left, err := l.enter(ctx)
				cancel()
				if err != nil {
					break
				}
				leave = append(leave, left)
				if n := len(leave); n == want.inFlight && n > 1 {
					if pause := time.Since(last).Round(time.Millisecond); pause != want.pause {
						t.Errorf("one of %d workers pauses for %s, want %s", workers, pause, want.pause)
					}
				}
				last = time.Now()
			}
			if len(leave) != want.inFlight {
				t.Errorf("one of %d workers has %d requests in flight, want %d", workers, len(leave), want.inFlight)
			}
			for _, left := range leave {
				left(http.StatusOK)
			}
		}
	})
}
