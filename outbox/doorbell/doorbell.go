// Package doorbell wakes readers when work was committed, so that they need not poll fast. A ring is a
// hint: one that is lost costs a poll.
package doorbell

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/loop"
)

const (
	ringEvery   = 10 * time.Millisecond // between two notifications; rings between them go with the second
	ringTimeout = time.Second           // of a notification, or of the end of a connection
)

// Doorbell connects the processes of a database. A process rings it after a commit, with a name of the
// work; the ring goes to the other processes by NOTIFY, in a transaction of its own, since commits with
// a NOTIFY inside would pass one at a time.
type Doorbell struct {
	channel string
	log     *slog.Logger
	due     chan struct{}

	mu    sync.Mutex
	rung  map[string]bool // that goes with the next notification
	bells map[string][]chan struct{}
}

// New makes a doorbell for a channel of NOTIFY, the same in all processes.
func New(channel string, log *slog.Logger) *Doorbell {
	return &Doorbell{channel: channel, log: log, due: make(chan struct{}, 1), rung: map[string]bool{}, bells: map[string][]chan struct{}{}}
}

// Bell returns a channel that receives when any process has rung for one of these names. It is
// called before Run.
func (d *Doorbell) Bell(names ...string) <-chan struct{} {
	bell := make(chan struct{}, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		d.bells[name] = append(d.bells[name], bell)
	}
	return bell
}

// Wake wakes what waits for a name in this process. It does not block.
func (d *Doorbell) Wake(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, bell := range d.bells[name] {
		loop.Ring(bell)
	}
}

// Ring wakes what waits for a name, in this process at once. It does not block.
func (d *Doorbell) Ring(name string) {
	d.Wake(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rung[name] = true
	loop.Ring(d.due)
}

// Run notifies, and listens if there are bells, until ctx ends. A program ends ctx after its
// last commit, for which Run still notifies.
func (d *Doorbell) Run(ctx context.Context, pool *pgxpool.Pool) {
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() { d.notify(ctx, pool) })
	if len(d.bells) > 0 {
		loop.Run(ctx, d.log, "LISTEN failed, what waits for work polls until it succeeds", func(ctx context.Context) (time.Duration, error) {
			return ringEvery, d.listen(ctx, pool)
		})
	}
}

// ringAll need not be durable.
const ringAll = `
-- doorbell.ringAll
select pg_notify($1, name),
       set_config('synchronous_commit', 'off', true)
  from unnest($2::text[]) as rung (name)`

// notify sends what was rung for until ctx ends, and then what was rung for until then.
func (d *Doorbell) notify(ctx context.Context, pool *pgxpool.Pool) {
	for goesOn := true; goesOn; {
		goesOn = loop.Pause(ctx, time.Hour, d.due)
		d.mu.Lock()
		names := slices.Collect(maps.Keys(d.rung))
		clear(d.rung)
		d.mu.Unlock()
		if len(names) == 0 {
			continue
		}
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), ringTimeout)
		if _, err := pool.Exec(within, ringAll, d.channel, names); err != nil {
			d.log.DebugContext(ctx, "NOTIFY failed, readers find the work by their next poll", "error", err)
		}
		cancel()
		loop.Pause(ctx, ringEvery, nil)
	}
}

// listen listens on a connection of its own until that is lost. It returns an error if it
// cannot listen.
func (d *Doorbell) listen(ctx context.Context, pool *pgxpool.Pool) error {
	acquired, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := acquired.Hijack()
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), ringTimeout)
		defer cancel()
		_ = conn.Close(within)
	}()
	if _, err = conn.Exec(ctx, "listen "+pgx.Identifier{d.channel}.Sanitize()); err != nil {
		return err
	}
	for name := range d.bells {
		d.Wake(name) // for what was rung while nothing listened
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			if ctx.Err() == nil {
				d.log.WarnContext(ctx, "LISTEN was lost, what waits for work polls until it succeeds again", "error", err)
			}
			return nil
		}
		d.Wake(n.Payload)
	}
}
