package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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

	do deed
}

// deed takes an action. It says how far it has come, and returns in a sentence what it did and, of a
// guard, the Finding as JSON.
type deed func(ctx context.Context, r *run, progress func(string)) (said string, finding []byte, err error)

var errNotReady = errors.New("the demo is starting, or ends")

const outageLength = 10 * time.Second

// Actions are all that the lab can do: the crash lab's, then one for each guard.
func (*Lab) Actions() []Action {
	actions := crashes()
	for _, g := range Guards() {
		actions = append(actions, Action{g.Name, "guard", "Remove " + g.Name, g.Kind + "; " + g.Fault, g.red(), g.remove})
	}
	return actions
}

// crashes are the actions of the crash lab.
func crashes() []Action {
	const refused = "Workers retry, and ask the provider before they send anything again: it takes the money once."
	return []Action{
		{
			"send-10", "client", "Send one request 10 times at once", "Ten clients send the same charge with the same key to both apis.",
			"One charge, ten equal answers: idempotency_keys_once refuses nine commits.", sendTen,
		},
		{
			killWorker, "program", "Kill a worker", "SIGKILL, and a start after 150 ms.",
			"The lease of its messages runs out within a second, and another worker takes them over.", kill("worker"),
		},
		{
			killAPI, "program", "Kill an api", "SIGKILL, and a start after 150 ms.",
			"Requests without an answer are repeated under their keys.", kill("api"),
		},
		{
			restartDatabase, "program", "Restart PostgreSQL", "An immediate shutdown without a checkpoint, and a start.",
			"Every program reconnects, and what was acknowledged is still there.", restart,
		},
		outage("cut-provider", "Cut the network to the provider", "every connection to the provider and the merchant was cut before a request arrived", refused, harness.Faults{DropBefore: 1}),
		outage("provider-500", "Let the provider answer 500", "the provider and the merchant answered every request with 500", refused, harness.Faults{Error500: 1}),
		outage("provider-slow", "Slow the provider down", "the provider and the merchant answered after 2 s", "Charges take longer, and leases are renewed.", harness.Faults{Slow: harness.Slow{P: 1, Milliseconds: 2000}}),
		outage("provider-silent", "Lose the provider's answers", "the provider and the merchant carried out every request and answered none", refused, harness.Faults{DropAfter: 1}),
		{
			"redeliver", "message", "Redeliver every message", "Each message that the worker has received is in the outbox once more.",
			"inbox_message_once counts each message as a duplicate.", redeliver,
		},
		{
			"resend-webhooks", "message", "Resend all webhooks of the provider", "The provider sends each of its events once more.",
			"inbox_message_once counts each event as a duplicate.", resendWebhooks,
		},
	}
}

// Do takes an action, one at a time, and says in a sentence what it did. Of the guard lab it also
// returns the Finding, as JSON, and says before how far it has come. An action in flight holds up
// the demo's audit.
func (l *Lab) Do(ctx context.Context, name string, progress func(string)) (said string, finding []byte, err error) {
	actions := l.Actions()
	i := slices.IndexFunc(actions, func(a Action) bool { return a.Name == name })
	if i < 0 {
		return "", nil, fmt.Errorf("there is no action %q", name)
	}
	l.acting.Lock()
	defer l.acting.Unlock()
	if l.run == nil {
		return "", nil, errNotReady
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ended, cancel)() //nolint:contextcheck // it is the demo's, whose end ends the action
	return actions[i].do(ctx, l.run, progress)
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

// sendTen also records what it sees, for the checks of the demo.
func sendTen(ctx context.Context, r *run, _ func(string)) (string, []byte, error) {
	c := newPlan(newSeed(), 1, newRunName()).charges[0]
	c.together = 10
	ctx, cancel := context.WithTimeout(ctx, trafficTimeout)
	defer cancel()
	r.merchant.run(ctx, []*charge{c})
	r.sent = append(r.sent, c)
	if len(c.answers) < c.together {
		return "", nil, fmt.Errorf("%d of %d requests with the key %s were answered", len(c.answers), c.together, c.key)
	}
	different := map[harness.Answer]bool{}
	for _, a := range c.answers {
		different[a] = true
	}
	return fmt.Sprintf("%d requests with the key %s had %s; %s %s",
		len(c.answers), c.key, plural(len(different), "different answer"), c.ID, c.outcome()), nil, nil
}

// kill kills one of the two workers or apis and starts it again.
func kill(program string) deed {
	return func(ctx context.Context, r *run, _ func(string)) (string, []byte, error) {
		r.striking.Lock()
		defer r.striking.Unlock()
		r.kills++
		which := r.kills % programsOfKind
		said := fmt.Sprintf("%s-%d was %s, and runs again", program, which+1, r.killed)
		if r.Running != nil {
			return said, nil, r.cutSessions(ctx, program)
		}
		p := map[string][]*harness.Process{"worker": r.world.Workers, "api": r.world.APIs}[program][which]
		if err := p.Kill(); err != nil {
			return "", nil, fmt.Errorf("%w\n%s", err, p.Tail())
		}
		_ = harness.Wait(ctx, killPause) // a start fails where ctx has ended
		ctx, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		return said, nil, p.Restart(ctx)
	}
}

// restart restarts the database's server without a shutdown, or returns errNotRun.
func restart(ctx context.Context, r *run, _ func(string)) (string, []byte, error) {
	r.striking.Lock()
	defer r.striking.Unlock()
	if r.server == nil {
		return "", nil, errNotRun
	}
	began := r.Now()
	err := r.server.Restart(ctx)
	return fmt.Sprintf("PostgreSQL was shut down at once and answers again after %s", r.Now().Sub(began).Round(time.Millisecond)), nil, err
}

// outage is an action that replaces the demo's own faults for a while.
func outage(name, title, did, shows string, faults harness.Faults) Action {
	do := func(ctx context.Context, r *run, _ func(string)) (string, []byte, error) {
		err := r.sandbox.SetFaults(ctx, faults)
		if err == nil {
			err = harness.Wait(ctx, outageLength)
		}
		ctx, cancel := closing(ctx)
		defer cancel()
		r.breaking.Lock()
		own := r.faults
		r.breaking.Unlock()
		return fmt.Sprintf("for %s %s", outageLength, did), nil, errors.Join(err, r.sandbox.SetFaults(ctx, own))
	}
	return Action{name, "provider", title, fmt.Sprintf("For %s.", outageLength), shows, do}
}

const repeatMessages = `
insert into outbox (topic, message_id, payload, metadata)
select 'charges', message_id, payload, metadata
  from inbox
 where receiver = 'fulfillment'
 order by id`

// redeliver returns when the messages were received once more.
func redeliver(ctx context.Context, r *run, _ func(string)) (string, []byte, error) {
	repeated, err := r.db.Exec(ctx, repeatMessages)
	if err == nil {
		err = await(ctx, r.db, `select not exists (select from outbox)`)
	}
	return plural(int(repeated.RowsAffected()), "message") + " had a second delivery", nil, err
}

func resendWebhooks(ctx context.Context, r *run, _ func(string)) (string, []byte, error) {
	sent, err := r.sandbox.RepeatWebhooks(ctx, 1)
	return fmt.Sprintf("the provider sent %s once more, %d were taken", plural(sent.Events, "event"), sent.Delivered), nil, err
}

// obey takes an action for each line until the text ends.
func (l *Lab) obey(ctx context.Context, o Options, commands io.Reader) {
	for lines := bufio.NewScanner(commands); lines.Scan() && ctx.Err() == nil; {
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

// strike is an action of the crash lab at a time of the plan.
type strike struct {
	at     time.Duration
	action string
}

// The actions of the crash lab that the plan takes.
const (
	killWorker      = "kill-worker"
	killAPI         = "kill-api"
	restartDatabase = "restart-database"
)

// newStrikes strikes a worker about every second and, a third and two thirds of the way, an api and
// the database.
func newStrikes(r *rand.Rand, length time.Duration) (strikes []strike) {
	const rest = 1200 * time.Millisecond
	n := int(length / rest)
	for i := range n {
		at := rest*time.Duration(i) + rest/4 + time.Duration(r.Int64N(int64(rest/2)))
		strikes = append(strikes, strike{at, killWorker})
		if i == n/3 {
			strikes = append(strikes, strike{at, killAPI})
		}
		if i == 2*n/3 {
			strikes = append(strikes, strike{at, restartDatabase})
		}
	}
	return strikes
}

// strikeAll breaks things while charges flow: the provider and the shop carry out all requests and
// answer none, then they have faults for the whole demo, and the plan's strikes happen. It ends early,
// without an error, when the time is up.
func (r *run) strikeAll(ctx context.Context) error {
	const silence = 2 * time.Second
	began, slow := r.Now(), harness.Slow{P: 0.1, Milliseconds: 300}
	err := r.setFaults(ctx, harness.Faults{DropAfter: 1})
	if err == nil && harness.Wait(ctx, silence) == nil {
		err = r.setFaults(ctx, harness.Faults{Seed: r.Seed, DropBefore: 0.05, DropAfter: 0.05, Error500: 0.03, Slow: slow})
	}
	for _, s := range r.plan.strikes {
		if err == nil && harness.Wait(ctx, s.at-r.Now().Sub(began)) == nil {
			err = r.strike(ctx, s.action)
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
	actions := crashes()
	_, _, err := actions[slices.IndexFunc(actions, func(a Action) bool { return a.Name == name })].do(ctx, r, nil)
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
