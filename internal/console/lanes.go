package console

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/audit"
)

// lane is a column of the drawing.
type lane struct {
	Name, About    string // of a worker: its name as a holder
	Width, Left, X int    // X is its middle
}

// row is one moment: a box in a swim lane, and an arrow from the one where it comes from.
type row struct {
	at                  time.Time
	From, Lane          *lane // From is nil where there is no arrow
	Class, Text, Note   string
	Dropped             bool // by the constraint that Note names
	Title               string
	Since               string // the first row; "" where the row before is of the same time
	Torn                string // what is left out before it
	Left, Width, Middle int
	Y, Height           int // Y is zero where the row is left out
	Reach, Tip          int // of the arrow
}

// claim is a bar in a worker's lane: a message under a lease.
type claim struct {
	message, receiver, holder string
	fence                     int64
	began, ended              time.Time
	first, last               *row
	lost                      bool // its lease ended, so its swim lane is dark from last on
}

// bar is a rectangle behind the rows.
type bar struct {
	Class               string
	X, Y, Width, Height int
	Title               string
}

type drawing struct {
	client, api, database, provider, merchant *lane
	claims                                    []*claim
	messages                                  map[string]string // numbers of messages by their ids
	events, dropped, takeovers                int

	Heads              []string
	Lanes              []*lane // from left to right, with the workers before the provider
	Rows               []*row
	Bars               []bar
	Width, Top, Bottom int
}

func newDrawing(t audit.Timeline) *drawing {
	d := &drawing{
		messages: map[string]string{},
		client:   &lane{Name: "client", Width: 80}, api: &lane{Name: "api", Width: 170}, database: &lane{Name: "database", Width: 210},
		provider: &lane{Name: "provider", Width: 176}, merchant: &lane{Name: "merchant", Width: 176},
	}
	d.Lanes = []*lane{d.client, d.api, d.database, d.provider, d.merchant}
	for _, c := range t.Charges[:min(len(t.Charges), 3)] {
		d.Heads = append(d.Heads, fmt.Sprintf("%s  %s  %s  order %s", c.ID, cmp.Or(string(c.Status), "not readable"), money(c.Amount, c.Currency), c.OrderID))
	}
	for _, e := range t.Entries {
		if e.Kind == "inbox" {
			d.readClaim(e)
		}
	}
	slices.SortStableFunc(d.claims, func(a, b *claim) int { return a.began.Compare(b.began) })
	for _, c := range d.claims {
		d.worker(c.holder)
	}
	for _, e := range t.Entries {
		d.add(e)
	}
	for _, c := range d.claims {
		r := row{at: c.began, From: d.database, Lane: d.worker(c.holder), Class: "claim"}
		if c.first == nil {
			c.first = d.row(r.as("takes message "+c.message, fmt.Sprintf("claim %d of %s", c.fence, c.receiver)))
		}
		if r.at, r.From = t.AsOf, nil; c.last == nil {
			c.last = d.row(r.as("still running", "message "+c.message))
		}
	}
	slices.SortStableFunc(d.Rows, func(a, b *row) int { return a.at.Compare(b.at) })
	return d
}

// readClaim notes a claim that an entry ends or shows.
func (d *drawing) readClaim(e audit.TimelineEntry) {
	message := text(e.Detail, "message")
	if id := text(e.Detail, "message_id"); id != "" && e.What == "received" {
		d.messages[id] = message
	}
	began := moment(e.Detail, "claimed_at")
	if began.IsZero() {
		return
	}
	c := &claim{
		message: message, receiver: e.Who, holder: text(e.Detail, "holder"), began: began, ended: e.At,
		fence: cmp.Or(number(e.Detail, "fence"), number(e.Detail, "claims")), lost: e.What == "taken over",
	}
	if at := moment(e.Detail, "lease_ended_at"); c.lost && at.Before(c.ended) {
		c.ended = slices.MaxFunc([]time.Time{at, began}, time.Time.Compare)
	}
	d.claims = append(d.claims, c)
}

// claimOf is the claim of a message with a fence, or one that is not drawn where none is known.
func (d *drawing) claimOf(message string, fence int64) *claim {
	for _, c := range d.claims {
		if c.message == message && c.fence == fence {
			return c
		}
	}
	return &claim{}
}

// endOfHolder is the random text that inbox.New puts behind the name of a process.
var endOfHolder = regexp.MustCompile(`/[A-Z2-7]{8}$`)

// worker is the swim lane of a holder. Workers have letters, in the order in which they are seen.
// The receivers of a process are holders of their own: they differ in their ends.
func (d *drawing) worker(holder string) *lane {
	holder = cmp.Or(endOfHolder.ReplaceAllString(holder, ""), "not known")
	if i := slices.IndexFunc(d.Lanes, func(l *lane) bool { return l.About == holder }); i >= 0 {
		return d.Lanes[i]
	}
	n := d.workers()
	l := &lane{Name: "worker " + strings.Repeat(string(rune('A'+n%26)), 1+n/26), About: holder, Width: 176}
	d.Lanes = slices.Insert(d.Lanes, len(d.Lanes)-2, l)
	return l
}

func (d *drawing) workers() int { return len(d.Lanes) - 5 }

// actor is the swim lane of what recorded an event: the holder of the message that caused it.
func (d *drawing) actor(e audit.TimelineEntry) *lane {
	if e.Who == "api" {
		return d.api
	}
	message, holder := d.messages[text(e.Detail, "cause")], ""
	for _, c := range d.claims {
		if c.message == message && !c.began.After(e.At) {
			holder = c.holder
		}
	}
	return d.worker(holder)
}

func (d *drawing) row(r row) *row {
	if r.From == r.Lane {
		r.From = nil
	}
	d.Rows = append(d.Rows, &r)
	return &r
}

// Summary says in a sentence what the drawing shows.
func (d *drawing) Summary() string {
	text := fmt.Sprintf("%s · %s by %s · %s after a lease ended · %s dropped", plural(d.events, "event"), plural(len(d.claims), "claim"),
		plural(d.workers(), "worker"), plural(d.takeovers, "takeover"), plural(d.dropped, "duplicate"))
	if n := len(d.Rows); n > 0 {
		text += fmt.Sprintf(" · %s from %s on", span(d.Rows[n-1].at.Sub(d.Rows[0].at)), d.Rows[0].at.UTC().Format("2006-01-02 15:04:05.000 UTC"))
	}
	return text
}
