package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"
)

type runCmd struct {
	Repeat     int           `default:"3" help:"Rounds. The table has their medians."`
	For        time.Duration `default:"5s" help:"How long each measurement takes, after a fifth of that, and two seconds at least, to warm up."`
	Only       string        `help:"Measure only what matches, as ^charges/by=payonce/." placeholder:"REGEXP"`
	InFlight   []int         `default:"1,16,64,256" help:"Requests or charges in flight. Each value is measured; so of the next four options."`
	Merchants  []int         `default:"1" help:"Merchants of equal size."`
	APIs       []int         `name:"apis" default:"1" help:"api processes that share the load."`
	Workers    []int         `default:"1" help:"worker processes that share the load."`
	Stored     []int         `default:"0" help:"Charges in the tables beforehand; a million needs 20 GB."`
	Base       string        `type:"existingdir" help:"Measure the programs of this work tree too, right before ours." placeholder:"FOLDER"`
	Benchstat  string        `type:"path" help:"Write every round to this file, for benchstat -col /by." placeholder:"FILE"`
	Statements bool          `help:"Print PostgreSQL's most expensive statements of each measurement (needs pg_stat_statements)."`
	Profile    string        `type:"path" help:"Write CPU profiles of api and worker into this folder, for go tool pprof." placeholder:"FOLDER"`
	Quick      bool          `help:"A few charges of everything: checks that all work was done once, and measures nothing."`
}

// Whose programs are measured.
const (
	byPayonce = "payonce"
	byBase    = "base" // payonce's of another commit
	byRiver   = "river"
)

// setting is one measurement of a round.
type setting struct {
	work                                       string
	by                                         string
	inFlight, merchants, apis, workers, stored int
}

// String names the setting as Go names benchmarks. What has its default is left out.
func (s setting) String() string {
	name := []string{s.work, "by=" + s.by}
	for _, p := range []struct {
		name          string
		value, normal int
	}{
		{"in-flight", s.inFlight, 0},
		{"merchants", s.merchants, 1},
		{"apis", s.apis, 1},
		{"workers", s.workers, 1},
		{"stored", s.stored, 0},
	} {
		if p.value > p.normal {
			name = append(name, fmt.Sprintf("%s=%d", p.name, p.value))
		}
	}
	return strings.Join(name, "/")
}

// alone says that only in-flight is set. River's service knows nothing else.
func (s setting) alone() bool {
	return s.merchants == 1 && s.apis == 1 && s.workers == 1 && s.stored == 0
}

// plan lists what the expression matches. The rivals are measured right before payonce.
func (c runCmd) plan() (plan []setting, err error) {
	only, err := regexp.Compile(c.Only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	seen := map[setting]bool{}
	for _, w := range works {
		for _, s := range c.settings() {
			s.work = w.name
			if w.atRest {
				s.inFlight = 0
			}
			for _, s.by = range []string{byBase, byRiver, byPayonce} {
				left := s.by == byBase && c.Base == "" || s.by == byRiver && (!w.river || !s.alone())
				if left || seen[s] || !only.MatchString(s.String()) {
					continue
				}
				seen[s] = true
				plan = append(plan, s)
			}
		}
	}
	return plan, nil
}

// settings lists every combination of the options' values.
func (c runCmd) settings() []setting {
	all := []setting{{}}
	for _, p := range []struct {
		values []int
		field  func(*setting) *int
	}{
		{c.InFlight, func(s *setting) *int { return &s.inFlight }},
		{c.Merchants, func(s *setting) *int { return &s.merchants }},
		{c.APIs, func(s *setting) *int { return &s.apis }},
		{c.Workers, func(s *setting) *int { return &s.workers }},
		{c.Stored, func(s *setting) *int { return &s.stored }},
	} {
		var next []setting
		for _, s := range all {
			for _, *p.field(&s) = range p.values {
				next = append(next, s)
			}
		}
		all = next
	}
	return all
}

// Run measures the plan, and prints the table.
func (c runCmd) Run(ctx context.Context) (err error) {
	plan, err := c.plan()
	if err != nil {
		return err
	}
	b, err := open(ctx, os.Stderr, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }() //nolint:contextcheck // it closes whatever happens
	report, err := b.measure(ctx, plan)
	// What was measured before something failed, or before Ctrl-C, is reported too.
	fmt.Println(c.heading(ctx, b.server.version))
	err = errors.Join(err, report.table(os.Stdout))
	if c.Benchstat != "" {
		err = errors.Join(err, os.WriteFile(c.Benchstat, []byte(report.benchstat()), 0o644)) //nolint:gosec // figures may be read by all
	}
	return err
}

// heading says what was measured, and where.
func (c runCmd) heading(ctx context.Context, version string) string {
	text := fmt.Sprintf("%d processors, %s/%s, %s, PostgreSQL %s with fsync, commit %s",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), version, commit(ctx, ".."))
	if c.Base != "" {
		text += ", base " + commit(ctx, c.Base)
	}
	if c.Quick {
		text += "; quick: the figures mean nothing"
	}
	return text
}

// measure measures all of the plan once in each round, so that a machine that drifts
// does so under all of it alike.
func (b *bench) measure(ctx context.Context, plan []setting) (r report, err error) {
	for round := range max(1, b.Repeat) {
		for _, s := range plan {
			fmt.Fprintf(b.say, "round %d: %s", round+1, s)
			sample, err := b.measureOne(ctx, s)
			if err = errors.Join(err, b.cleanUp(ctx)); err != nil {
				fmt.Fprintln(b.say)
				return r, fmt.Errorf("%s: %w", s, err)
			}
			fmt.Fprintf(b.say, ": %.0f/s\n", sample.perSecond)
			r.add(s, sample)
		}
	}
	return r, nil
}

// fileName is a setting's name in the name of a file.
func (s setting) fileName() string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(s.String(), "-"), "-")
}
