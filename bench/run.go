package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"
)

type runCmd struct {
	Repeat     int           `default:"3" help:"How often everything is measured; medians are shown."`
	For        time.Duration `default:"5s" help:"How long a rate is measured, after a fifth of that, and two seconds at least, to warm up."`
	Only       string        `help:"A regular expression: measure only what it matches." placeholder:"REGEXP"`
	InFlight   []int         `help:"Charges in flight. Of several values, as --in-flight 1,16, each is measured beside the others; so of the next seven." placeholder:"256"`
	Slots      []int         `help:"WORKER_CONCURRENCY." placeholder:"N"`
	Merchants  []int         `help:"Merchants of equal size." placeholder:"1"`
	APIs       []int         `name:"apis" help:"api processes that share the load." placeholder:"1"`
	Workers    []int         `help:"worker processes that share the load." placeholder:"1"`
	Stored     []int         `help:"Charges in the tables beforehand; a million needs 20 GB." placeholder:"0"`
	Waiting    []int         `help:"Charges that wait for a worker (backlog)." placeholder:"5000"`
	Latency    []int         `help:"Milliseconds that each answer of the provider takes." placeholder:"0"`
	Base       string        `type:"existingdir" help:"Measure the programs of this work tree too, right before ours." placeholder:"FOLDER"`
	Statements bool          `help:"Count the statements, and print PostgreSQL's most expensive ones of each measurement (needs pg_stat_statements)."`
	Profile    string        `type:"path" help:"Write CPU profiles of api and worker into this folder, for go tool pprof." placeholder:"FOLDER"`
	JSON       string        `name:"json" type:"path" help:"Write the figures to this file." placeholder:"FILE"`
	Quick      bool          `help:"A few charges of everything, in a minute: checks that all work was done once, and measures nothing."`
	List       bool          `help:"Print what would be measured."`
}

// planned is one measurement of a round.
type planned struct {
	subject subject
	setting setting
}

func (p planned) String() string { return strings.TrimSpace(p.subject.name + " " + p.setting.String()) }

// plan lists what the expression matches. Each subject of payonce is measured with the
// base's programs right before ours.
func (c runCmd) plan() (plan []planned, err error) {
	only, err := regexp.Compile(c.Only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	for _, s := range subjects {
		for _, set := range c.settings() {
			if !only.MatchString(s.name) {
				continue
			}
			if c.Base != "" && s.based() {
				plan = append(plan, planned{s, set.orElse(setting{Base: true})})
			}
			plan = append(plan, planned{s, set})
		}
	}
	return plan, nil
}

// Run measures the plan, and prints and writes the report.
func (c runCmd) Run(ctx context.Context) (err error) {
	plan, err := c.plan()
	if err != nil {
		return err
	}
	if c.List {
		for _, p := range plan {
			fmt.Printf("%-40s %s\n", p, p.subject.what)
		}
		return nil
	}
	if c.Quick {
		c.Repeat = 1
	}
	b, err := open(ctx, os.Stderr, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }() //nolint:contextcheck // it closes whatever happens
	report := Report{Commit: commit(ctx, ".."), Quick: c.Quick, Date: time.Now().UTC().Truncate(time.Second)}
	if c.Base != "" {
		report.Base = commit(ctx, c.Base)
	}
	var version string
	if err := read(ctx, b.server.URL("postgres"), "select current_setting('server_version')", nil, &version); err != nil {
		return err
	}
	report.Machine = fmt.Sprintf("%d processors, %s/%s, %s, PostgreSQL %s with fsync", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), version)
	err = b.measure(ctx, &report, plan, max(1, c.Repeat))
	// What was measured before something failed, or before Ctrl-C, is reported too.
	err = errors.Join(err, report.writeTables(os.Stdout))
	if c.JSON != "" {
		text, _ := json.MarshalIndent(report, "", "  ")                         // numbers and strings
		err = errors.Join(err, os.WriteFile(c.JSON, append(text, '\n'), 0o644)) //nolint:gosec // figures may be read by all
	}
	return err
}

// measure measures all of the plan once in each round, so that a machine that drifts
// does so under all of it alike. Each measurement stands between two of the unit.
func (b *bench) measure(ctx context.Context, r *Report, plan []planned, rounds int) error {
	before, err := b.unit(ctx)
	if err != nil {
		return err
	}
	for round := range rounds {
		for _, p := range plan {
			fmt.Fprintf(b.say, "round %d: %s", round+1, p)
			b.measured = p.String()
			sample, err := p.subject.run(ctx, b, p.subject.fixed.orElse(p.setting))
			if err = errors.Join(err, b.cleanUp(ctx)); err != nil {
				fmt.Fprintln(b.say)
				return fmt.Errorf("%s: %w", p, err)
			}
			after, err := b.unit(ctx)
			if err != nil {
				return err
			}
			sample.Round, sample.Unit = round+1, (before+after)/2
			before = after
			fmt.Fprintf(b.say, ": %.0f/s, pgbench %.0f/s\n", sample.PerSecond, sample.Unit)
			r.add(p, sample)
		}
	}
	return nil
}
