package stripe

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/sony/gobreaker/v2"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// Limits bound the requests of a client. 0 stands for no limit, and for PerSecond at Stripe itself for Stripe's.
type Limits struct{ PerSecond, InFlight int }

// perSecondAtStripe is for live mode and for test mode four fifths of the requests per second that Stripe permits an
// account, so that its other users are answered too. Source: https://docs.stripe.com/rate-limits.
var perSecondAtStripe = map[bool]int{true: 80, false: 20}

// The circuit breaker opens after so many requests in a row without an answer of the
// provider's, and lets one request probe after each pause.
const (
	openAfter = 10
	openPause = 5 * time.Second
)

// limiter sends no more requests than the provider can take. A provider that is away or
// comes back gets one probe at a time.
type limiter struct {
	rate    *rate.Limiter
	slots   *semaphore.Weighted
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
}

func newLimiter(l Limits) *limiter {
	return &limiter{
		rate:  rate.NewLimiter(rate.Limit(cmp.Or(l.PerSecond, math.MaxInt32)), 1),
		slots: semaphore.NewWeighted(int64(cmp.Or(l.InFlight, math.MaxInt32))),
		circuit: gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			Timeout:     openPause,
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= openAfter },
			IsExcluded:  func(err error) bool { return errors.Is(err, context.Canceled) },
		}),
	}
}

var errOpen = errors.New("the circuit breaker is open, since requests had no answer")

// enter waits for the turn of a request. While the circuit is open it returns Unavailable, so that
// the caller waits without a handler slot. leave gets the status of the answer, 0 if there is none.
func (t *limiter) enter(ctx context.Context) (leave func(status int), err error) {
	open := &Error{Kind: Unavailable, RetryAfter: openPause, Why: Decline{Message: errOpen.Error()}}
	if t.circuit.State() == gobreaker.StateOpen {
		return nil, open
	}
	if err := t.slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.slots.Release(1)
		}
	}()
	if err := t.rate.Wait(ctx); err != nil {
		return nil, cmp.Or(ctx.Err(), unavailable(err))
	}
	done, err := t.circuit.Allow()
	if err != nil {
		return nil, open
	}
	return func(status int) {
		t.slots.Release(1)
		switch {
		case status == 0 && ctx.Err() != nil:
			done(context.Canceled) // it says nothing about the provider
		case status == 0, status >= http.StatusInternalServerError, status == http.StatusTooManyRequests:
			done(errOpen)
		default:
			done(nil)
		}
	}, nil
}
