// Command bench measures payonce side by side with other ways to do the same
// work on PostgreSQL: in one run, on one server, with one load generator.
//
//	go run . [--repeat 3] [--json FILE]
//	go run . --stored 10000,1000000 --only '^(accept|charges)/payonce$'
//
// bench starts a PostgreSQL server of its own with fsync on, and builds the
// programs. The unit is pgbench's single-row insert, measured before and after each
// subject. Figures of different machines, or of one machine at different hours,
// compare only as ratios to it.
//
// Every measurement counts afterwards what the tables, the provider and the
// merchants hold. Where something is missing or was done twice there is no figure
// but an error. Nothing fails because it was slow.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/internal/program"
)

func main() {
	if os.Getenv(childEnv) != "" {
		os.Exit(program.Main(os.Args[1:], os.Stdout, os.Stderr, "bench", child))
	}
	program.CollectSeldom() // the load and the rivals collect garbage as payonce's programs do
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	parsed := kong.Parse(&runCmd{},
		kong.Name("bench"),
		kong.Description("How fast payonce is, beside other ways to do the same on PostgreSQL."),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err := parsed.Run(); err != nil {
		stop()
		parsed.Errorf("%v", err)
		os.Exit(1)
	}
}
