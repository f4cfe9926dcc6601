package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

type curvesCmd struct {
	Quick    bool   `help:"A few charges at every point, in under a minute: checks that all work was done once, and measures nothing."`
	Only     string `help:"A regular expression: measure only the axes that it matches." placeholder:"REGEXP"`
	JSON     string `name:"json" type:"path" help:"Write the points to this file." placeholder:"FILE"`
	Pictures string `type:"path" help:"Draw SVG pictures into this folder." placeholder:"FOLDER"`
	List     bool   `help:"Print what would be measured."`
}

// Run measures along every axis, in one run, beside the same unit.
func (c curvesCmd) Run(ctx context.Context) (err error) {
	only, err := regexp.Compile(c.Only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if c.List {
		for _, a := range axes() {
			fmt.Printf("%-12s %s\n", a.name, a.what)
		}
		return nil
	}
	chosen := long()
	if c.Quick {
		chosen = brief()
	}
	s, err := openStage(ctx, os.Stderr, chosen.sizes(), false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }() //nolint:contextcheck // it closes whatever happens
	report, measured := s.curves(ctx, chosen, only.MatchString)
	report.Quick = c.Quick
	// What was measured before something failed, or before Ctrl-C, is told too.
	return errors.Join(measured, c.tell(report))
}

func (c curvesCmd) tell(r Curves) error {
	if err := r.writeTables(os.Stdout); err != nil {
		return err
	}
	if c.JSON != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return fmt.Errorf("encode the points: %w", err)
		}
		if err := os.WriteFile(c.JSON, append(text, '\n'), 0o644); err != nil { //nolint:gosec // figures for everybody
			return fmt.Errorf("write the points: %w", err)
		}
	}
	if c.Pictures != "" {
		return drawCurves(c.Pictures, r)
	}
	return nil
}

// Curves are everything that a run has measured.
type Curves struct {
	Machine Machine   `json:"machine"`
	Commit  string    `json:"commit"` // "" where there is no git
	Date    time.Time `json:"date"`
	Took    float64   `json:"took_seconds"`
	Quick   bool      `json:"quick"` // then no figure means anything
	Extent  extent    `json:"parameters"`
	Curves  []Curve   `json:"curves"`
}

// Curve is what was measured along one axis.
type Curve struct {
	Axis   string  `json:"axis"`
	What   string  `json:"what"`
	X      string  `json:"x"`
	Points []Point `json:"points"`
}

// Point is one measurement. What was not measured is zero.
type Point struct {
	X  float64 `json:"x"`
	By string  `json:"by"` // with which others it makes a line

	Sample

	Ideal  float64  `json:"ideal_per_second,omitempty"` // if nothing but the provider took time
	Swept  int      `json:"swept,omitempty"`            // rows
	Part   bool     `json:"part,omitempty"`             // of other points: drawn, and not in the table
	API    Resident `json:"api"`
	Worker Resident `json:"worker"` // or the one program that does both
}

// axis is something that grows.
type axis struct {
	name     string
	what     string
	x        string // what it counts
	measure  func(context.Context, *curving) error
	pictures []picture
}

// curving is the measuring along one axis.
type curving struct {
	*stage

	extent extent
	curve  *Curve
	before float64 // the unit, measured before the next point
}

// curves returns what it has measured, also where it fails.
func (s *stage) curves(ctx context.Context, chosen extent, wanted func(string) bool) (r Curves, err error) {
	began := time.Now()
	r = Curves{Machine: s.server.machine(ctx), Commit: commit(ctx, ".."), Date: began.UTC().Truncate(time.Second), Extent: chosen}
	defer func() { r.Took = time.Since(began).Seconds() }()
	before, err := s.unit(ctx)
	if err != nil {
		return r, err
	}
	for _, a := range axes() {
		if !wanted(a.name) {
			continue
		}
		r.Curves = append(r.Curves, Curve{Axis: a.name, What: a.what, X: a.x})
		c := &curving{stage: s, extent: chosen, curve: &r.Curves[len(r.Curves)-1], before: before}
		if err := a.measure(ctx, c); err != nil {
			return r, fmt.Errorf("%s: %w", a.name, err)
		}
		before = c.before
	}
	return r, nil
}

// at measures one or more points in a world of their own, between two
// measurements of the unit, and removes the world.
func (c *curving) at(ctx context.Context, name string, inFlight int, measure func(*world) ([]Point, error)) (err error) {
	began := time.Now()
	fmt.Fprintf(c.say, "%s, %s", c.curve.Axis, name)
	w, err := c.open(ctx, setting{InFlight: inFlight}.orDefault())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	points, err := measure(w)
	w.close()
	if err := errors.Join(err, c.leave(ctx)); err != nil {
		fmt.Fprintln(c.say)
		return fmt.Errorf("%s: %w", name, err)
	}
	after, err := c.unit(ctx)
	if err != nil {
		return err
	}
	for _, p := range points {
		p.Unit = (c.before + after) / 2
		c.curve.Points = append(c.curve.Points, p)
		if !p.Part {
			fmt.Fprintf(c.say, ": %.0f/s", p.PerSecond)
		}
	}
	c.before = after
	fmt.Fprintf(c.say, ", pgbench %.0f/s, in %.0f s\n", after, time.Since(began).Seconds())
	return nil
}

// commit names the tree that was measured, with a + where it was changed since.
func commit(ctx context.Context, tree string) string {
	head, err := exec.CommandContext(ctx, "git", "-C", tree, "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return ""
	}
	name := strings.TrimSpace(string(head))
	if changed, err := exec.CommandContext(ctx, "git", "-C", tree, "status", "--porcelain").Output(); err == nil && len(changed) > 0 {
		name += "+"
	}
	return name
}
