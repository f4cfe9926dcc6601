package console

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
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
	redrawCost = 12               // statements of the page of a charge, which a live page reads again within the budget
)

// receivers are those of fulfillment, which the console does not link.
var receivers = slices.Concat([]string{"fulfillment"}, domain.Subscribers(), []string{"resend"})

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

// open lets the loop read until leave is called.
func (c *Console) open() (leave func()) {
	if c.readers.Add(1) == 1 {
		c.bell.Wake(doorbell.Page)
	}
	return func() { c.readers.Add(-1) }
}

// flow is the first state of the Flow page: it waits a while for a tick that is not old.
func (c *Console) flow(r request) (any, error) {
	defer c.open()()
	if t := c.newest.Load(); c.Now().Sub(t.At) > 2*latest {
		loop.Pause(r.Context(), 2*time.Second, t.over)
	}
	return c.newest.Load(), nil
}

// read reads until ctx ends.
func (c *Console) read(ctx context.Context, db, whole *postgres.DB) {
	rung, wake := c.bell.Bell(append(receivers, domain.Topics()...)...), c.bell.Bell(doorbell.Page)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.bell.Run(ctx, db.Pool()) })
	all.Go(func() { c.auditAlways(ctx, whole) })
	seen := map[string]time.Time{}
	for ctx.Err() == nil {
		if c.readers.Load() == 0 {
			loop.Pause(ctx, time.Hour, wake)
			continue
		}
		began := c.Now()
		c.budget.Reserve() // the audit waits for it, and pages do not
		c.tick(ctx, db, seen)
		loop.Pause(ctx, soonest-c.Now().Sub(began), wake)
		loop.Pause(ctx, latest-soonest, rung)
	}
}

// tick gives every page what one statement reads. seen is when each program was last seen.
func (c *Console) tick(ctx context.Context, db *postgres.DB, seen map[string]time.Time) {
	last := c.newest.Load()
	t := &tick{}
	var text []byte
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := db.QueryRow(ctx, selectFlow, receivers, last.Followed, domain.Topics()).Scan(&text)
	if err == nil {
		err = json.Unmarshal(text, &t.facts)
	}
	if err == nil {
		t.Programs = programsOf(t.facts, seen)
		t.Alive, t.Wrong = judge(t.facts, t.Programs)
	} else {
		if last.Err == "" && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "the database is not read", "error", err)
		}
		*t = *last
		t.Err = "The database does not answer. The page shows what it said last."
	}
	t.audited, t.Broken, t.over = c.audited.Load(), 0, make(chan struct{})
	for _, m := range slices.Concat(t.Quick, t.Audit) {
		t.Broken += int(m.Violated)
	}
	t.flow, t.strip = c.render("Flow", "live", t), c.render("Flow", "strip", t)
	c.newest.Store(t)
	close(last.over)
}

// auditAlways runs whole audits while pages are open.
func (c *Console) auditAlways(ctx context.Context, db *postgres.DB) {
	for ctx.Err() == nil {
		began, pause := c.Now(), latest
		if c.readers.Load() > 0 {
			report, err := audit.Run(ctx, paced{c, db})
			next := audited{report.Checks, c.Now(), ""}
			if err != nil {
				next = *c.audited.Load()
				next.AuditErr = fmt.Sprintf("The audit could not be finished: %v", err)
			}
			c.audited.Store(&next)
			pause = auditEvery - c.Now().Sub(began)
		}
		loop.Pause(ctx, pause, nil)
	}
}

// paced is the audit's database. It sends one statement at a time, within the budget, and rests
// in proportion to what the last one took. Its sessions read whole tables anyway.
type paced struct {
	*Console

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
