package console

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
)

//go:embed flow.sql
var selectFlow string

const (
	tickTime   = 5 * time.Second
	auditEvery = 30 * time.Second // from the end of an audit to the begin of the next
	auditShare = 10               // the audit uses one part in so many of the time
)

// facts are what selectFlow returns, with durations in nanoseconds.
type facts struct {
	At        time.Time
	Sessions  map[string]int
	Leases    []lease        // the first to end first
	Takeovers []takeover     // newest first
	Followed  []int64        // messages of both
	AtStep    map[string]int `json:"at_step"`
	Rates     map[string]float64
	Times     map[string][]time.Duration // p50 and p99 of a charge and of its steps
	Quick     []audit.Check

	Recent, Open, Waiting, Dead, Unread, Keys, Appended int // Recent are the newest events, which the rest is about

	Waited time.Duration // the oldest unread message
}

// lease is a message that a worker has claimed.
type lease struct {
	Charge, Type, Holder string
	EndsIn               time.Duration `json:"ends_in"` // below zero: another worker may take the message over
	Dark                 bool          // the holder is gone
}

// takeover is the end of a lease whose message another worker has claimed.
type takeover struct {
	Charge, Holder, Next string
	At                   time.Time
}

// wrong is what is wrong with a part of the diagram.
type wrong struct{ State, Why string } // State is "warn" or "bad"

// process is a program as its database sessions show it.
type process struct {
	Kind, Name string
	Sessions   int
	Gone       time.Duration // since its last session was seen; 0 while it has one
}

const darkFor = 15 * time.Second // for which a program that is gone is shown

// programsOf are the programs that have sessions and those that lost them lately. seen is when
// each was last seen, and is brought up to date.
func programsOf(f facts, seen map[string]time.Time) (all []process) {
	for name := range f.Sessions {
		seen[name] = f.At
	}
	for name, at := range seen {
		kind, instance, _ := strings.Cut(strings.TrimPrefix(name, "payonce-"), " ")
		if gone := f.At.Sub(at); gone > darkFor {
			delete(seen, name)
		} else if kind == "api" || kind == "worker" {
			all = append(all, process{kind, instance, f.Sessions[name], gone})
		}
	}
	slices.SortFunc(all, func(a, b process) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return all
}

// judge says how many programs of a kind are alive, and what is wrong, by the part of the diagram.
func judge(f facts, programs []process) (alive map[string]int, all map[string]wrong) {
	alive, all = map[string]int{}, map[string]wrong{}
	dark, attempts := map[string]int{}, f.Rates["attempts"]
	counts := map[bool]map[string]int{false: alive, true: dark}
	for _, p := range programs {
		counts[p.Gone > 0][p.Kind]++
	}
	for _, w := range []struct {
		yes            bool
		id, state, why string
	}{
		{alive["api"] == 0, "api", "bad", "no api has a session"},
		{dark["api"] > 0, "api", "warn", "an api has died"},
		{alive["worker"] == 0, "watermill", "bad", "no worker has a session"},
		{dark["worker"] > 0, "watermill", "warn", "a worker has died"},
		{f.Waited > 2*time.Second, "outbox", "warn", "the oldest has waited " + f.Waited.Round(time.Second).String()},
		{f.Dead > 0, "inbox", "bad", plural(f.Dead, "dead letter")},
		{attempts > 0, "provider", "warn", fmt.Sprintf("%.1f failed attempts/s", attempts)},
		{f.Waiting > 0, "provider", "warn", plural(f.Waiting, "message") + " waiting for it"},
	} {
		if w.yes && all[w.id].State != "bad" {
			all[w.id] = wrong{w.state, w.why}
		}
	}
	return alive, all
}

// receivers are those of fulfillment, which the console does not link.
var receivers = slices.Concat([]string{"fulfillment"}, domain.Subscribers(), []string{"resend"})

// tick is what the Flow page, and the line that every page has, show at one moment.
type tick struct {
	facts
	*audited

	Programs []process
	Alive    map[string]int   // programs of a kind
	Wrong    map[string]wrong // by the part of the diagram
	Broken   int              // violations of both
	Err      string           // the database does not answer; the rest is what it said last
}

// audited is the last whole audit.
type audited struct {
	Audit    []audit.Check
	AuditAt  time.Time // when it ended; zero: none has yet
	AuditErr string
}

// tick is read by one statement.
func (c *Console) tick(ctx context.Context) *tick {
	loop.Ring(c.viewed)
	return c.newest.get(c.Now, func(last *tick) *tick {
		if last == nil {
			last = &tick{}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickTime)
		defer cancel()
		t := &tick{}
		if err := c.readFacts(ctx, last.Followed, &t.facts); err != nil {
			if last.Err == "" {
				c.Log.WarnContext(ctx, "the database is not read", "error", err)
			}
			*t = *last
			t.Err = "The database does not answer. The page shows what it said last."
		} else {
			t.Programs = programsOf(t.facts, c.seen)
			t.Alive, t.Wrong = judge(t.facts, t.Programs)
		}
		t.audited, t.Broken = c.audited.Load(), 0
		for _, m := range slices.Concat(t.Quick, t.Audit) {
			t.Broken += m.Violated
		}
		return t
	})
}

func (c *Console) readFacts(ctx context.Context, followed []int64, f *facts) error {
	db := c.db.Load()
	if db == nil {
		return errNoDatabase
	}
	return db.QueryRow(ctx, selectFlow, receivers, followed, domain.Topic).Scan(f)
}

// auditAlways runs whole audits while pages are read.
func (c *Console) auditAlways(ctx context.Context, db *postgres.DB) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.viewed:
		}
		began := c.Now()
		report, err := audit.Run(ctx, db.Pool())
		ended := c.Now()
		next := audited{report.Checks, ended, ""}
		if err != nil {
			next = *c.audited.Load()
			next.AuditErr = fmt.Sprintf("The audit could not be finished: %v", err)
		}
		c.audited.Store(&next)
		loop.Pause(ctx, max(auditEvery, (auditShare-1)*ended.Sub(began)), nil)
	}
}
