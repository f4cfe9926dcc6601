// Package doorbell tells workers that there is something to do, so that they need not
// ask the database again and again. A commit that makes work rings; what was rung for
// goes to the other processes by NOTIFY.
//
// A ring is a hint. It is sent after the commit, in a transaction of its own that
// writes nothing: NOTIFY inside the commit would let such commits pass one at a time. One
// that is lost costs the listener a poll of some seconds.
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

	// ringEvery is the least time between two rings of a process for the others: what is
	// rung for meanwhile goes with the next one.
	ringEvery = 10 * time.Millisecond

	// checkEvery is how often a listener that hears nothing rings for itself. It
	// reconnects if it does not hear that within the same time again.
	checkEvery = 10 * time.Second

	connectTimeout = 5 * time.Second
	again          = 250 * time.Millisecond // after a failure
)

// Doorbell rings and listens for one process. Run carries both out.
type Doorbell struct {
	config *pgx.ConnConfig
	log    *slog.Logger
	listen bool
	self   string // in the rings of this process

	kinds     atomic.Uint32 // that the others are still to be told of
	due       chan struct{} // there are some
	listening atomic.Bool

	mu    sync.Mutex
	bells map[chan struct{}]Kind
}

// Options are of a doorbell.
type Options struct {
	Application string // of its sessions
	Listen      bool   // who rings and never waits need not
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

// Listening tells whether the rings of other processes are heard.
func (d *Doorbell) Listening() bool { return d.listening.Load() }

// Ring wakes what waits in this process and, soon, in the others. It does not block.
//
// Subscribers of the outbox are woken at most once in ringEvery, in this process as in the
// others: each page that they read costs two transactions.
func (d *Doorbell) Ring(kinds Kind) {
	d.wake(kinds &^ Outbox)
	if told := kinds &^ Ledger; told != 0 {
		d.tell(told)
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

func (d *Doorbell) tell(kinds Kind) {
	d.kinds.Or(uint32(kinds))
	select {
	case d.due <- struct{}{}:
	default: // it is told with those before
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

// notifyAlways tells the other processes: at once if it has told nothing for a while,
// and otherwise once in ringEvery.
func (d *Doorbell) notifyAlways(ctx context.Context) {
	var conn *pgx.Conn
	defer func() { hangUp(ctx, conn) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.due:
		}
		kinds := d.kinds.Swap(0)
		d.wake(Kind(kinds) & Outbox)
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
			d.tell(Kind(kinds))
			pause = again
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (d *Doorbell) listenAlways(ctx context.Context) {
	for failed := false; ; failed = true {
		err := d.hear(ctx)
		if d.listening.Swap(false) {
			failed = false
		}
		if ctx.Err() != nil {
			return
		}
		if !failed {
			d.log.WarnContext(ctx, "the doorbell is not heard, the database is polled until it is", "error", err)
		}
		d.wake(Outbox | Inbox | Ledger)
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
}

// hear listens until the connection fails. It counts as listening when it has heard a
// ring of this process's other connection: a pooler that shares sessions accepts LISTEN
// and delivers nothing.
func (d *Doorbell) hear(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, d.config)
	if err != nil {
		return err
	}
	defer hangUp(ctx, conn)
	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		return err
	}
	for unanswered := false; ; {
		if !d.listening.Load() || unanswered {
			d.tell(0)
		}
		within, cancel := context.WithTimeout(ctx, checkEvery)
		n, err := conn.WaitForNotification(within)
		late := within.Err() != nil
		cancel()
		switch {
		case err != nil && late && ctx.Err() == nil && d.listening.Load() && !unanswered:
			unanswered = true
			continue
		case err != nil:
			return err
		}
		unanswered = false
		if !d.listening.Swap(true) {
			d.wake(Outbox | Inbox | Ledger) // for what was rung before
		}
		from, kinds, _ := strings.Cut(n.Payload, " ")
		if what, err := strconv.ParseUint(kinds, 10, 32); err == nil && from != d.self {
			d.wake(Kind(what))
		}
	}
}

func hangUp(ctx context.Context, conn *pgx.Conn) {
	if conn == nil {
		return
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(within) // nothing is under way
}
