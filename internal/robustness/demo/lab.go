package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// Action is something that the crash lab does: it breaks what runs, for real, and the audit still holds.
type Action struct {
	Name  string // for Do
	Group string // program, provider or message
	Title string
	What  string // what it does
	Shows string // what to watch

	Faults harness.Faults // of the provider and the merchant's receiver, for a while
	Said   string         // what they then did
}

var errNotKept = errors.New("the lab is open after the audit of payonce demo --keep, until that ends")

const outageLength = 10 * time.Second

// keep lets actions act until ctx ends, and returns when the one in flight, which ends too, has ended. It says what a visitor needs once they can.
func (d *Demo) keep(ctx context.Context, introduction string) {
	d.acting.Lock()
	d.kept = ctx
	d.acting.Unlock()
	d.say("%s", introduction)
	<-ctx.Done()
	d.acting.Lock()
	defer d.acting.Unlock()
}

// Do takes an action while the demo is kept, one at a time, and says in a sentence what it did.
func (d *Demo) Do(name string) (string, error) {
	d.acting.Lock()
	defer d.acting.Unlock()
	if d.kept == nil || d.kept.Err() != nil {
		return "", errNotKept
	}
	return d.act(d.kept, name)
}

// act takes an action of the crash lab, and says what it did.
func (d *Demo) act(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	switch name {
	case "kill-worker":
		return d.kill(ctx, "worker", d.world.Workers, &d.workers)
	case "kill-api":
		return d.kill(ctx, "api", d.world.APIs, &d.apis)
	case "restart-database":
		return d.restart(ctx)
	case "redeliver":
		return d.redeliver(ctx)
	case "resend-webhooks":
		sent, err := d.sandbox.RepeatWebhooks(ctx, 1)
		return fmt.Sprintf("the provider sent %s once more, %d were taken", plural(sent.Events, "event"), sent.Delivered), err
	}
	for _, a := range lab.Actions {
		if a.Name == name {
			return d.outage(ctx, a)
		}
	}
	return "", fmt.Errorf("there is no action %q", name)
}

const cutSessions = `
select count(*) filter (where pg_terminate_backend(pid)) > 0
  from pg_stat_activity
 where application_name like 'payonce-' || $1 || ' %'
   and datname = current_database()`

// kill kills one of the programs of a kind, in turn, and starts it again. Of services that run already it cuts
// the database sessions of a kind.
func (d *Demo) kill(ctx context.Context, kind string, programs []*harness.Process, killed *atomic.Int64) (string, error) {
	if d.Running != nil {
		err := d.await(ctx, cutSessions, kind) // a program that was cut just now has no session for a while
		if err == nil {
			killed.Add(1)
		}
		return "", err
	}
	p := programs[killed.Load()%programsOfKind]
	if err := p.Kill(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, p.Tail())
	}
	killed.Add(1)
	_ = harness.Wait(ctx, killPause) // a start fails where ctx has ended
	return p.Name() + " was killed, and runs again", p.Restart(ctx)
}

// restart restarts the database's server without a shutdown, if it is the demo's own.
func (d *Demo) restart(ctx context.Context) (string, error) {
	if d.server == nil {
		return "", errors.New("the server is not the demo's own")
	}
	began := d.Now()
	err := d.server.Restart(ctx)
	took := d.Now().Sub(began)
	d.db.Reset() // its sessions have ended
	if err == nil {
		d.restarted.Store(int64(took))
	}
	return fmt.Sprintf("PostgreSQL was shut down at once and answers again after %s", took.Round(time.Millisecond)), err
}

// outage gives the provider and the merchant faults for a while.
func (d *Demo) outage(ctx context.Context, a Action) (string, error) {
	err := d.sandbox.SetFaults(ctx, a.Faults)
	if err == nil {
		err = harness.Wait(ctx, outageLength)
	}
	ctx, cancel := closing(ctx)
	defer cancel()
	return fmt.Sprintf("for %s %s", outageLength, a.Said), errors.Join(err, d.sandbox.SetFaults(ctx, harness.Faults{}))
}

const repeatMessages = `
insert into outbox (topic, message_id, payload, metadata)
select 'charges', message_id, payload, metadata
  from inbox
 where receiver = 'fulfillment'
 order by id`

// redeliver returns when the messages were received once more.
func (d *Demo) redeliver(ctx context.Context) (string, error) {
	repeated, err := d.db.Exec(ctx, repeatMessages)
	if err == nil {
		err = d.await(ctx, `select not exists (select from outbox)`)
	}
	return plural(repeated.RowsAffected(), "message") + " had a second delivery", err
}

// strikeAll breaks things while charges flow: the provider and the shop carry out all requests and
// answer none, then they have faults for the whole demo. A worker is killed about every second and,
// a third and two thirds of the way, an api is and the database restarts. It ends early, without an
// error, when ctx has ended.
func (d *Demo) strikeAll(ctx context.Context, length time.Duration) error {
	const (
		silence  = 2 * time.Second
		rest     = 1200 * time.Millisecond
		patience = 500 * time.Millisecond // for an accepted request: else the kill meets an idle worker
		moment   = 10 * time.Millisecond
	)
	began, random := d.Now(), rand.New(rand.NewPCG(d.Seed, 1)) //nolint:gosec // kills must be repeatable, not secret
	err := d.sandbox.SetFaults(ctx, harness.Faults{DropAfter: 1})
	if err == nil && harness.Wait(ctx, silence) == nil {
		err = d.sandbox.SetFaults(ctx, harness.Faults{
			Seed: d.Seed, DropBefore: 0.05, DropAfter: 0.05, Error500: 0.03, Slow: harness.Slow{P: 0.1, Milliseconds: 300},
		})
	}
	n := int(length / rest)
	also := map[int]string{n / 3: "kill-api", 2 * n / 3: "restart-database"}
	for i := 0; i < n && err == nil; i++ {
		at := rest*time.Duration(i) + rest/4 + time.Duration(random.Int64N(int64(rest/2)))
		if err = harness.Wait(ctx, at-d.Now().Sub(began)); err != nil {
			break
		}
		for waited := time.Duration(0); d.inFlight.Load() == 0 && waited < patience; waited += moment {
			_ = harness.Wait(ctx, moment)
		}
		if d.inFlight.Load() > 0 {
			d.busy++
		}
		_, err = d.act(ctx, "kill-worker")
		if other := also[i]; err == nil && other != "" && (other != "restart-database" || !d.noRestart) {
			_, err = d.act(ctx, other)
		}
	}
	if ctx.Err() != nil {
		err = nil
	}
	return err
}
