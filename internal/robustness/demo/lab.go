package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// Lab is the crash lab and the guard lab of a running demo. What the crash lab breaks is broken for
// real, and the audit still holds. The guard lab removes a guard from a payonce of its own. The
// methods are safe for concurrent use.
type Lab struct {
	acting sync.Mutex // one action at a time, and none while the demo audits
	run    *run       // nil before charges can be sent, and when the demo ends
	ended  context.Context
}

// Action is something that the lab does.
type Action struct {
	Name  string // for Do
	Group string // client, program, provider, message or guard
	Title string
	What  string // what it does
	Shows string // what to watch
}

// The actions of the crash lab that the plan takes.
const (
	killWorker      = "kill-worker"
	killAPI         = "kill-api"
	restartDatabase = "restart-database"
)

var errNotReady = errors.New("the demo is starting, or ends")

const outageLength = 10 * time.Second

// Actions are all that the lab can do: the crash lab's, then one for each guard.
func (*Lab) Actions() (all []Action) {
	for _, e := range entries("action") {
		all = append(all, Action{e["action"], e["group"], e["title"], e["what"], e["shows"]})
	}
	for _, g := range Guards() {
		all = append(all, Action{g.Name, "guard", "Remove " + g.Name, g.Kind + "; " + g.Fault, g.red()})
	}
	return all
}

// Do takes an action, one at a time, and says in a sentence what it did. Of the guard lab it also
// returns the Finding, as JSON, and says before how far it has come. An action in flight holds up
// the demo's audit.
func (l *Lab) Do(ctx context.Context, name string, progress func(string)) (said string, finding []byte, err error) {
	l.acting.Lock()
	defer l.acting.Unlock()
	if l.run == nil {
		return "", nil, errNotReady
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ended, cancel)() //nolint:contextcheck // it is the demo's, whose end ends the action
	guards := Guards()
	if i := slices.IndexFunc(guards, func(g Guard) bool { return g.Name == name }); i >= 0 {
		return l.run.remove(ctx, guards[i], progress)
	}
	said, err = l.run.act(ctx, name)
	return said, nil, err
}

// remove removes a guard from another payonce. It uses the demo's programs, and nothing else of it.
func (r *run) remove(ctx context.Context, g Guard, progress func(string)) (said string, finding []byte, err error) {
	if r.Running != nil {
		return "", nil, errNotRun
	}
	f, err := Options{Say: progress, Now: r.Now, programs: &r.world.Binaries}.without(ctx, g)
	if err != nil {
		return "", nil, err
	}
	finding, err = json.Marshal(f)
	return f.verdict(), finding, err
}

// open lets actions act on a demo until ctx ends.
func (l *Lab) open(ctx context.Context, r *run) {
	l.acting.Lock()
	defer l.acting.Unlock()
	l.run, l.ended = r, ctx
}

// close waits for the action that is in flight, which the end of its context ends. No other follows.
func (l *Lab) close() {
	l.acting.Lock()
	defer l.acting.Unlock()
	l.run = nil
}

// obey takes an action for each line until the text ends.
func (l *Lab) obey(ctx context.Context, o Options) {
	for lines := bufio.NewScanner(o.Commands); lines.Scan() && ctx.Err() == nil; {
		name := strings.TrimSpace(lines.Text())
		if name == "" {
			continue
		}
		said, _, err := l.Do(ctx, name, func(line string) { o.say("%s: %s", name, line) })
		if err != nil {
			said = "failed: " + err.Error()
		}
		o.say("%s: %s", name, said)
	}
}

// names lists the actions for a terminal.
func (l *Lab) names() string {
	names := map[bool][]string{}
	for _, a := range l.Actions() {
		names[a.Group == "guard"] = append(names[a.Group == "guard"], a.Name)
	}
	return "to break something, type one of: " + strings.Join(names[false], ", ") +
		"\nto remove a guard from another payonce, type one of: " + strings.Join(names[true], ", ")
}

// act takes an action of the crash lab, and says what it did.
func (r *run) act(ctx context.Context, name string) (string, error) {
	switch name {
	case "send-10":
		return r.sendTen(ctx)
	case killWorker:
		return r.kill(ctx, "worker", r.world.Workers)
	case killAPI:
		return r.kill(ctx, "api", r.world.APIs)
	case restartDatabase:
		return r.restart(ctx)
	case "redeliver":
		return r.redeliver(ctx)
	case "resend-webhooks":
		sent, err := r.sandbox.RepeatWebhooks(ctx, 1)
		return fmt.Sprintf("the provider sent %s once more, %d were taken", plural(sent.Events, "event"), sent.Delivered), err
	}
	for _, e := range entries("faults") {
		if e["action"] == name {
			return r.outage(ctx, e)
		}
	}
	return "", fmt.Errorf("there is no action %q", name)
}

// sendTen also records what it sees, for the checks of the demo.
func (r *run) sendTen(ctx context.Context) (string, error) {
	c := newPlan(newSeed(), 1, newRunName()).charges[0]
	c.together = 10
	ctx, cancel := context.WithTimeout(ctx, trafficTimeout)
	defer cancel()
	r.merchant.run(ctx, []*charge{c})
	r.sent = append(r.sent, c)
	if len(c.answers) < c.together {
		return "", fmt.Errorf("%d of %d requests with the key %s were answered", len(c.answers), c.together, c.key)
	}
	different := map[harness.Answer]bool{}
	for _, a := range c.answers {
		different[a] = true
	}
	return fmt.Sprintf("%d requests with the key %s had %s; %s %s",
		len(c.answers), c.key, plural(len(different), "different answer"), c.ID, c.outcome()), nil
}

// kill kills one of the two programs of a kind and starts it again.
func (r *run) kill(ctx context.Context, kind string, programs []*harness.Process) (string, error) {
	r.striking.Lock()
	defer r.striking.Unlock()
	r.kills++
	which := r.kills % programsOfKind
	said := fmt.Sprintf("%s-%d was %s, and runs again", kind, which+1, r.killed)
	if r.Running != nil {
		return said, r.cutSessions(ctx, kind)
	}
	p := programs[which]
	if err := p.Kill(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, p.Tail())
	}
	_ = harness.Wait(ctx, killPause) // a start fails where ctx has ended
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return said, p.Restart(ctx)
}

// restart restarts the database's server without a shutdown, or returns errNotRun.
func (r *run) restart(ctx context.Context) (string, error) {
	r.striking.Lock()
	defer r.striking.Unlock()
	if r.server == nil {
		return "", errNotRun
	}
	began := r.Now()
	err := r.server.Restart(ctx)
	return fmt.Sprintf("PostgreSQL was shut down at once and answers again after %s", r.Now().Sub(began).Round(time.Millisecond)), err
}

// outage replaces the demo's own faults for a while.
func (r *run) outage(ctx context.Context, e entry) (string, error) {
	var faults harness.Faults
	err := json.Unmarshal([]byte(e["faults"]), &faults)
	if err == nil {
		err = r.sandbox.SetFaults(ctx, faults)
	}
	if err == nil {
		err = harness.Wait(ctx, outageLength)
	}
	ctx, cancel := closing(ctx)
	defer cancel()
	r.breaking.Lock()
	own := r.faults
	r.breaking.Unlock()
	return fmt.Sprintf("for %s %s", outageLength, e["said"]), errors.Join(err, r.sandbox.SetFaults(ctx, own))
}

const repeatMessages = `
insert into outbox (topic, message_id, payload, metadata)
select 'charges', message_id, payload, metadata
  from inbox
 where receiver = 'fulfillment'
 order by id`

// redeliver returns when the messages were received once more.
func (r *run) redeliver(ctx context.Context) (string, error) {
	repeated, err := r.db.Exec(ctx, repeatMessages)
	if err == nil {
		err = await(ctx, r.db, `select not exists (select from outbox)`)
	}
	return plural(int(repeated.RowsAffected()), "message") + " had a second delivery", err
}

// strikeAll breaks things while charges flow: the provider and the shop carry out all requests and
// answer none, then they have faults for the whole demo. A worker is struck about every second and,
// a third and two thirds of the way, an api and the database. It ends early, without an error,
// when the time is up.
func (r *run) strikeAll(ctx context.Context) error {
	const (
		silence = 2 * time.Second
		rest    = 1200 * time.Millisecond
	)
	began, slow := r.Now(), harness.Slow{P: 0.1, Milliseconds: 300}
	err := r.setFaults(ctx, harness.Faults{DropAfter: 1})
	if err == nil && harness.Wait(ctx, silence) == nil {
		err = r.setFaults(ctx, harness.Faults{Seed: r.Seed, DropBefore: 0.05, DropAfter: 0.05, Error500: 0.03, Slow: slow})
	}
	n := int(r.plan.length / rest)
	also := map[int]string{n / 3: killAPI, 2 * n / 3: restartDatabase}
	for i := 0; i < n && err == nil; i++ {
		at := rest*time.Duration(i) + rest/4 + time.Duration(r.plan.random.Int64N(int64(rest/2)))
		if err = harness.Wait(ctx, at-r.Now().Sub(began)); err == nil {
			err = r.strike(ctx, killWorker)
		}
		if other, due := also[i]; due && err == nil {
			err = r.strike(ctx, other)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return err
}

// setFaults replaces the faults of the sandbox, and those that the lab restores.
func (r *run) setFaults(ctx context.Context, f harness.Faults) error {
	r.breaking.Lock()
	r.faults = f
	r.breaking.Unlock()
	return r.sandbox.SetFaults(ctx, f)
}

// strike waits for a moment until a charge is in flight, so that a kill meets no idle worker, and
// takes the action.
func (r *run) strike(ctx context.Context, name string) error {
	const patience = 500 * time.Millisecond
	for began := r.Now(); r.inFlight() == 0 && r.Now().Sub(began) < patience; {
		_ = harness.Wait(ctx, 10*time.Millisecond)
	}
	flowing, began := r.inFlight() > 0, r.Now()
	_, err := r.act(ctx, name)
	r.breaking.Lock()
	defer r.breaking.Unlock()
	switch c := &r.chaos; {
	case errors.Is(err, errNotRun):
		c.notRun = true
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case name == restartDatabase:
		c.restarted = r.Now().Sub(began)
	case name == killWorker && flowing:
		c.inFlight++
	}
	r.chaos.struck[name]++
	return nil
}

// broken is what was broken so far.
func (r *run) broken() string {
	r.breaking.Lock()
	defer r.breaking.Unlock()
	struck := r.chaos.struck
	text := fmt.Sprintf("%s %s, %s %s", plural(struck[killWorker], "worker"), r.killed, plural(struck[killAPI], "api"), r.killed)
	if struck[restartDatabase] > 0 {
		text += ", database restarted in " + r.chaos.restarted.Round(time.Millisecond).String()
	}
	if r.chaos.notRun {
		text += ", restart of the database not run"
	}
	return text
}
