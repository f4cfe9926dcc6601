package stripe

import (
	"context"
	"errors"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/payonce/payonce/internal/testrun"
)

// Stripe's own limit holds at Stripe, and a number that is set everywhere.
func TestNew_limitsRequests(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		cfg  Config
		want rate.Limit
	}{
		"live":            {Config{SecretKey: "sk_live_1"}, 80},
		"test":            {Config{SecretKey: "sk_test_1"}, 20},
		"a sandbox":       {Config{SecretKey: "sk_test_1", Base: "http://127.0.0.1:1"}, math.MaxInt32},
		"a number":        {Config{SecretKey: "sk_live_1", Limits: Limits{PerSecond: 7}}, 7},
		"one and sandbox": {Config{SecretKey: "sk_test_1", Base: "http://127.0.0.1:1", Limits: Limits{PerSecond: 7}}, 7},
	} {
		c, err := New(test.cfg)
		testrun.Must(t, err)
		testrun.Same(t, what, test.want, c.limiter.rate.Limit())
		c.Close()
	}
}

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
			if unavailable, ok := errors.AsType[*Error](err); !ok || unavailable.RetryAfter != openPause {
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

func TestLimiter_boundsRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const inFlight = 8
		l := newLimiter(Limits{PerSecond: 20, InFlight: inFlight})
		began := time.Now()
		var leave []func(int)
		for range inFlight {
			left, err := l.enter(t.Context())
			testrun.Must(t, err)
			leave = append(leave, left)
		}
		if took := time.Since(began).Round(time.Millisecond); took != (inFlight-1)*time.Second/20 {
			t.Errorf("%d requests of 20 a second took %s", inFlight, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := l.enter(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one more request in flight: %v", err)
		}
		leave[0](http.StatusOK)
		_, err := l.enter(t.Context())
		testrun.Must(t, err)
	})
}
