// Command bench measures payonce beside River, a job queue on PostgreSQL, and beside
// another commit of payonce: in one run, on one server, with one load generator.
//
//	go run . [--base FOLDER] [--in-flight 1,16,64,256] [--repeat 5]
//
// bench starts a PostgreSQL server of its own with fsync on, and builds the programs. Each
// measurement counts afterwards what the tables, the provider and the merchants hold. Where
// something is missing or was done twice there is no figure but an error. Nothing fails
// because it was slow.
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
	if os.Getenv(riverEnv) != "" {
		os.Exit(program.Main(os.Args[1:], os.Stdout, os.Stderr, "bench", riverService))
	}
	program.CollectSeldom() // the load collects garbage as payonce's programs do
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	parsed := kong.Parse(&runCmd{},
		kong.Name("bench"),
		kong.Description("How fast payonce is, beside River and beside another commit."),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err := parsed.Run(); err != nil {
		stop()
		parsed.Errorf("%v", err)
		os.Exit(1)
	}
}
