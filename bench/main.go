// Command bench measures payonce beside River, a job queue on PostgreSQL, and beside
// another commit of payonce: in one run, on one server, with one load generator.
//
//	go run . [--base FOLDER] [--repeat 5]
//
// bench starts a PostgreSQL server of its own with fsync on, and builds the programs. Each
// measurement counts afterwards what the tables, the provider and the merchant hold. Where
// something is missing or was done twice there is no figure but an error. Nothing fails
// because it was slow.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

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

type runCmd struct {
	Repeat int           `default:"3" help:"Rounds. The table has their medians."`
	Base   string        `type:"existingdir" help:"Measure the programs of this work tree too, right before ours." placeholder:"FOLDER"`
	Only   string        `help:"Measure only what matches, as ^charges/by=payonce/." placeholder:"REGEXP"`
	For    time.Duration `default:"5s" help:"How long each measurement takes, after a fifth of that, and two seconds at least, to warm up."`
}

// Whose programs are measured.
const (
	byPayonce = "payonce"
	byBase    = "base" // payonce's of another commit
	byRiver   = "river"
)

// inFlight are the requests or charges in flight of the measurements.
var inFlight = []int{1, 4, 16, 64, 256}

// setting is one measurement of a round.
type setting struct {
	work, by string
	inFlight int // 0 at rest
}

// String names the setting as Go names benchmarks.
func (s setting) String() string {
	name := s.work + "/by=" + s.by
	if s.inFlight > 0 {
		name += fmt.Sprintf("/in-flight=%d", s.inFlight)
	}
	return name
}

// plan lists what the expression matches. The rivals are measured right before payonce.
func (c runCmd) plan() (plan []setting, err error) {
	only, err := regexp.Compile(c.Only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	for _, w := range works {
		levels := inFlight
		if w.send == nil {
			levels = []int{0}
		}
		for _, level := range levels {
			for _, by := range []string{byBase, byRiver, byPayonce} {
				s := setting{w.name, by, level}
				if (by != byBase || c.Base != "") && (by != byRiver || w.river) && only.MatchString(s.String()) {
					plan = append(plan, s)
				}
			}
		}
	}
	return plan, nil
}

// Run measures the plan, and prints each sample for benchstat when it is taken, and then a table for people.
func (c runCmd) Run(ctx context.Context) (err error) {
	plan, err := c.plan()
	if err != nil {
		return err
	}
	b, err := open(ctx, os.Stderr, c, max(2*time.Second, c.For/5))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }() //nolint:contextcheck // it closes whatever happens
	fmt.Println(c.heading(ctx, b.version))
	return b.measure(ctx, os.Stdout, plan, c.Repeat)
}
