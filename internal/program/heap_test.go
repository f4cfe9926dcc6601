package program_test

import (
	"context"
	"io"
	"log/slog"
	"runtime/debug"
	"testing"

	"github.com/payonce/payonce/internal/program"
)

// TestHeap: the programs collect seldom, unless the environment says how often.
func TestHeap(t *testing.T) {
	for _, test := range []struct {
		name, gogc   string
		before, want int
	}{
		{"nobody says anything", "", 100, 400},
		{"the default is said", "100", 100, 100},
		{"another value is said", "50", 50, 50},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("GOGC", test.gogc)
			found := debug.SetGCPercent(test.before)
			defer debug.SetGCPercent(found)
			program.Main(io.Discard, "sample", func(context.Context, *slog.Logger) error { return nil })
			if got := debug.SetGCPercent(test.before); got != test.want {
				t.Errorf("it is %d, want %d", got, test.want)
			}
		})
	}
}
