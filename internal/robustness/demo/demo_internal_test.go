package demo

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

func TestInDatabase(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"postgres://me:pw@db:5433/mine?sslmode=require": "postgres://me:pw@db:5433/other?sslmode=require",
		"postgresql:///mine?host=%2Ftmp&dbname=x":       "postgresql:///other?host=%2Ftmp",
		"postgres://db":              "postgres://db/other",
		"host=/tmp user=me dbname=x": "host=/tmp user=me dbname=x dbname=other",
	} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			got, err := inDatabase(server, "other")
			if err != nil || got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
}

// TestReportFindings returns an error where other checks are violated than expected.
func TestReportFindings(t *testing.T) {
	t.Parallel()
	for _, asExpected := range []bool{true, false} {
		var out strings.Builder
		f := Finding{Guard: Guards()[0], AsExpected: asExpected, Violated: []harness.Check{{Name: "streams are legal", Violated: 1, Examples: []any{"ch_1"}}}}
		err := reportFindings(Options{Stdout: &out}, []Finding{f})
		if errors.Is(err, ErrBroken) == asExpected || strings.Count(out.String(), "streams are legal, for example ch_1") != 1 {
			t.Errorf("as expected is %v: %v, and printed\n%s", asExpected, err, out.String())
		}
	}
}

func TestBreak_refusesAnUnknownGuard(t *testing.T) {
	t.Parallel()
	if err := Break(t.Context(), Options{}, "no_such_guard"); err == nil {
		t.Error("it is accepted")
	}
}

// TestLab_endsWithTheDemo: the end of the demo ends the action in flight, and no other begins.
func TestLab_endsWithTheDemo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	l, done, begun, ended := &Lab{}, make(chan error), make(chan struct{}), false
	restart := func() { // the request lives longer than the demo
		_, _, err := l.Do(t.Context(), "restart-database", nil)
		done <- err
	}
	l.open(ctx, &run{Options: Options{Now: time.Now}, stage: &stage{restart: func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		ended = true
		return ctx.Err()
	}}})
	go restart()
	<-begun
	cancel()
	l.close()
	if !ended {
		t.Error("the action is in flight")
	}
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the action ended with %v", err)
	}
	go restart()
	if err := <-done; !errors.Is(err, errNotReady) {
		t.Errorf("another action ended with %v", err)
	}
}

func TestMain(m *testing.M) { testrun.Main(m) }
