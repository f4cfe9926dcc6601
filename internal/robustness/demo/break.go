package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
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

const (
	labAtOnce  = 3               // runs of --break all
	labTimeout = 2 * time.Minute // of a run
)

// Break removes one guard from a payonce on a server of its own, and no program is changed. It
// inflicts the guard's fault, runs the audit, and prints what the audit found and what happened to
// the charge. It returns ErrBroken if other checks are violated than the guard's. Beside the names of
// guards there are none, which inflicts all faults; all, each guard in turn and none; and list.
func Break(ctx context.Context, o Options, name string) error {
	none := Guard{Name: "none", Kind: "-", Fault: "all faults", Charge: "nothing: the guards refused each fault"}
	guards := append([]Guard{none}, Guards()...)
	switch i := slices.IndexFunc(guards, func(g Guard) bool { return g.Name == name }); {
	case name == "list":
		return columns(o.Stdout, "GUARD\tKIND\tFAULT\tVIOLATED WITHOUT IT", guards, func(g Guard) []any {
			return []any{g.Name, g.Kind, g.Fault, g.red()}
		})
	case i >= 0:
		guards = guards[i : i+1]
	case name != "all":
		return fmt.Errorf("--break %s: there is no such guard; --break list lists them", name)
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
		quiet.Say = func(string) {}
	}
	findings := make([]Finding, len(guards))
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(labAtOnce)
	for i, g := range guards {
		all.Go(func() (err error) {
			if findings[i], err = quiet.without(ctx, g); err != nil {
				return fmt.Errorf("without %s: %w", g.Name, err)
			}
			o.say("%s: %s", g.Name, findings[i].verdict())
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	return reportFindings(o, findings)
}

func (g Guard) red() string { return cmp.Or(strings.Join(g.Red, "; "), "nothing") }

// without runs payonce without a guard, and reads the timelines of the first two charges.
func (o Options) without(ctx context.Context, g Guard) (f Finding, err error) {
	ctx, cancel := context.WithTimeout(ctx, labTimeout)
	defer cancel()
	f = Finding{Guard: g}
	s, err := openStage(ctx, o, sceneStock...)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	o.say("without %s: %s", g.Name, g.Fault)
	if _, err := s.db.Exec(ctx, g.Remove); err != nil {
		return f, fmt.Errorf("remove it: %w", err)
	}
	shown, err := g.inflict(ctx, s)
	if err == nil {
		err = s.quiet(ctx, false)
	}
	if err != nil {
		return f, err
	}
	o.say("auditing")
	audit, err := s.world.Audit(ctx)
	if err != nil {
		return f, err
	}
	f.Violated, f.AsExpected = audit.Red(), audit.Violated() == strings.Join(g.Red, "; ")
	for _, charge := range shown[:min(2, len(shown))] {
		text, unread := s.world.Run(ctx, "timeline", charge)
		timeline, failed := s.world.Run(ctx, "timeline", charge, "--json")
		err = errors.Join(err, unread, failed)
		f.text, f.Timelines = f.text+string(text)+"\n", append(f.Timelines, timeline)
	}
	return f, err
}

// verdict is the finding in one line.
func (f Finding) verdict() string {
	var red []string
	for _, check := range f.Violated {
		red = append(red, fmt.Sprintf("%s (%d of %d)", check.Name, check.Violated, check.Checked))
	}
	switch text := strings.Join(red, "; "); {
	case !f.AsExpected:
		return fmt.Sprintf("violated: %s; expected: %s", text, f.red())
	case red == nil:
		return "nothing violated, as expected"
	default:
		return "violated, as expected: " + text
	}
}

// reportFindings prints what was found. It returns ErrBroken if a finding is not as expected.
func reportFindings(o Options, findings []Finding) error {
	var text strings.Builder
	var wrong []string
	for _, f := range findings {
		if !f.AsExpected {
			wrong = append(wrong, f.Name)
		}
		fmt.Fprintf(&text, "\n%s: %s\n", f.Name, f.verdict())
		fmt.Fprintf(&text, "  removed    %s: %s\n  fault      %s\n", f.Kind, strings.Join(strings.Fields(f.Remove), " "), f.Fault)
		for _, check := range f.Violated {
			fmt.Fprintf(&text, "  violated   %s, for example %s\n", check.Name, check.Examples[0])
		}
		fmt.Fprintf(&text, "  the charge %s\n\n  %s\n", f.Charge, strings.ReplaceAll(strings.TrimSpace(f.text), "\n", "\n  "))
	}
	var err error
	if o.JSON {
		err = printJSON(o.Stdout, map[string]any{"ok": wrong == nil, "guards": findings})
	} else {
		_, err = io.WriteString(o.Stdout, text.String())
	}
	if err == nil && wrong != nil {
		err = fmt.Errorf("%w: other checks than expected without %s", ErrBroken, strings.Join(wrong, ", "))
	}
	return err
}
