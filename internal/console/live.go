package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/outbox"
)

// What live pages cost the database, however many are open: the loop and the audit share one
// budget, and the doorbell has a statement every five seconds. Without pages there is no cost
// but the doorbell's.
const (
	perSecond = 2.7 // statements
	soonest   = 700 * time.Millisecond
	latest    = 900 * time.Millisecond // so that a kill is seen within a second

	auditEvery = 30 * time.Second // from begin to begin, where the audit ends within it
	auditShare = 10               // the audit uses one part in so many of the time
	auditRetry = 10 * time.Second
	redrawCost = 12 // statements of the page of a charge, which a live page reads again within the budget
)

// lease is a message that a worker has claimed.
type lease struct {
	message

	Left time.Duration // of the lease; below zero: another worker may take the message over
	Dark bool          // the holder is gone
}

// takeover is a message whose holder died, and what became of it.
type takeover struct {
	ID             int64
	Charge, Holder string
	Next           string // the holder that took it over; "" while there is none
	After          time.Duration

	died  time.Time
	ended bool // its holder had finished it
}

// tick is what live pages show at one moment.
type tick struct {
	facts

	Boxes     map[string]box
	Programs  []process
	Leases    []lease
	Takeovers []takeover
	Audit     []mark
	AuditAt   time.Time // when the last audit ended; zero: none yet
	AuditErr  string
	Broken    int    // violations of both
	Err       string // the database does not answer; the rest is what it said last

	flow, strip []byte // the Flow page and the line that every page has, rendered once for all
}

// live reads the database for all pages.
type live struct {
	log    *slog.Logger
	now    func() time.Time
	render func(name string, data any) []byte
	budget *rate.Limiter
	wake   chan struct{} // an action was taken, or the first page opened

	mu     sync.Mutex
	pages  map[chan *tick]struct{}
	last   *tick
	report struct {
		marks []mark
		at    time.Time
		err   string
	}

	// Of the loop alone.
	seen    map[string]time.Time // programs
	holders map[int64]message    // running messages of the last tick
	taken   []takeover           // newest first
}

func newLive(log *slog.Logger, now func() time.Time, render func(string, any) []byte) *live {
	return &live{
		log: log, now: now, render: render, budget: rate.NewLimiter(perSecond, 1), wake: make(chan struct{}, 1),
		pages: map[chan *tick]struct{}{}, seen: map[string]time.Time{}, holders: map[int64]message{},
	}
}

// open returns a channel that has the newest tick, until leave is called. A page that is slow
// misses ticks.
func (l *live) open() (ticks chan *tick, leave func()) {
	ticks = make(chan *tick, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pages[ticks] = struct{}{}
	if l.last != nil && l.now().Sub(l.last.At) < 2*latest {
		ticks <- l.last
	}
	l.hurry()
	return ticks, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.pages, ticks)
	}
}

// hurry lets the loop read without its usual pause.
func (l *live) hurry() {
	select {
	case l.wake <- struct{}{}:
	default: // it does already
	}
}

// current waits for a tick that is not old. Without one it returns the last, or nil.
func (l *live) current(ctx context.Context) *tick {
	ticks, leave := l.open()
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	select {
	case t := <-ticks:
		return t
	case <-ctx.Done():
		return l.newest()
	}
}

// newest is the last tick, however old; nil if there was none.
func (l *live) newest() *tick {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *live) watched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pages) > 0
}

// run reads until ctx ends.
func (l *live) run(ctx context.Context, db Database, bell *outbox.Doorbell) {
	rung := bell.Bell(doorbell.Outbox | doorbell.Inbox)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { bell.Run(ctx, db.live.Pool()) })
	all.Go(func() { l.auditAlways(ctx, db.audit) })
	for ctx.Err() == nil {
		if !l.watched() {
			select {
			case <-ctx.Done():
			case <-l.wake:
			}
			continue
		}
		if l.budget.Wait(ctx) == nil {
			l.publish(l.read(ctx, db.live))
		}
		loop.Pause(ctx, soonest, l.wake)
		loop.Pause(ctx, latest-soonest, rung)
	}
}

// read makes a tick of one statement.
func (l *live) read(ctx context.Context, db *postgres.DB) *tick {
	var followed []int64
	for _, t := range l.taken {
		if t.Next == "" && !t.ended {
			followed = append(followed, t.ID)
		}
	}
	var text []byte
	var f facts
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := db.QueryRow(ctx, selectFlow, receivers, followed).Scan(&text)
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		t := &tick{facts: facts{At: l.now()}}
		if l.last != nil { // which only this loop writes
			*t = *l.last
		}
		if t.Err == "" && ctx.Err() == nil {
			l.log.WarnContext(ctx, "the database is not read", "error", err)
		}
		t.Err = "The database does not answer. The page shows what it said last."
		return t
	}
	t := &tick{facts: f, Programs: programsOf(f, l.seen)}
	t.Boxes = boxes(f, t.Programs)
	l.follow(t)
	return t
}

// follow notes the messages of workers that are gone, and the workers that take them over.
func (l *live) follow(t *tick) {
	gone := func(holder string) bool { _, has := t.Sessions["payonce-worker "+holder]; return !has }
	now := map[int64]message{}
	for _, m := range t.Open {
		if m.Status != "running" {
			continue
		}
		now[m.ID] = m
		one := lease{message: m, Dark: gone(m.Holder)}
		if m.DueAt != nil {
			one.Left = m.DueAt.Sub(t.At)
		}
		t.Leases = append(t.Leases, one)
		if before, had := l.holders[m.ID]; had && before.Holder != m.Holder && gone(before.Holder) {
			l.bury(t, before, m.Holder)
		}
		l.holders[m.ID] = m
	}
	for _, id := range slices.Sorted(maps.Keys(l.holders)) {
		if m := l.holders[id]; gone(m.Holder) {
			l.bury(t, m, "")
		}
		if _, open := now[id]; !open {
			delete(l.holders, id)
		}
	}
	l.taken = l.taken[:min(len(l.taken), 12)]
	for i := range l.taken {
		o := &l.taken[i]
		for _, m := range t.Followed {
			if m.ID != o.ID || o.Next != "" || o.ended {
				continue
			}
			o.After = t.At.Sub(o.died)
			if m.Holder != o.Holder {
				o.Next = cmp.Or(m.Holder, "a worker that has let go of it")
			} else {
				o.ended = m.Status != "running"
			}
		}
	}
	l.taken = slices.DeleteFunc(l.taken, func(o takeover) bool { return o.ended && o.Next == "" })
	t.Takeovers = slices.Clone(l.taken)
}

// bury notes once that the holder of a message is gone. next has the message already, "" if none has.
func (l *live) bury(t *tick, m message, next string) {
	if slices.ContainsFunc(l.taken, func(o takeover) bool { return o.ID == m.ID && o.Holder == m.Holder }) {
		return
	}
	died, seen := l.seen["payonce-worker "+m.Holder]
	if !seen {
		died = t.At
	}
	l.taken = slices.Insert(l.taken, 0, takeover{ID: m.ID, Charge: m.OrderingKey, Holder: m.Holder, Next: next, After: t.At.Sub(died), died: died})
}

// publish gives every page a tick.
func (l *live) publish(t *tick) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Audit, t.AuditAt, t.AuditErr = l.report.marks, l.report.at, l.report.err
	t.Broken = 0
	for _, m := range slices.Concat(t.Quick, t.Audit) {
		t.Broken += int(m.Violated)
	}
	t.flow, t.strip = l.render("live", t), l.render("strip", t)
	l.last = t
	for ticks := range l.pages {
		select {
		case <-ticks: // the page has not taken the one before
		default:
		}
		ticks <- t
	}
}

// auditAlways runs whole audits while pages are open.
func (l *live) auditAlways(ctx context.Context, db *postgres.DB) {
	for ctx.Err() == nil {
		began := l.now()
		pause := auditRetry
		if l.watched() {
			report, err := audit.Run(ctx, paced{l, db})
			l.mu.Lock()
			if l.report.err = ""; err != nil {
				l.report.err = fmt.Sprintf("The audit could not be finished: %v", err)
			} else {
				l.report.marks, l.report.at = nil, l.now()
				for _, c := range report.Checks {
					l.report.marks = append(l.report.marks, mark{c.Name, c.Checked, c.Violated, c.Examples})
				}
				pause = auditEvery - l.now().Sub(began)
			}
			l.mu.Unlock()
		} else {
			pause = latest
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
	began := p.now()
	err := p.db.Read(ctx, b)
	loop.Pause(ctx, (auditShare-1)*p.now().Sub(began), nil)
	return err
}
