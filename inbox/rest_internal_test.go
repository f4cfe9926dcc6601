package inbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/payonce/payonce/internal/loop"
)

// TestRest: whatever wakes the loop while it rests, and however often, one claim follows.
func TestRest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wake, end time.Duration // when others wake the loop, and when a handler has ended; 0 for never
		next      time.Duration // message
		want      time.Duration
		missed    int64
	}{
		"nothing":                     {0, 0, time.Second, time.Second, 0},
		"a message that is due early": {0, 0, time.Millisecond, 10 * time.Millisecond, 0},
		"another program":             {50 * time.Millisecond, 0, time.Second, 50 * time.Millisecond, 1},
		"a handler's end":             {0, 50 * time.Millisecond, time.Second, 50 * time.Millisecond, 0},
		"another program, early":      {5 * time.Millisecond, 0, time.Second, 10 * time.Millisecond, 1},
		"both, early":                 {5 * time.Millisecond, 3 * time.Millisecond, time.Second, 10 * time.Millisecond, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				wake := make(chan struct{}, 1)
				p := &Processor{Options: Options{Wake: wake}, woken: make(chan struct{}, 1)}
				if test.wake > 0 {
					time.AfterFunc(test.wake, func() { wake <- struct{}{} })
				}
				if test.end > 0 {
					time.AfterFunc(test.end, func() { loop.Ring(p.woken) })
				}
				ctx, cancel := context.WithCancel(t.Context())
				go p.hear(ctx)
				began := time.Now()
				p.rest(ctx, 10*time.Millisecond, test.next)
				if took := time.Since(began); took != test.want || p.slots.missed.Load() != test.missed || len(p.woken) > 0 {
					t.Errorf("it took %v with %d missed, and %d wakes are left; want %v, %d and none", took, p.slots.missed.Load(), len(p.woken), test.want, test.missed)
				}
				cancel()
			})
		})
	}
}
