// Command bench measures payonce side by side with other ways to carry the same
// work on PostgreSQL: in one run, on one server, by one load generator.
//
//	go run . [--repeat 3] [--json FILE] [--pictures FOLDER]
//	go run . curves [--only REGEXP] [--json FILE] [--pictures FOLDER]
//	go run . profile [--keep FOLDER]
//
// The first measures each way at one size, the second what payonce costs as the
// work grows, and the third which parts of the programs take their time.
//
// It starts a PostgreSQL of its own with fsync on, and builds the programs. The
// unit is pgbench's single-row insert, measured before and after everything else:
// figures of different machines, or of one machine at different hours, compare
// only as ratios to it.
//
// It promises that all of them did the same work, and did it once: whatever was
// accepted is counted afterwards in the tables, at the provider and at the shop,
// and where it does not add up there is no figure but an error. It promises
// nothing about time; nothing fails because it was slow.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/internal/program"
)

type cli struct {
	Run     runCmd     `cmd:"" default:"withargs" help:"Measure, and print a table."`
	Curves  curvesCmd  `cmd:"" help:"Measure what a charge costs as the work grows: tables, backlog, concurrency, a slow provider, retention, memory."`
	Profile profileCmd `cmd:"" help:"Print where the processor time of the programs goes."`
	Carry   carryCmd   `cmd:"" hidden:"" help:"Carry one load, in a process of its own."`
}

func main() {
	program.CollectSeldom() // who carries, the load and the outside: all as payonce's programs
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	parsed := kong.Parse(&cli{},
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
