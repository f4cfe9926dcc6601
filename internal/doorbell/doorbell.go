// Package doorbell wakes workers when there is work, so that they need not poll the database
// fast. A commit that leaves work rings; the ring goes to the other processes by NOTIFY.
//
// A ring is a hint. It is sent after the commit, in a transaction of its own that writes
// nothing: commits with a NOTIFY inside would pass one at a time. A lost ring costs the
// listener a poll of some seconds.
package doorbell

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// Kind says what a ring is for. Several are combined by |.
type Kind uint32

// The kinds of work.
const (
	Outbox Kind = 1 << iota // a message was committed to the outbox
	Inbox                   // a message of the inbox became due
	Ledger                  // events were committed; it goes to no other process
)

const (
	channel = "payonce_due"

	// ringEvery is the least time between two notifications of a process. Rings between them
	// go with the next one.
	ringEvery = 10 * time.Millisecond

	// checkEvery is how long a process that listens rings for nothing before it rings for
	// itself. It reconnects if it hears nothing for twice as long.
	checkEvery = 5 * time.Second

	connectTimeout = 5 * time.Second
	retryPause     = 250 * time.Millisecond // after a failure
)

// Doorbell rings and listens for one process. Run does the work of both.
type Doorbell struct {
	config *pgx.ConnConfig
	log    *slog.Logger
	listen bool
	self   string // in the rings of this process

	kinds     atomic.Uint32 // of the next notification
	due       chan struct{} // a notification is due
	listening atomic.Bool

	mu    sync.Mutex
	bells map[chan struct{}]Kind
}

// Options are of a doorbell.
type Options struct {
	Application string // of its sessions
	Listen      bool   // false for a process that only rings
}

// New makes a doorbell for the database of a URL.
func New(url string, log *slog.Logger, o Options) (*Doorbell, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL cannot be read: %w", err)
	}
	config.ConnectTimeout = connectTimeout
	config.RuntimeParams["application_name"] = o.Application
	config.RuntimeParams["synchronous_commit"] = "off"
	return &Doorbell{
		config: config, log: log, listen: o.Listen, self: rand.Text(),
		due: make(chan struct{}, 1), bells: map[chan struct{}]Kind{},
	}, nil
}

// Bell returns a channel that receives when one of these kinds was rung for, in this
// process or another one.
func (d *Doorbell) Bell(kinds Kind) <-chan struct{} {
	bell := make(chan struct{}, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bells[bell] = kinds
	return bell
}

// Listening reports whether the rings of other processes are heard.
func (d *Doorbell) Listening() bool { return d.listening.Load() }

// Ring wakes what waits in this process and, soon, in the others. It does not block.
//
// Subscribers of the outbox are woken at most once in ringEvery, in this process as in the
// others: each page that they read costs two transactions.
func (d *Doorbell) Ring(kinds Kind) {
	d.wake(kinds &^ Outbox)
	if others := kinds &^ Ledger; others != 0 {
		d.notify(others)
	}
}

// Committed rings for what a commit leaves to be done. See postgres.Options.
func (d *Doorbell) Committed(b *pgx.Batch) { d.Ring(Of(b)) }

// Of returns what a batch leaves to be done once it is committed.
func Of(b *pgx.Batch) (kinds Kind) {
	if outbox.Appended(b) {
		kinds |= Outbox
	}
	if inbox.MadeDue(b) {
		kinds |= Inbox
	}
	if ledger.Appended(b) {
		kinds |= Ledger
	}
	return kinds
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

// Run notifies and listens until ctx ends.
func (d *Doorbell) Run(ctx context.Context) {
	var both sync.WaitGroup
	defer both.Wait()
	if d.listen {
		both.Go(func() { d.listenAlways(ctx) })
	}
	d.notifyAlways(ctx)
}

// notifyAlways notifies the other processes: at once after a silence, else once in
// ringEvery. A process that listens hears itself, so it rings in a silence too.
func (d *Doorbell) notifyAlways(ctx context.Context) {
	var conn *pgx.Conn
	defer func() { hangUp(ctx, conn) }()
	for ctx.Err() == nil {
		loop.Pause(ctx, checkEvery, d.due)
		kinds := Kind(d.kinds.Swap(0))
		if kinds == 0 && !d.listen {
			continue
		}
		d.wake(kinds & Outbox)
		within, cancel := context.WithTimeout(ctx, connectTimeout)
		var err error
		if conn == nil || conn.IsClosed() {
			conn, err = pgx.ConnectConfig(within, d.config)
		}
		if err == nil {
			_, err = conn.Exec(within, "select pg_notify($1, $2)", channel, d.self+" "+strconv.FormatUint(uint64(kinds), 10))
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

// listenAlways counts as listening when it has heard a ring of this process's other
// connection: a pooler that shares sessions accepts LISTEN and delivers nothing.
func (d *Doorbell) listenAlways(ctx context.Context) {
	var conn *pgx.Conn
	loop.Run(ctx, d.log, "the doorbell is not heard, the database is polled until it is", func(ctx context.Context) (_ time.Duration, err error) {
		if conn == nil {
			if conn, err = d.connect(ctx); err != nil {
				return 0, err
			}
		}
		within, cancel := context.WithTimeout(ctx, 2*checkEvery)
		defer cancel()
		n, err := conn.WaitForNotification(within)
		if d.listening.Swap(err == nil) != (err == nil) {
			d.wake(Outbox | Inbox | Ledger) // for what was rung before, or will not be heard
		}
		if err != nil {
			hangUp(ctx, conn)
			conn = nil
			return 0, err
		}
		from, kinds, _ := strings.Cut(n.Payload, " ")
		if what, err := strconv.ParseUint(kinds, 10, 32); err == nil && from != d.self {
			d.wake(Kind(what))
		}
		return 0, nil
	})
	hangUp(ctx, conn)
}

// connect listens, and rings for itself.
func (d *Doorbell) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, d.config)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		hangUp(ctx, conn)
		return nil, err
	}
	d.notify(0)
	return conn, nil
}

func hangUp(ctx context.Context, conn *pgx.Conn) {
	if conn == nil {
		return
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(within) // no statement is in flight
}
