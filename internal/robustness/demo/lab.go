package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/robustness/traffic"
	"github.com/payonce/payonce/internal/robustness/validate"
	"github.com/payonce/payonce/internal/tempdir"
)

// Finding is what the audit found after a guard was removed.
type Finding struct {
	Guard
	Violated []validate.Check `json:"violated"`
	// Charges are the damaged one, or the first two of one key, with their timelines.
	Charges   []string          `json:"charges"`
	Timelines []json.RawMessage `json:"timelines"`
	// AsExpected says that the checks which are violated are those of the guard.
	AsExpected bool `json:"as_expected"`
	// NotRun says why the guard was not removed; "" if it was.
	NotRun string `json:"not_run,omitempty"`

	text string // the timelines
}

// The names that --break takes beside those of guards.
const (
	breakAll  = "all"  // each guard in turn, and none
	breakList = "list" // print the guards
	breakNone = "none" // all guards stay, and all faults happen
)

const (
	labAtOnce  = 3 // runs of --break all
	labCharges = 24
	labStorm   = 3 * time.Second
	labSeed    = 7
	labTimeout = 2 * time.Minute // of a run
)

// Break removes one guard from a payonce on a server of its own, and no program is changed. It
// sends the storm and the guard's fault, runs the audit, and prints what the audit found and what
// happened to the charge. It returns ErrBroken if other checks are violated than the guard's.
func Break(ctx context.Context, o Options, name string) error {
	guards, err := choose(name)
	if err != nil {
		return err
	}
	if name == breakList {
		return listGuards(o, guards)
	}
	o.say("payonce demo --break %s: on a throw-away PostgreSQL server, which is removed in the end", name)
	folder, err := tempdir.New(os.TempDir(), "payonce-lab-")
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	if o.Seed == 0 {
		o.Seed = labSeed
	}
	binaries, err := o.build(ctx, folder.Path)
	if err != nil {
		return err
	}
	o.lab = &binaries
	quiet := o
	if len(guards) > 1 {
		quiet.Stderr = io.Discard
	}
	findings, errs := make([]Finding, len(guards)), make([]error, len(guards))
	var all errgroup.Group
	all.SetLimit(labAtOnce)
	for i, g := range guards {
		all.Go(func() error {
			if findings[i], errs[i] = quiet.without(ctx, g); errs[i] != nil {
				errs[i] = fmt.Errorf("without %s: %w", g.Name, errs[i])
			} else {
				o.say("%s", findings[i].verdict())
			}
			return nil
		})
	}
	_ = all.Wait()
	return reportFindings(o, findings, errs)
}

// choose returns the guards of a name.
func choose(name string) ([]Guard, error) {
	none := Guard{Name: breakNone, Kind: "-", Fault: "all faults", Charge: "nothing: the guards refused each fault", inflict: allFaults}
	all := append([]Guard{none}, Guards()...)
	if name == breakAll || name == breakList {
		return all, nil
	}
	i := slices.IndexFunc(all, func(g Guard) bool { return g.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("--break %s: there is no such guard; --break list lists them", name)
	}
	return all[i : i+1], nil
}

func listGuards(o Options, guards []Guard) error {
	w := tabwriter.NewWriter(o.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GUARD\tKIND\tFAULT\tVIOLATED WITHOUT IT")
	for _, g := range guards {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", g.Name, g.Kind, g.Fault, g.red())
	}
	return w.Flush()
}

func (g Guard) red() string {
	if len(g.Red) == 0 {
		return "nothing"
	}
	return strings.Join(g.Red, "; ")
}

// scene is one payonce of the guard lab.
type scene struct {
	*own

	traffic *traffic.Traffic
	sandbox traffic.Sandbox
	tally   traffic.Tally
}

// without runs payonce without a guard.
func (o Options) without(ctx context.Context, g Guard) (f Finding, err error) {
	ctx, cancel := context.WithTimeout(ctx, labTimeout)
	defer cancel()
	f = Finding{Guard: g}
	plan := stormPlan(o.Seed)
	at, err := openOwn(ctx, o, plan)
	if err != nil {
		return f, err
	}
	s := &scene{own: at, sandbox: traffic.Sandbox(at.Sandbox.URL())}
	s.traffic = traffic.New(s.target(), &s.tally)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, s.close(ctx))
	}()
	if g.Kind == "collation" && !s.server.icu {
		f.NotRun = "this PostgreSQL is built without ICU"
		return f, nil
	}
	o.say("without %s: %d charges, kills, and faults of the provider", g.Name, len(plan.Charges))
	if err := s.exec(ctx, g.Remove); err != nil {
		return f, fmt.Errorf("remove it: %w", err)
	}
	if err := s.storm(ctx, o.Seed, plan); err != nil {
		return f, fmt.Errorf("storm: %w", err)
	}
	o.say("the fault: %s", g.Fault)
	shown, err := g.inflict(ctx, s)
	if err == nil {
		err = s.quiet(ctx)
	}
	if err != nil {
		return f, fmt.Errorf("%s: %w", g.Fault, err)
	}
	o.say("auditing")
	return f, f.judge(ctx, s, shown)
}

// lines writes each line that a demo says.
type lines func(string)

func (l lines) Write(line []byte) (int, error) {
	l(strings.TrimSpace(string(line)))
	return len(line), nil
}

// remove is the action of the lab: it uses the demo's programs, and nothing else of it.
func (g Guard) remove(ctx context.Context, r *run, progress func(string)) (said string, finding []byte, err error) {
	stage, ok := r.stage.(*own)
	if !ok {
		return "", nil, errNotRun
	}
	o := Options{Seed: labSeed, Stderr: lines(progress), Now: r.Now, lab: &stage.Binaries}
	f, err := o.without(ctx, g)
	if err != nil {
		return "", nil, err
	}
	finding, err = json.Marshal(f)
	return strings.TrimPrefix(f.verdict(), g.Name+": "), finding, err
}

// stormPlan is the demo's traffic in short. Refunds and cancellations, which race with the worker
// for a version of the stream, are a fault of their own.
func stormPlan(seed uint64) traffic.Plan {
	plan := traffic.NewPlan(seed, labCharges, newRunName())
	for i := range plan.Charges {
		c := &plan.Charges[i]
		c.At = c.At * labStorm / plan.Length
		c.Cancel, c.Refunds = false, nil
	}
	plan.Length = labStorm
	plan.Stock["last"], plan.Stock["gone"] = 1, 1
	return plan
}

// storm is the same for all guards: duplicated requests, provider faults, and a SIGKILL of both
// workers and of an api.
func (s *scene) storm(ctx context.Context, seed uint64, plan traffic.Plan) error {
	var err error
	var striking sync.WaitGroup
	striking.Go(func() {
		err = s.sandbox.SetFaults(ctx, someFaults(seed))
		for _, victim := range []struct {
			program string
			which   int
		}{{"worker", 0}, {"api", 1}, {"worker", 1}} {
			if err == nil {
				err = traffic.Wait(ctx, labStorm/4)
			}
			if err == nil {
				err = s.kill(ctx, victim.program, victim.which)
			}
		}
	})
	s.traffic.Run(ctx, plan)
	striking.Wait()
	if err == nil {
		err = s.sandbox.SetFaults(ctx, traffic.Faults{})
	}
	if err == nil {
		err = s.quiet(ctx)
	}
	return err
}

const selectShown = `
select distinct split_part(location, '/', 4)
  from idempotency_keys
 cross join lateral (select headers #>> '{Location,0}' as location) l
 where location like '/v1/charges/%'
   and (key = $1 or split_part(location, '/', 4) = $1)
 order by 1
 limit 2`

// judge runs the audit and reads the timelines of what is shown: a charge, or a key.
func (f *Finding) judge(ctx context.Context, s *scene, shown string) error {
	text, err := s.audit(ctx)
	audit, unreadable := validate.ReadAudit(text)
	if unreadable != nil {
		return errors.Join(err, unreadable)
	}
	var red []string
	for _, check := range audit.Checks {
		if check.Violated > 0 {
			f.Violated, red = append(f.Violated, check), append(red, check.Name)
		}
	}
	f.AsExpected = slices.Equal(red, f.Red)
	if f.Charges, err = s.texts(ctx, selectShown, shown); err != nil {
		return err
	}
	for _, charge := range f.Charges {
		lines, err := s.Run(ctx, "timeline", charge)
		if err != nil {
			return err
		}
		timeline, err := s.Run(ctx, "timeline", charge, "--json")
		if err != nil {
			return err
		}
		f.text, f.Timelines = f.text+string(lines)+"\n", append(f.Timelines, timeline)
	}
	return nil
}

// verdict is the finding in one line.
func (f Finding) verdict() string {
	var red []string
	for _, check := range f.Violated {
		red = append(red, fmt.Sprintf("%s (%d of %d)", check.Name, check.Violated, check.Checked))
	}
	switch {
	case f.NotRun != "":
		return f.Name + ": not run: " + f.NotRun
	case f.AsExpected && red == nil:
		return f.Name + ": nothing violated, as expected"
	case f.AsExpected:
		return f.Name + ": violated, as expected: " + strings.Join(red, "; ")
	}
	return fmt.Sprintf("%s: violated: %s; expected: %s", f.Name, strings.Join(red, "; "), f.red())
}

// reportFindings prints what was found, also where a run ended with an error, and then returns these
// errors. It returns ErrBroken if a finding is not as expected.
func reportFindings(o Options, all []Finding, errs []error) error {
	var text strings.Builder
	var wrong []string
	findings, failed := []Finding{}, errors.Join(errs...)
	for i, f := range all {
		if errs[i] != nil {
			continue
		}
		findings = append(findings, f)
		if !f.AsExpected && f.NotRun == "" {
			wrong = append(wrong, f.Name)
		}
		fmt.Fprintf(&text, "\n%s\n", f.verdict())
		fmt.Fprintf(&text, "  removed    %s: %s\n  fault      %s\n", f.Kind, strings.Join(strings.Fields(f.Remove), " "), f.Fault)
		for _, check := range f.Violated {
			fmt.Fprintf(&text, "  violated   %s, for example %s\n", check.Name, describe(check.Examples[0]))
		}
		fmt.Fprintf(&text, "  the charge %s\n\n", f.Charge)
		for line := range strings.Lines(f.text) {
			fmt.Fprintf(&text, "  %s", line)
		}
	}
	out := text.String()
	if o.JSON {
		body, err := json.MarshalIndent(map[string]any{"ok": wrong == nil && failed == nil, "guards": findings}, "", "  ")
		if err != nil {
			return err
		}
		out = string(body) + "\n"
	}
	if _, err := io.WriteString(o.Stdout, out); err != nil {
		return err
	}
	if wrong != nil {
		failed = errors.Join(failed, fmt.Errorf("%w: other checks than expected without %s", ErrBroken, strings.Join(wrong, ", ")))
	}
	return failed
}
