// Command sandbox is the external services: a Stripe-compatible provider and a
// merchant's webhook receiver, with records of their own and faults on demand.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/sandbox"
)

func main() {
	os.Exit(program.Main(os.Args[1:], os.Stdout, os.Stderr, "sandbox", func(ctx context.Context, log *slog.Logger, environ map[string]string) error {
		return sandbox.Run(ctx, log, environ, time.Now)
	}))
}
