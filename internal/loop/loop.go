// Package loop repeats a piece of work for as long as a program runs. Public packages need it as much as
// the service, so it is a part of none; of a library only the lengths of the pauses come.
package loop

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// The pauses after failures double from the first to the last, with jitter.
const (
	firstRetry = 250 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Work does one round and returns how long to pause before the next one.
type Work func(ctx context.Context) (pause time.Duration, err error)

// Run repeats work until ctx ends. A round that fails is repeated after a pause that grows
// with each failure. The first failure of several is logged as what failed says.
func Run(ctx context.Context, log *slog.Logger, failed string, work Work) {
	retry := backoff.ExponentialBackOff{
		InitialInterval: firstRetry, MaxInterval: lastRetry,
		Multiplier: backoff.DefaultMultiplier, RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
	for failures := 0; ctx.Err() == nil; {
		pause, err := work(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
			retry.Reset()
		default:
			if failures == 0 {
				log.WarnContext(ctx, failed, "error", err) //nolint:sloglint // the caller's constant
			}
			failures++
			pause = retry.NextBackOff()
		}
		Pause(ctx, pause, nil)
	}
}

// Pause returns after a time, when the bell rings, or when ctx ends: then false.
func Pause(ctx context.Context, d time.Duration, bell <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-bell:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// Ring wakes what waits for a bell that holds one ring: more of them are one. It does not block.
func Ring(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default: // it rings already
	}
}

// Safely calls what may panic, and makes an error of it.
func Safely(call func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return call()
}
