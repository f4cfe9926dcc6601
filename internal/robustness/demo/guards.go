package demo

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// Guard is a guard of docs/reference/guards.md that the guard lab can remove.
type Guard struct {
	Name string `json:"guard"`
	Kind string `json:"kind"`
	// Remove is the SQL that removes it from the migrated database, line by line.
	Remove []string `json:"removed"`
	// Fault is what happens, and what the guard refuses.
	Fault string `json:"fault"`
	// Red are the checks of the audit that are violated without the guard, and no others.
	Red []string `json:"expected"`
	// Charge is what then happened to a charge.
	Charge string `json:"charge"`
	// Scene inflicts the fault; without an order all scenes do.
	Scene Scene `json:"scene,omitzero"`
}

// Scene sends a request for an order, and then runs a statement by hand; or it sends several requests, which meet:
// for charges, or for refunds of one charge. $n numbers requests, $try attempts.
type Scene struct {
	Order    string          `json:"order"`
	Items    json.RawMessage `json:"items,omitempty"`
	Hand     []string        `json:"hand,omitempty"`
	Before   string          `json:"before,omitempty"` // a statement
	Requests int             `json:"requests,omitempty"`
	Key      string          `json:"key,omitempty"`
	Refund   json.RawMessage `json:"refund,omitempty"`
}

//go:embed lab.json
var labText []byte

type labs struct {
	Actions []Action
	Guards  []Guard
}

var lab = func() (l labs) {
	entries := json.NewDecoder(bytes.NewReader(labText))
	entries.DisallowUnknownFields()
	if err := entries.Decode(&l); err != nil {
		panic(err) // the file is part of the program
	}
	return l
}()

// Actions are all that the crash lab can do.
func Actions() []Action { return slices.Clone(lab.Actions) }

// Guards are the guards of the lab, in the order in which `--break all` removes them. The first one is none, and the
// last one those that stand behind others: nothing is violated.
func Guards() []Guard { return slices.Clone(lab.Guards) }

// Finding is what the audit found after a guard was removed.
type Finding struct {
	Guard
	Violated []harness.Check `json:"violated"`
	// AsExpected says that the checks which are violated are those of the guard.
	AsExpected bool `json:"as_expected"`
}

// Verdict is the finding in one line.
func (f Finding) Verdict() string {
	var red []string
	for _, check := range f.Violated {
		red = append(red, fmt.Sprintf("%s (%d of %d)", check.Name, check.Violated, check.Checked))
	}
	text := cmp.Or(strings.Join(red, "; "), "nothing")
	if !f.AsExpected {
		return fmt.Sprintf("violated: %s; expected: %s", text, cmp.Or(strings.Join(f.Red, "; "), "nothing"))
	}
	return "violated, as expected: " + text
}

// Break removes one guard from a payonce on a server of its own, and no program is changed. It
// inflicts the guard's fault, and returns what the audit found. It returns ErrBroken too if other checks are
// violated than the guard's. all removes each guard in turn.
func (d *Demo) Break(ctx context.Context, name string) (all []Finding, err error) {
	guards := Guards()
	if name != "all" {
		guards = slices.DeleteFunc(guards, func(g Guard) bool { return g.Name != name })
	}
	if len(guards) == 0 {
		return nil, fmt.Errorf("--break %s: there is no such guard; --break list lists them", name)
	}
	d.say("payonce demo --break %s: on a throw-away PostgreSQL server, which is removed in the end", name)
	folder, err := local.NewDir(os.TempDir(), "payonce-demo-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	d.say("building api, worker, sandbox and payonce")
	if d.world.Binaries, err = harness.Build(ctx, folder.Path); err != nil {
		return nil, err
	}
	var wrong error
	for _, g := range guards {
		f, err := d.without(ctx, g)
		if err != nil {
			return all, fmt.Errorf("without %s: %w", g.Name, err)
		}
		d.say("%s: %s", g.Name, f.Verdict())
		if all = append(all, f); !f.AsExpected {
			wrong = fmt.Errorf("%w: other checks than expected", ErrBroken)
		}
	}
	return all, wrong
}

// without runs a payonce without a guard.
func (d *Demo) without(ctx context.Context, g Guard) (f Finding, err error) {
	const timeout, tries = 5 * time.Minute, 5
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	other := &Demo{Say: d.Say, Now: d.Now, lab: true}
	other.world.Binaries = d.world.Binaries
	defer func() { err = errors.Join(err, other.close(ctx)) }()
	stock := []string{"mug=10", "gone=1"}
	for try := range tries {
		stock = append(stock, fmt.Sprintf("last-%d=1", try))
	}
	if err := other.open(ctx, stock...); err != nil {
		return f, err
	}
	other.say("without %s: %s", g.Name, g.Fault)
	if _, err := other.db.Exec(ctx, strings.Join(g.Remove, "\n")); err != nil {
		return f, fmt.Errorf("remove it: %w", err)
	}
	var audit harness.Audit
	// On a busy machine requests may not meet. Where nothing may be violated, no try may do it.
	for try := 0; try < tries && (try == 0 || audit.OK); try++ {
		for _, scene := range g.scenes() {
			if err := other.inflict(ctx, scene, strconv.Itoa(try)); err != nil {
				return f, err
			}
		}
		if err := other.quiet(ctx, false); err != nil {
			return f, err
		}
		other.say("auditing")
		if audit, err = other.world.Audit(ctx); err != nil {
			return f, err
		}
	}
	return Finding{Guard: g, Violated: audit.Red(), AsExpected: audit.Violated() == strings.Join(g.Red, "; ")}, nil
}

// scenes inflict the guard's fault.
func (g Guard) scenes() (all []Scene) {
	for _, other := range lab.Guards {
		if other.Scene.Order != "" && (g.Scene.Order == "" || g.Name == other.Name) {
			all = append(all, other.Scene)
		}
	}
	return all
}

// inflict inflicts the fault of a scene, which leaves payonce sound as long as all guards are there.
func (d *Demo) inflict(ctx context.Context, scene Scene, try string) error {
	if _, err := d.db.Exec(ctx, scene.Before); err != nil {
		return err
	}
	if scene.Requests > 0 && scene.Refund == nil {
		return d.race(ctx, scene, try, chargesPath)
	}
	answers := d.PostAll(ctx, 1, chargesPath, fill(scene.Order, try, 0), []byte(scene.charge(try, 0)))
	if len(answers) == 0 || answers[0].Location == "" {
		return fmt.Errorf("a charge was answered %+v: %w", answers, context.Cause(ctx))
	}
	own := answers[0].Location
	if scene.Requests > 0 {
		return d.race(ctx, scene, try, own+"/refunds")
	}
	if err := d.quiet(ctx, false); err != nil {
		return err
	}
	_, err := d.db.Exec(ctx, strings.ReplaceAll(strings.Join(scene.Hand, "\n"), "$charge", path.Base(own)))
	if refused, is := errors.AsType[*pgconn.PgError](err); is && strings.HasPrefix(refused.Code, "23") {
		return nil
	}
	return err
}

// race sends the requests of a scene to a path while the apis and the workers are paused. The apis begin all of
// them at once, and the workers read at once what they have stored.
func (d *Demo) race(ctx context.Context, scene Scene, try, to string) error {
	const pause = 200 * time.Millisecond // until all requests have arrived

	if err := d.quiet(ctx, false); err != nil { // so that no worker stops within a transaction
		return err
	}
	for _, p := range slices.Concat(d.world.APIs, d.world.Workers) {
		defer func() { _ = p.Resume() }() // fails only if it has ended, and then no answer comes
		if err := p.Pause(); err != nil {
			return err
		}
	}
	var sending sync.WaitGroup
	for n := range scene.Requests {
		body := cmp.Or(string(scene.Refund), scene.charge(try, n))
		sending.Go(func() { d.PostAll(ctx, 1, to, fill(scene.Key, try, n), []byte(body)) })
	}
	err := harness.Wait(ctx, pause)
	for _, api := range d.world.APIs {
		err = errors.Join(err, api.Resume())
	}
	sending.Wait()
	return err
}

// fill is a text for a request of an attempt.
func fill(text, try string, n int) string {
	return strings.NewReplacer("$try", try, "$n", strconv.Itoa(n)).Replace(text)
}

// charge is the body of a request for a charge of 10.00.
func (s Scene) charge(try string, n int) string {
	return chargeBody(fill(s.Order, try, n), 1000, "EUR", visa, cmp.Or(fill(string(s.Items), try, n), "[]"))
}
