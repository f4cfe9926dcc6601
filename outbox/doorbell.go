package outbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/loop"
)

// Kind says what a ring is for. Kinds are combined by |. All but KindMessages are the
// application's.
type Kind uint32

// KindMessages is rung for when messages were committed to the outbox.
const KindMessages Kind = 1

const (
	ringEvery        = 10 * time.Millisecond  // at most; rings between two notifications go with the second
	checkEvery       = 5 * time.Second        // a process that listens rings if it received nothing from the leader, and reconnects if it receives nothing for three times as long
	connectTimeout   = 5 * time.Second        // of a connection or a notification
	retryPause       = 250 * time.Millisecond // after a failure
	lastRingTime     = time.Second            // of the notification after the end
	leaderRingsEvery = time.Second            // of the leader
)

// Doorbell wakes subscribers when messages were committed, so that they need not poll fast. Each
// process has one and rings it after its commits. The rings go to other processes by NOTIFY,
// in a transaction of its own: commits with a NOTIFY inside would pass one at a time.
//
// A ring is a hint, and is lost when its process dies. So one of the processes that listen is the
// leader: all its bells ring once a second. It holds an advisory lock, which another process
// takes within ten seconds of its end.
type Doorbell struct {
	o    DoorbellOptions
	self string // in the rings of this process

	kinds      atomic.Uint32 // of the next notification
	due        chan struct{} // a notification is due
	listening  atomic.Bool
	leading    atomic.Bool // this process is the leader
	leaderRang atomic.Bool // a ring of another process, the leader, was received

	mu    sync.Mutex
	bells map[chan struct{}]Kind
}

// DoorbellOptions are of a doorbell. The zero value is for a process that rings and listens.
type DoorbellOptions struct {
	Log      *slog.Logger // of connections that are lost; slog.Default() where nil
	Channel  string       // of NOTIFY, the same in all processes; "outbox" unless set
	Local    Kind         // kinds whose rings stay in this process
	RingOnly bool         // it receives from no other process
}

// NewDoorbell makes a doorbell. Run does its work.
func NewDoorbell(o DoorbellOptions) *Doorbell {
	o.Log, o.Channel = logged(o.Log), cmp.Or(o.Channel, "outbox")
	return &Doorbell{o: o, self: rand.Text(), due: make(chan struct{}, 1), bells: map[chan struct{}]Kind{}}
}

// Bell returns a channel that receives when one of these kinds was rung for, in any process.
func (d *Doorbell) Bell(kinds Kind) <-chan struct{} {
	bell := make(chan struct{}, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bells[bell] = kinds
	return bell
}

// Listening reports whether the rings of other processes are received.
func (d *Doorbell) Listening() bool { return d.listening.Load() }

// Ring wakes what waits in this process and, soon, in the others. It does not block. For
// KindMessages it wakes at most once in 10 ms, since each page costs two transactions.
func (d *Doorbell) Ring(kinds Kind) {
	d.wake(kinds &^ KindMessages)
	if others := kinds &^ d.o.Local; others != 0 {
		d.notify(others)
	}
}

func (d *Doorbell) notify(kinds Kind) {
	d.kinds.Or(uint32(kinds))
	select {
	case d.due <- struct{}{}:
	default: // it goes with the one that is due
	}
}

func (d *Doorbell) wake(kinds Kind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for bell, of := range d.bells {
		if of&kinds == 0 {
			continue
		}
		select {
		case bell <- struct{}{}:
		default: // it rings already
		}
	}
}

// Run notifies and listens until ctx ends, each by a connection that it takes out of the pool, and
// notifies of what was rung for until then. It waits for a database that is away. A program ends
// ctx after its last commit.
func (d *Doorbell) Run(ctx context.Context, pool *pgxpool.Pool) {
	var both sync.WaitGroup
	defer both.Wait()
	if !d.o.RingOnly {
		both.Go(func() { d.listenAlways(ctx, pool) })
		both.Go(func() { d.ringAsLeader(ctx) })
	}
	d.notifyAlways(ctx, pool)
}

// ringAsLeader rings while the process is the leader.
func (d *Doorbell) ringAsLeader(ctx context.Context) {
	for loop.Pause(ctx, leaderRingsEvery, nil) {
		if d.leading.Load() {
			d.wake(^Kind(0))
		}
	}
}

// notify rings, and reports whether the session became the leader's. A ring need not be durable.
// The setting ends with the statement's transaction, the lock with the session.
const notify = `
select pg_notify($1, $2),
       set_config('synchronous_commit', 'off', true),
       $3 and pg_try_advisory_lock(hashtextextended('leader of ' || $1, 0))`

// notifyAlways notifies the other processes: at once after a silence, else once in
// ringEvery. A process that listens hears itself, so it rings in a silence too, unless it has
// received a ring of the leader.
func (d *Doorbell) notifyAlways(ctx context.Context, pool *pgxpool.Pool) {
	var conn *pgx.Conn
	defer func() { hangUp(ctx, conn) }()
	for goesOn := true; goesOn; {
		goesOn = loop.Pause(ctx, checkEvery, d.due)
		kinds := Kind(d.kinds.Swap(0))
		if kinds == 0 && (!goesOn || d.o.RingOnly || d.leaderRang.Swap(false)) {
			continue
		}
		d.wake(kinds & KindMessages)
		within, cancel := context.WithTimeout(ctx, connectTimeout)
		if !goesOn {
			within, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastRingTime)
		}
		var err error
		if conn == nil || conn.IsClosed() {
			d.leading.Store(false)
			conn, err = session(within, pool)
		}
		if err == nil {
			err = d.sendRing(within, conn, kinds)
		}
		cancel()
		pause := ringEvery
		if err != nil {
			d.notify(kinds)
			pause = retryPause
		}
		loop.Pause(ctx, pause, nil)
	}
}

// fromLeader ends the rings of the leader.
const fromLeader = " leader"

// sendRing notifies, and makes this process the leader if no process is.
func (d *Doorbell) sendRing(ctx context.Context, conn *pgx.Conn, kinds Kind) error {
	ring, leading := d.self+" "+strconv.FormatUint(uint64(kinds), 10), d.leading.Load()
	if leading {
		ring += fromLeader
	}
	var taken bool
	err := conn.QueryRow(ctx, notify, d.o.Channel, ring, !leading && !d.o.RingOnly).Scan(nil, nil, &taken)
	d.leading.Store(leading || taken)
	return err
}

// listenAlways counts as listening when it has received a ring, be it of this process's other
// connection: a pooler that shares sessions accepts LISTEN and delivers nothing.
func (d *Doorbell) listenAlways(ctx context.Context, pool *pgxpool.Pool) {
	var conn *pgx.Conn
	loop.Run(ctx, d.o.Log, "LISTEN receives nothing, the database is polled until it does", func(ctx context.Context) (_ time.Duration, err error) {
		if conn == nil {
			if conn, err = d.listen(ctx, pool); err != nil {
				return 0, err
			}
		}
		within, cancel := context.WithTimeout(ctx, 3*checkEvery)
		defer cancel()
		n, err := conn.WaitForNotification(within)
		if d.listening.Swap(err == nil) != (err == nil) {
			d.wake(^Kind(0)) // for what was rung before, or will not be received
		}
		if err != nil {
			hangUp(ctx, conn)
			conn = nil
			return 0, err
		}
		ring, leader := strings.CutSuffix(n.Payload, fromLeader)
		from, kinds, _ := strings.Cut(ring, " ")
		if leader && from != d.self {
			d.leaderRang.Store(true)
		}
		if what, err := strconv.ParseUint(kinds, 10, 32); err == nil && from != d.self {
			d.wake(Kind(what))
		}
		return 0, nil
	})
	hangUp(ctx, conn)
}

// listen begins to listen, and notifies itself.
func (d *Doorbell) listen(ctx context.Context, pool *pgxpool.Pool) (*pgx.Conn, error) {
	within, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := session(within, pool)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(within, "listen "+pgx.Identifier{d.o.Channel}.Sanitize()); err != nil {
		hangUp(ctx, conn)
		return nil, err
	}
	d.notify(0)
	return conn, nil
}

var errNoPool = errors.New("the pool is nil")

// session takes a connection out of the pool, for work that needs a session of its own.
func session(ctx context.Context, pool *pgxpool.Pool) (*pgx.Conn, error) {
	if pool == nil {
		return nil, errNoPool
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Hijack(), nil
}

func hangUp(ctx context.Context, conn *pgx.Conn) {
	if conn == nil {
		return
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(within) // no statement is in flight
}
