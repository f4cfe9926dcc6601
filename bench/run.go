package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// options are those of both commands.
type options struct {
	Quick bool          `help:"A few charges of everything, in a minute: checks that all work was done once, and measures nothing."`
	For   time.Duration `default:"5s" help:"How long a rate is measured, after a fifth of that, and two seconds at least, to warm up."`
	Only  string        `help:"A regular expression: measure only what it matches." placeholder:"REGEXP"`
	JSON  string        `name:"json" type:"path" help:"Write the figures to this file." placeholder:"FILE"`
	List  bool          `help:"Print what would be measured."`
}

type runCmd struct {
	options

	Repeat     int    `default:"3" help:"How often everything is measured; medians are shown."`
	InFlight   []int  `help:"Charges in flight. Of several values, as --in-flight 1,16, each is measured beside the others; so of the next three." placeholder:"256"`
	Slots      []int  `help:"WORKER_CONCURRENCY." placeholder:"N"`
	Merchants  []int  `help:"Merchants of equal size." placeholder:"1"`
	APIs       []int  `name:"apis" help:"api processes that share the load." placeholder:"1"`
	Base       string `type:"existingdir" help:"Measure the programs of this work tree too, right before ours." placeholder:"FOLDER"`
	Statements bool   `help:"Count the statements, and print PostgreSQL's most expensive ones of each measurement (needs pg_stat_statements)."`
	Profile    string `type:"path" help:"Write CPU profiles of api and worker into this folder, for go tool pprof." placeholder:"FOLDER"`
}

// planned is one measurement of a round.
type planned struct {
	axis    string // "" on no axis
	subject subject
	setting setting
}

func (p planned) String() string {
	return strings.TrimSpace(p.axis + " " + p.subject.name + " " + p.setting.String())
}

// Run measures everything once in each round, so that a machine that drifts does so
// under all of them alike.
func (c runCmd) Run(ctx context.Context) error {
	name := func(p planned) string { return p.subject.name }
	e := extras{statements: c.Statements, base: c.Base, profiles: c.Profile}
	return c.run(ctx, c.plan(), name, max(1, c.Repeat), e)
}

// plan measures each subject of payonce with the base's programs right before ours.
func (c runCmd) plan() (plan []planned) {
	for _, s := range subjects {
		for _, set := range c.settings() {
			if c.Base != "" && s.based() {
				plan = append(plan, planned{"", s, set.orElse(setting{Base: true})})
			}
			plan = append(plan, planned{"", s, set})
		}
	}
	return plan
}

type curvesCmd struct{ options }

// Run measures along every axis once, in one run, beside the same unit.
func (c curvesCmd) Run(ctx context.Context) error {
	name := func(p planned) string { return p.axis }
	return c.run(ctx, alongAxes(c.Quick), name, 1, extras{})
}

func alongAxes(quick bool) (plan []planned) {
	for _, a := range axes {
		for _, set := range a.settings {
			for _, s := range a.subjects {
				p := planned{a.name, s, set.orDefault()}
				if quick {
					p.setting = p.setting.small()
				}
				if !slices.ContainsFunc(plan, func(q planned) bool { return q.String() == p.String() }) {
					plan = append(plan, p)
				}
			}
		}
	}
	return plan
}

// run measures what --only matches, and reports it.
func (o options) run(ctx context.Context, plan []planned, name func(planned) string, repeat int, e extras) (err error) {
	only, err := regexp.Compile(o.Only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	plan = slices.DeleteFunc(plan, func(p planned) bool { return !only.MatchString(name(p)) })
	if o.List {
		for _, p := range plan {
			fmt.Printf("%-40s %s\n", p, p.subject.what)
		}
		return nil
	}
	chosen := full(o.For)
	if o.Quick {
		chosen, repeat = quick, 1
	}
	b, err := open(ctx, os.Stderr, chosen, e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }() //nolint:contextcheck // it closes whatever happens
	report := Report{Machine: b.server.machine(ctx), Commit: commit(ctx, ".."), Quick: o.Quick, Date: time.Now().UTC().Truncate(time.Second)}
	if e.base != "" {
		report.Base = commit(ctx, e.base)
	}
	err = b.measure(ctx, &report, plan, repeat)
	// What was measured before something failed, or before Ctrl-C, is reported too.
	return errors.Join(err, o.write(os.Stdout, report))
}

func (o options) write(w io.Writer, r Report) error {
	if err := r.writeTables(w); err != nil {
		return err
	}
	if o.JSON != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return fmt.Errorf("encode the figures: %w", err)
		}
		if err := os.WriteFile(o.JSON, append(text, '\n'), 0o644); err != nil { //nolint:gosec // figures may be read by all
			return fmt.Errorf("write the figures: %w", err)
		}
	}
	return nil
}

// measure measures all of the plan in each round, each between two measurements of
// the unit.
func (b *bench) measure(ctx context.Context, r *Report, plan []planned, repeat int) error {
	before, err := b.unit(ctx)
	if err != nil {
		return err
	}
	for round := range repeat {
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
