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
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// Finding is what the audit found after a guard was removed.
type Finding struct {
	Guard
	Violated []harness.Check `json:"violated"`
	// Timelines are those of the damaged charge, or of the first two of one key.
	Timelines []json.RawMessage `json:"timelines"`
	// AsExpected says that the checks which are violated are those of the guard.
	AsExpected bool `json:"as_expected"`

	text string // the timelines
}

// The names that --break takes beside those of guards.
const (
	breakAll  = "all"  // each guard in turn, and none
	breakList = "list" // print the guards
	breakNone = "none" // all guards stay, and all faults happen
)

const (
	labAtOnce  = 3               // runs of --break all
	labTimeout = 2 * time.Minute // of a run
)

// Break removes one guard from a payonce on a server of its own, and no program is changed. It
// inflicts the guard's fault, runs the audit, and prints what the audit found and what happened to
// the charge. It returns ErrBroken if other checks are violated than the guard's.
func Break(ctx context.Context, o Options, name string) error {
	guards, err := choose(name)
	if err != nil {
		return err
	}
	if name == breakList {
		return listGuards(o, guards)
	}
	o.say("payonce demo --break %s: on a throw-away PostgreSQL server, which is removed in the end", name)
	folder, err := local.NewDir(os.TempDir(), "payonce-lab-")
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	binaries, err := o.build(ctx, folder.Path)
	if err != nil {
		return err
	}
	o.programs = &binaries
	quiet := o
	if len(guards) > 1 {
		quiet.Stderr = io.Discard
	}
	findings := make([]Finding, len(guards))
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(labAtOnce)
	for i, g := range guards {
		all.Go(func() (err error) {
			if findings[i], err = quiet.without(ctx, g); err != nil {
				return fmt.Errorf("without %s: %w", g.Name, err)
			}
			o.say("%s", findings[i].verdict())
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	return reportFindings(o, findings)
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

// without runs payonce without a guard.
func (o Options) without(ctx context.Context, g Guard) (f Finding, err error) {
	ctx, cancel := context.WithTimeout(ctx, labTimeout)
	defer cancel()
	f = Finding{Guard: g}
	at, err := openOwn(ctx, o, sceneStock)
	if err != nil {
		return f, err
	}
	s := &scene{own: at, client: at.Client()}
	defer func() {
		ctx, cancel := closing(ctx)
		defer cancel()
		err = errors.Join(err, s.close(ctx))
	}()
	o.say("without %s: %s", g.Name, g.Fault)
	if err := execute(ctx, s.Service, g.Remove); err != nil {
		return f, fmt.Errorf("remove it: %w", err)
	}
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
	if r.world == nil {
		return "", nil, errNotRun
	}
	o := Options{Stderr: lines(progress), Now: r.Now, programs: &r.world.Binaries}
	f, err := o.without(ctx, g)
	if err != nil {
		return "", nil, err
	}
	finding, err = json.Marshal(f)
	return strings.TrimPrefix(f.verdict(), g.Name+": "), finding, err
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
	audit, err := s.Audit(ctx)
	if err != nil {
		return err
	}
	var red []string
	for _, check := range audit.Checks {
		if check.Violated > 0 {
			f.Violated, red = append(f.Violated, check), append(red, check.Name)
		}
	}
	f.AsExpected = slices.Equal(red, f.Red)
	charges, err := s.texts(ctx, selectShown, shown)
	for _, charge := range charges {
		text, unread := s.Run(ctx, "timeline", charge)
		timeline, failed := s.Run(ctx, "timeline", charge, "--json")
		err = errors.Join(err, unread, failed)
		f.text, f.Timelines = f.text+string(text)+"\n", append(f.Timelines, timeline)
	}
	return err
}

// verdict is the finding in one line.
func (f Finding) verdict() string {
	var red []string
	for _, check := range f.Violated {
		red = append(red, fmt.Sprintf("%s (%d of %d)", check.Name, check.Violated, check.Checked))
	}
	switch {
	case f.AsExpected && red == nil:
		return f.Name + ": nothing violated, as expected"
	case f.AsExpected:
		return f.Name + ": violated, as expected: " + strings.Join(red, "; ")
	}
	return fmt.Sprintf("%s: violated: %s; expected: %s", f.Name, strings.Join(red, "; "), f.red())
}

// reportFindings prints what was found. It returns ErrBroken if a finding is not as expected.
func reportFindings(o Options, findings []Finding) error {
	var text strings.Builder
	var wrong []string
	for _, f := range findings {
		if !f.AsExpected {
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
		body, err := json.MarshalIndent(map[string]any{"ok": wrong == nil, "guards": findings}, "", "  ")
		if err != nil {
			return err
		}
		out = string(body) + "\n"
	}
	if _, err := io.WriteString(o.Stdout, out); err != nil {
		return err
	}
	if wrong != nil {
		return fmt.Errorf("%w: other checks than expected without %s", ErrBroken, strings.Join(wrong, ", "))
	}
	return nil
}
