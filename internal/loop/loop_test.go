package loop_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/testrun"
)

func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		log, failure := &testrun.Log{}, errors.New("away")
		results := []error{nil, failure, failure, failure, nil, failure}
		var pauses []time.Duration
		last := time.Now()
		loop.Run(ctx, slog.New(slog.NewTextHandler(log, nil)), "it does not work", func(context.Context) (time.Duration, error) {
			pauses, last = append(pauses, time.Since(last)), time.Now()
			if len(pauses) == len(results) {
				stop()
			}
			return time.Hour, results[len(pauses)-1]
		})
		if pauses[1] != time.Hour || pauses[5] != time.Hour {
			t.Errorf("after success it pauses for %v and %v", pauses[1], pauses[5])
		}
		for i, within := range map[int][2]time.Duration{2: {125, 375}, 3: {187, 563}, 4: {281, 844}} {
			if p := pauses[i] / time.Millisecond; p < within[0] || p > within[1] {
				t.Errorf("pause %d after failures is %v, want %d to %d ms", i, pauses[i], within[0], within[1])
			}
		}
		if n := strings.Count(log.String(), `level=WARN msg="it does not work" error=away`); n != 1 {
			t.Errorf("%d lines of three failures in a row, and of one as it is stopped:\n%s", n, log)
		}
	})
}

func TestPause_endsWithTheBellOrItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bell := make(chan struct{}, 1)
		ended, stop := context.WithCancel(t.Context())
		stop()
		var waited []time.Duration
		for _, pause := range []func(){
			func() { loop.Pause(t.Context(), time.Hour, bell) },
			func() { bell <- struct{}{}; loop.Pause(t.Context(), time.Hour, bell) },
			func() { loop.Pause(ended, time.Hour, bell) },
		} {
			began := time.Now()
			pause()
			waited = append(waited, time.Since(began))
		}
		testrun.Same(t, "pauses", []time.Duration{time.Hour, 0, 0}, waited)
	})
}

func TestMain(m *testing.M) { testrun.Main(m) }
