package console

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
)

// What live pages cost the database, however many are open: the loop and the audit share one
// budget, and the doorbell has a statement every five seconds. Without pages there is no cost
// but the doorbell's.
const (
	perSecond = 2.6 // statements
	soonest   = 600 * time.Millisecond
	latest    = 750 * time.Millisecond // so that a kill is seen within a second

	auditEvery = 30 * time.Second // from begin to begin, where the audit ends within it
	auditShare = 10               // the audit uses one part in so many of the time
	auditRetry = 10 * time.Second
	redrawCost = 12 // statements of the page of a charge, which a live page reads again within the budget
)

// receivers are those of fulfillment, which the console does not link.
var receivers = []string{"fulfillment", "notification", "resend"}

// tick is what live pages show at one moment.
type tick struct {
	facts
	*audited

	Programs []process
	Alive    map[string]int   // programs of a kind
	Wrong    map[string]wrong // by the part of the diagram
	Broken   int              // violations of both
	Err      string           // the database does not answer; the rest is what it said last

	flow, strip []byte        // the Flow page and the line that every page has, rendered once for all
	over        chan struct{} // closed when there is another tick
}

// audited is the last whole audit.
type audited struct {
	Audit    []audit.Check
	AuditAt  time.Time // when it ended; zero: none has yet
	AuditErr string
}

// live reads the database for all pages.
type live struct {
	*Console

	budget  *rate.Limiter
	wake    chan struct{} // an action was taken, or the first page opened
	readers atomic.Int64  // pages that are open
	newest  atomic.Pointer[tick]
	audited atomic.Pointer[audited]
}

func newLive(c *Console) *live {
	l := &live{Console: c, budget: rate.NewLimiter(perSecond, 1), wake: make(chan struct{}, 1)}
	l.audited.Store(&audited{})
	l.newest.Store(&tick{audited: &audited{}, over: make(chan struct{}), Err: "The database has not been read yet."})
	return l
}

// open lets the loop read until leave is called.
func (l *live) open() (leave func()) {
	if l.readers.Add(1) == 1 {
		l.hurry()
	}
	return func() { l.readers.Add(-1) }
}

// hurry lets the loop read without its usual pause.
func (l *live) hurry() {
	select {
	case l.wake <- struct{}{}:
	default: // it does already
	}
}

// current waits a while for a tick that is not old.
func (l *live) current(ctx context.Context) *tick {
	defer l.open()()
	if t := l.newest.Load(); l.Now().Sub(t.At) > 2*latest {
		loop.Pause(ctx, 2*time.Second, t.over)
	}
	return l.newest.Load()
}

// run reads until ctx ends.
func (l *live) run(ctx context.Context, db, whole *postgres.DB) {
	rung := l.bell.Bell(doorbell.Outbox | doorbell.Inbox)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { l.bell.Run(ctx, db.Pool()) })
	all.Go(func() { l.auditAlways(ctx, whole) })
	seen := map[string]time.Time{}
	for ctx.Err() == nil {
		if l.readers.Load() == 0 {
			loop.Pause(ctx, time.Hour, l.wake)
			continue
		}
		began := l.Now()
		l.budget.Reserve() // the audit waits for it, and pages do not
		l.tick(ctx, db, seen)
		loop.Pause(ctx, soonest-l.Now().Sub(began), l.wake)
		loop.Pause(ctx, latest-soonest, rung)
	}
}

// tick gives every page what one statement reads. seen is when each program was last seen.
func (l *live) tick(ctx context.Context, db *postgres.DB, seen map[string]time.Time) {
	last := l.newest.Load()
	t := &tick{}
	var text []byte
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := db.QueryRow(ctx, selectFlow, receivers, last.Followed).Scan(&text)
	if err == nil {
		err = json.Unmarshal(text, &t.facts)
	}
	if err == nil {
		t.Programs = programsOf(t.facts, seen)
		t.Alive, t.Wrong = judge(t.facts, t.Programs)
	} else {
		if last.Err == "" && ctx.Err() == nil {
			l.Log.WarnContext(ctx, "the database is not read", "error", err)
		}
		*t = *last
		t.Err = "The database does not answer. The page shows what it said last."
	}
	t.audited, t.Broken, t.over = l.audited.Load(), 0, make(chan struct{})
	for _, m := range slices.Concat(t.Quick, t.Audit) {
		t.Broken += int(m.Violated)
	}
	t.flow, t.strip = l.render("live", t), l.render("strip", t)
	l.newest.Store(t)
	close(last.over)
}

// auditAlways runs whole audits while pages are open.
func (l *live) auditAlways(ctx context.Context, db *postgres.DB) {
	for ctx.Err() == nil {
		began, pause := l.Now(), latest
		if l.readers.Load() > 0 {
			report, err := audit.Run(ctx, paced{l, db})
			next := &audited{report.Checks, l.Now(), ""}
			if pause = auditEvery - l.Now().Sub(began); err != nil {
				last := l.audited.Load()
				pause, next = auditRetry, &audited{last.Audit, last.AuditAt, fmt.Sprintf("The audit could not be finished: %v", err)}
			}
			l.audited.Store(next)
		}
		loop.Pause(ctx, pause, nil)
	}
}

// paced is the audit's database. It sends one statement at a time, within the budget, and rests
// in proportion to what the last one took. Its sessions read whole tables anyway.
type paced struct {
	*live

	db *postgres.DB
}

func (p paced) Read(ctx context.Context, b *pgx.Batch) error {
	b.QueuedQueries = slices.DeleteFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return q.SQL == postgres.ReadWholeTables })
	if err := p.budget.Wait(ctx); err != nil {
		return err
	}
	began := p.Now()
	err := p.db.Read(ctx, b)
	loop.Pause(ctx, (auditShare-1)*p.Now().Sub(began), nil)
	return err
}
