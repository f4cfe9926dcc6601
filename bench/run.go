package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/payonce/payonce/internal/fleet"
)

type runCmd struct {
	Quick     bool          `help:"A few charges of everything, in under a minute: checks that all work was done once, and measures nothing."`
	Repeat    int           `default:"3" help:"How often everything is measured; medians are shown."`
	For       time.Duration `default:"5s" help:"How long a rate is measured, after a fifth of that, and two seconds at least, to warm up."`
	Only      string        `help:"A regular expression: measure only what it matches." placeholder:"REGEXP"`
	JSON      string        `name:"json" type:"path" help:"Write the figures to this file." placeholder:"FILE"`
	Pictures  string        `type:"path" help:"Draw SVG pictures into this folder." placeholder:"FOLDER"`
	Statement bool          `name:"statements" help:"Print PostgreSQL's dearest statements of each measurement (needs pg_stat_statements)."`
	List      bool          `help:"Print what would be measured."`
}

// Run measures everything once in each round, so that a machine that drifts does
// so under all of them alike.
func (c runCmd) Run(ctx context.Context) error {
	only, err := regexp.Compile(c.Only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if c.List {
		for _, s := range subjects() {
			fmt.Printf("%-22s %s\n", s.name, s.what)
		}
		return nil
	}
	if c.Quick {
		c.Repeat = 1
	}
	if c.Repeat < 1 {
		return errors.New("--repeat: nothing would be measured")
	}
	report, err := c.measure(ctx, os.Stderr, only.MatchString)
	if err != nil {
		return err
	}
	return c.tell(report)
}

func (c runCmd) tell(r Report) error {
	if err := r.writeTable(os.Stdout); err != nil {
		return err
	}
	if c.JSON != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return fmt.Errorf("encode the figures: %w", err)
		}
		if err := os.WriteFile(c.JSON, append(text, '\n'), 0o644); err != nil { //nolint:gosec // figures for everybody
			return fmt.Errorf("write the figures: %w", err)
		}
	}
	if c.Pictures != "" {
		return draw(c.Pictures, r)
	}
	return nil
}

// stage is what all measurements of a run share.
type stage struct {
	server   *server
	programs fleet.Binaries
	folder   string // for programs and their logs; removed at the end
	profiles string // how the files begin into which programs profile themselves, "" where they do not
	sizes    sizes
	say      io.Writer

	databases []string // of the measurement that is under way
}

func (c runCmd) measure(ctx context.Context, say io.Writer, wanted func(name string) bool) (r Report, err error) {
	chosen := full(c.For)
	if c.Quick {
		chosen = quick()
	}
	s, err := openStage(ctx, say, chosen, c.Statement)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.close()) }() //nolint:contextcheck // it closes whatever happens
	return c.on(ctx, s, wanted)
}

func (c runCmd) on(ctx context.Context, s *stage, wanted func(name string) bool) (Report, error) {
	r := Report{Machine: s.server.machine(ctx), Commit: commit(ctx), Quick: c.Quick}
	for round := range c.Repeat {
		if err := s.round(ctx, &r, round+1, wanted); err != nil {
			return r, err
		}
	}
	return r, nil
}

// openStage builds the programs, with flags, and starts the server.
func openStage(ctx context.Context, say io.Writer, chosen sizes, statements bool, build ...string) (*stage, error) {
	folder, err := os.MkdirTemp("", "payonce-bench-*")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	s := &stage{folder: folder, sizes: chosen, say: say}
	if err := s.start(ctx, statements, build); err != nil {
		return nil, errors.Join(err, s.close()) //nolint:contextcheck // it closes whatever happens
	}
	return s, nil
}

func (s *stage) start(ctx context.Context, statements bool, build []string) (err error) {
	fmt.Fprintln(s.say, "building the programs")
	if s.programs, err = buildPrograms(ctx, s.folder, build); err != nil {
		return err
	}
	fmt.Fprintln(s.say, "starting PostgreSQL, fsync on")
	if s.server, err = startServer(ctx, statements); err != nil || s.sizes.unit == 0 {
		return err
	}
	return s.server.season(ctx, seasoned)
}

// database makes a migrated database for the measurement that is under way.
func (s *stage) database(ctx context.Context) (url string, err error) {
	url, err = s.server.database(ctx)
	if err == nil {
		s.databases = append(s.databases, url)
	}
	return url, err
}

// leave removes what a measurement has made. So the next one finds nobody's pages in
// memory that have yet to be written, and nothing that autovacuum cares for; and the
// disk holds no more than the largest of them.
func (s *stage) leave(ctx context.Context) (err error) {
	for _, url := range s.databases {
		err = errors.Join(err, s.server.drop(ctx, url))
	}
	s.databases = nil
	return errors.Join(err, s.server.checkpoint(ctx))
}

func (s *stage) close() (err error) {
	if s.server != nil {
		err = s.server.Close()
	}
	return errors.Join(err, os.RemoveAll(s.folder))
}

// round measures each subject between two measurements of the unit.
func (s *stage) round(ctx context.Context, r *Report, number int, wanted func(string) bool) error {
	before, err := s.unit(ctx)
	if err != nil {
		return err
	}
	for _, subject := range subjects() {
		if !wanted(subject.name) {
			continue
		}
		fmt.Fprintf(s.say, "round %d: %s", number, subject.name)
		sample, err := subject.run(ctx, s)
		if err = errors.Join(err, s.leave(ctx)); err != nil {
			fmt.Fprintln(s.say)
			return fmt.Errorf("%s: %w", subject.name, err)
		}
		after, err := s.unit(ctx)
		if err != nil {
			return err
		}
		sample.Round, sample.Unit = number, (before+after)/2
		before = after
		fmt.Fprintf(s.say, ": %.0f/s, pgbench %.0f/s\n", sample.PerSecond, sample.Unit)
		r.add(subject, sample)
	}
	return nil
}

// buildPrograms builds api and worker from the tree around this module.
func buildPrograms(ctx context.Context, folder string, flags []string) (fleet.Binaries, error) {
	programs := filepath.Join(folder, "bin")
	if err := os.Mkdir(programs, 0o755); err != nil { //nolint:gosec // programs for everybody
		return fleet.Binaries{}, fmt.Errorf("make a folder: %w", err)
	}
	return fleet.Build(ctx, programs, flags...)
}
