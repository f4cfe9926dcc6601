// Package lanes draws the timeline of a charge as an SVG: lanes for the client, the api, the
// database, each worker, the provider and the merchant, with time downwards.
//
// The drawing has no script, no font, no link and no style attribute. It may stand in a page
// that allows the hash of Style, more than once, since it has no ids. It is an image to a screen
// reader: put the entries beside it as text.
package lanes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bojanz/currency"

	"github.com/payonce/payonce/internal/audit"
)

// lane is a column of the drawing.
type lane struct {
	Name, About    string // of a worker: its name as a holder
	Width, Left, X int    // X is its middle
}

// row is one moment: a box in a swim lane, and an arrow from the one where it comes from.
type row struct {
	at          time.Time
	From, Lane  *lane // From is nil where there is no arrow
	Class       string
	Text, Note  string
	Dropped     bool // by the constraint that Note names
	Title       string
	Since       string // the first row; "" where the row before is of the same time
	Left, Width int
	Y, Height   int // Y is zero where the row is left out
	Middle      int
	Reach, Tip  int // of the arrow
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

// gap is a tear in the drawing: rows, or a long time, are left out.
type gap struct {
	Y    int
	Text string
}

type drawing struct {
	client, api, database, provider, merchant *lane
	workers                                   []*lane
	claims                                    []*claim
	messages                                  map[string]string // numbers of messages by their ids
	events, dropped, takeovers                int

	Heads              []string
	Lanes              []*lane // from left to right
	Rows               []*row
	Gaps               []gap
	Bars               []bar
	Width, Top, Bottom int
}

func newDrawing(t audit.Timeline) *drawing {
	d := &drawing{
		messages: map[string]string{},
		client:   &lane{Name: "client", Width: 80}, api: &lane{Name: "api", Width: 170}, database: &lane{Name: "database", Width: 210},
		provider: &lane{Name: "provider", Width: 176}, merchant: &lane{Name: "merchant", Width: 176},
	}
	for _, c := range t.Charges[:min(len(t.Charges), 3)] {
		d.Heads = append(d.Heads, fmt.Sprintf("%s  %s  %s  order %s", c.ID, cmp.Or(string(c.Status), "not readable"), Money(c.Amount, c.Currency), c.OrderID))
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
		if c.first == nil {
			c.first = d.row(row{
				at: c.began, From: d.database, Lane: d.worker(c.holder), Class: "claim",
				Text: "takes message " + c.message, Note: fmt.Sprintf("claim %d of %s", c.fence, c.receiver),
			})
		}
		if c.last == nil {
			c.last = d.row(row{at: t.AsOf, Lane: d.worker(c.holder), Class: "claim", Text: "still running", Note: "message " + c.message})
		}
	}
	slices.SortStableFunc(d.Rows, func(a, b *row) int { return a.at.Compare(b.at) })
	d.Lanes = slices.Concat([]*lane{d.client, d.api, d.database}, d.workers, []*lane{d.provider, d.merchant})
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

// worker is the swim lane of a holder. Workers have letters, in the order in which they are seen.
func (d *drawing) worker(holder string) *lane {
	holder = cmp.Or(holder, "not known")
	if i := slices.IndexFunc(d.workers, func(l *lane) bool { return l.About == holder }); i >= 0 {
		return d.workers[i]
	}
	n := len(d.workers)
	l := &lane{Name: "worker " + strings.Repeat(string(rune('A'+n%26)), 1+n/26), About: holder, Width: 176}
	d.workers = append(d.workers, l)
	return l
}

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

// Headline says what is drawn.
func (d *drawing) Headline() string {
	return strings.Join(append([]string{"Timeline"}, d.Heads...), " · ")
}

// Summary says in a sentence what the drawing shows.
func (d *drawing) Summary() string {
	parts := []string{Plural(d.events, "event"), Plural(len(d.claims), "claim") + " by " + Plural(len(d.workers), "worker")}
	if d.takeovers > 0 {
		parts = append(parts, Plural(d.takeovers, "takeover")+" after a lease ended")
	}
	if d.dropped > 0 {
		parts = append(parts, Plural(d.dropped, "duplicate")+" dropped")
	}
	if n := len(d.Rows); n > 0 {
		parts = append(parts, Span(d.Rows[n-1].at.Sub(d.Rows[0].at))+" from "+d.Rows[0].at.UTC().Format("2006-01-02 15:04:05.000 UTC")+" on")
	}
	return strings.Join(parts, " · ")
}

// Span is the text of a duration, in three digits or to a second.
func Span(d time.Duration) string {
	unit := time.Nanosecond
	for unit < time.Second && d.Abs()/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

// Money shows an amount, which is in minor units, in units of its currency.
func Money(amount int64, code string) string {
	exact, err := currency.NewAmountFromInt64(amount, code)
	if err != nil {
		return fmt.Sprintf("%d %s", amount, code)
	}
	formatter := currency.NewFormatter(currency.NewLocale("en"))
	formatter.CurrencyDisplay = currency.DisplayNone
	return formatter.Format(exact) + " " + code
}

// Plural counts in words.
func Plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
