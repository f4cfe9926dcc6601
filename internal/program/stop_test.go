package program_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/program"
)

func TestStop(t *testing.T) {
	t.Parallel()
	t.Run("a program that cannot finish is left behind", func(t *testing.T) {
		t.Parallel()
		ctx, stop := context.WithCancel(t.Context())
		stop()
		log, lines := logger()
		hung := make(chan struct{})
		defer close(hung)
		err := program.Bounded(ctx, log, time.Millisecond, func(context.Context, *slog.Logger) error {
			<-hung
			return nil
		})
		if err != nil {
			t.Errorf("Bounded: %v", err)
		}
		lines.field(t, "stopped with work unfinished, others take it over", "level")
	})
	t.Run("a program that finishes says how", func(t *testing.T) {
		t.Parallel()
		ctx, stop := context.WithCancel(t.Context())
		log, _ := logger()
		broken := errors.New("broken")
		err := program.Bounded(ctx, log, time.Hour, func(ctx context.Context, _ *slog.Logger) error {
			stop()
			<-ctx.Done()
			return broken
		})
		if !errors.Is(err, broken) {
			t.Errorf("Bounded: %v", err)
		}
	})
}
