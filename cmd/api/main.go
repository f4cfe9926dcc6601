// Command api accepts charges over HTTP. It never calls the provider.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/payonce/payonce/internal/program"
)

func main() {
	os.Exit(program.Main(os.Stderr, "api", func(ctx context.Context, log *slog.Logger) error {
		return run(ctx, log, time.Now)
	}))
}
