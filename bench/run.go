package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/payonce/payonce/internal/robustness/fleet"
	"github.com/payonce/payonce/migrations"
)

type runCmd struct {
	Quick     bool          `help:"A few charges of everything, in under a minute: checks that all work was done once, and measures nothing."`
	Repeat    int           `default:"3" help:"How often everything is measured; medians are shown."`
	For       time.Duration `default:"5s" help:"How long a rate is measured, after a fifth of that, and two seconds at least, to warm up."`
	Only      string        `help:"A regular expression: measure only what it matches." placeholder:"REGEXP"`
	JSON      string        `name:"json" type:"path" help:"Write the figures to this file." placeholder:"FILE"`
	Pictures  string        `type:"path" help:"Draw SVG pictures into this folder." placeholder:"FOLDER"`
	InFlight  []int         `help:"Charges in flight. Of several values, as --in-flight 1,16, each is measured beside the others; so of the next three." placeholder:"256"`
	Slots     []int         `help:"WORKER_CONCURRENCY." placeholder:"N"`
	Merchants []int         `help:"Merchants of equal size." placeholder:"1"`
	APIs      []int         `name:"apis" help:"api processes that share the load." placeholder:"1"`
	Base      string        `type:"existingdir" help:"Measure the programs of this work tree too, right before ours." placeholder:"FOLDER"`
	Statement bool          `name:"statements" help:"Count the statements, and print PostgreSQL's dearest ones of each measurement (needs pg_stat_statements)."`
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
	ours     tree
	base     *tree  // nil where nothing is compared
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
	if c.Base != "" {
		fmt.Fprintln(say, "building the programs of", c.Base)
		if s.base, err = buildTree(ctx, c.Base, filepath.Join(s.folder, "base")); err != nil {
			return r, err
		}
	}
	return c.on(ctx, s, wanted)
}

func (c runCmd) on(ctx context.Context, s *stage, wanted func(name string) bool) (Report, error) {
	r := Report{Machine: s.server.machine(ctx), Commit: commit(ctx, ".."), Quick: c.Quick}
	if s.base != nil {
		r.Base = commit(ctx, c.Base)
	}
	for round := range c.Repeat {
		if err := s.round(ctx, &r, round+1, wanted, c.settings()); err != nil {
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
	if s.ours.programs, err = buildPrograms(ctx, s.folder, build); err != nil {
		return err
	}
	fmt.Fprintln(s.say, "starting PostgreSQL, fsync on")
	if s.server, err = startServer(ctx, statements); err != nil || s.sizes.unit == 0 {
		return err
	}
	return s.server.season(ctx, seasoned)
}

// database makes a database for the measurement that is under way, migrated by the
// programs that are measured.
func (s *stage) database(ctx context.Context, base bool) (url string, err error) {
	migrate := migrations.Up
	if base {
		migrate = func(ctx context.Context, url string) error {
			_, err := fleet.Run(ctx, map[string]string{"DATABASE_URL": url}, s.base.programs.Payonce, "migrate")
			return err
		}
	}
	url, err = s.server.database(ctx, migrate)
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
func (s *stage) round(ctx context.Context, r *Report, number int, wanted func(string) bool, settings []setting) error {
	before, err := s.unit(ctx)
	if err != nil {
		return err
	}
	for _, subject := range subjects() {
		if !wanted(subject.name) {
			continue
		}
		for _, set := range s.withBase(subject, settings) {
			fmt.Fprintf(s.say, "round %d: %s %s", number, subject.name, set)
			sample, err := subject.run(ctx, s, set.over(subject.fixed))
			if err = errors.Join(err, s.leave(ctx)); err != nil {
				fmt.Fprintln(s.say)
				return fmt.Errorf("%s %s: %w", subject.name, set, err)
			}
			after, err := s.unit(ctx)
			if err != nil {
				return err
			}
			sample.Round, sample.Unit = number, (before+after)/2
			before = after
			fmt.Fprintf(s.say, ": %.0f/s, pgbench %.0f/s\n", sample.PerSecond, sample.Unit)
			r.add(subject, set, sample)
		}
	}
	return nil
}

// withBase puts the other tree's programs before ours in each setting.
func (s *stage) withBase(subject subject, settings []setting) (all []setting) {
	for _, set := range settings {
		if s.base != nil && subject.based {
			base := set
			base.Base = true
			all = append(all, base)
		}
		all = append(all, set)
	}
	return all
}

// tree is a work tree's programs.
type tree struct {
	programs fleet.Binaries
	bench    string // that carries the engine's work; empty: this one
}

func (s *stage) tree(base bool) tree {
	if base {
		return *s.base
	}
	return s.ours
}

// carriers is the program that carries the engine's work.
func (s *stage) carriers(base bool) string { return s.tree(base).bench }

// buildTree builds the programs and the bench of another work tree.
func buildTree(ctx context.Context, from, folder string) (*tree, error) {
	for _, build := range []struct {
		module   string
		packages []string
	}{
		{".", []string{"./cmd/api", "./cmd/worker", "./cmd/payonce"}}, {"bench", []string{"."}},
	} {
		args := append([]string{"-C", filepath.Join(from, build.module), "build", "-o", folder + "/"}, build.packages...)
		if said, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w: %s", from, err, said)
		}
	}
	in := func(name string) string { return filepath.Join(folder, name) }
	return &tree{programs: fleet.Binaries{API: in("api"), Worker: in("worker"), Payonce: in("payonce")}, bench: in("bench")}, nil
}

// buildPrograms builds api and worker from the tree around this module.
func buildPrograms(ctx context.Context, folder string, flags []string) (fleet.Binaries, error) {
	programs := filepath.Join(folder, "bin")
	if err := os.Mkdir(programs, 0o755); err != nil { //nolint:gosec // programs for everybody
		return fleet.Binaries{}, fmt.Errorf("make a folder: %w", err)
	}
	return fleet.Build(ctx, programs, flags...)
}
