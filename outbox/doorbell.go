package outbox

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/loop"
)

// ringEvery is the time between two notifications. Rings between them go with the second.
const ringEvery = 10 * time.Millisecond

// Doorbell wakes those who wait for work that was committed, so that they need not poll fast. A
// process rings its doorbell after a commit, with a name of the work; the ring goes to the other
// processes by NOTIFY, in a transaction of its own, since commits with a NOTIFY inside would
// pass one at a time. A ring is a hint: one that is lost costs a poll.
type Doorbell struct {
	channel string
	log     *slog.Logger
	due     chan struct{}

	mu    sync.Mutex
	rung  map[string]bool // that goes with the next notification
	bells map[string][]chan struct{}
}

// NewDoorbell makes a doorbell for a channel of NOTIFY, the same in all processes.
func NewDoorbell(channel string, log *slog.Logger) *Doorbell {
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
		ring(bell)
	}
}

// Ring wakes what waits for a name, in this process at once. It does not block.
func (d *Doorbell) Ring(name string) {
	d.Wake(name)
	d.mu.Lock()
	d.rung[name] = true
	d.mu.Unlock()
	ring(d.due)
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default: // it rings already
	}
}

// Run notifies, and listens if there are bells, until ctx ends.
func (d *Doorbell) Run(ctx context.Context, pool *pgxpool.Pool) {
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() { d.notify(ctx, pool) })
	if len(d.bells) > 0 {
		loop.Run(ctx, d.log, "LISTEN failed, what waits for work polls until it succeeds", func(ctx context.Context) (time.Duration, error) { return 0, d.listen(ctx, pool) })
	}
}

// ringAll need not be durable.
const ringAll = `
select pg_notify($1, name),
       set_config('synchronous_commit', 'off', true)
  from unnest($2::text[]) as rung (name)`

// notify rings until ctx ends, and then once more.
func (d *Doorbell) notify(ctx context.Context, pool *pgxpool.Pool) {
	for loop.Pause(ctx, time.Hour, d.due) || len(d.due) > 0 {
		d.mu.Lock()
		names := slices.Collect(maps.Keys(d.rung))
		clear(d.rung)
		d.mu.Unlock()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		_, err := pool.Exec(within, ringAll, d.channel, names)
		cancel()
		if err != nil {
			d.log.DebugContext(ctx, "NOTIFY failed, readers find the work by their next poll", "error", err)
		}
		loop.Pause(ctx, ringEvery, nil)
	}
}

// listen listens on a connection of its own until that fails.
func (d *Doorbell) listen(ctx context.Context, pool *pgxpool.Pool) error {
	acquired, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := acquired.Hijack()
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, "listen "+pgx.Identifier{d.channel}.Sanitize())
	for name := range d.bells {
		d.Wake(name) // for what was rung before
	}
	for err == nil {
		var n *pgconn.Notification
		if n, err = conn.WaitForNotification(ctx); err == nil {
			d.Wake(n.Payload)
		}
	}
	return err
}
