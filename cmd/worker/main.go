// Command worker carries accepted charges through their steps.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/payonce/payonce/internal/program"
)

func main() {
	os.Exit(program.Main(os.Stderr, "worker", func(ctx context.Context, log *slog.Logger) error {
		return run(ctx, log, time.Now)
	}))
}
