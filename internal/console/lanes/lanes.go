// Package lanes draws the timeline of a charge as an SVG: lanes for the client, the api, the
// database, each worker, the provider and the merchant, with time downwards.
//
// The drawing has no script, no font, no link and no style attribute. It may stand in a page
// that allows the hash of Style, more than once, since it has no ids. It is an image to a screen
// reader: put the entries beside it as text.
package lanes

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/audit"
)

// Write draws a timeline. What was stored by others is shortened and escaped. The same timeline
// gives the same bytes. Of more than 400 rows the first and the last 200 are drawn.
func Write(w io.Writer, t audit.Timeline) error {
	d := newDrawing(t)
	out := bufio.NewWriter(w)
	d.write(out)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the lanes: %w", err)
	}
	return nil
}

const maxRows = 400

// lane is a column of the drawing.
type lane struct {
	name, about string
	holder      string // of a worker; empty for one that is not known
	width       int
	x           int // its middle
}

// row is one moment: a box in a swim lane, and an arrow from the swim lane where it comes from.
type row struct {
	at         time.Time
	from, lane *lane // the same, or nil, where there is no arrow
	class      string
	text, note string
	dropped    bool // by the constraint that note names
	title      string
	y          int // zero where the row is left out
	height     int
}

// claim is a bar in a worker's lane: a message under a lease.
type claim struct {
	message, receiver, holder string
	fence                     int64
	began, ended              time.Time
	first, last               *row
	lost                      bool // its lease ended, so the swim lane is dark from last on
}

type drawing struct {
	timeline                                  audit.Timeline
	client, api, database, provider, merchant *lane
	lanes                                     []*lane // from left to right
	workers                                   []*lane
	rows                                      []*row
	claims                                    []*claim
	messages                                  map[string]string // numbers of messages by their ids
	dropped, takeovers                        int
}

func newDrawing(t audit.Timeline) *drawing {
	d := &drawing{
		timeline: t, messages: map[string]string{},
		client: &lane{name: "client", width: 80}, api: &lane{name: "api", width: 170}, database: &lane{name: "database", width: 210},
		provider: &lane{name: "provider", width: 176}, merchant: &lane{name: "merchant", width: 176},
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
				at: c.began, from: d.database, lane: d.worker(c.holder), class: "claim",
				text: "takes message " + c.message, note: fmt.Sprintf("claim %d of %s", c.fence, c.receiver),
			})
		}
		if c.last == nil {
			c.last = d.row(row{at: t.AsOf, lane: d.worker(c.holder), class: "claim", text: "still running", note: "message " + c.message})
		}
	}
	slices.SortStableFunc(d.rows, func(a, b *row) int { return a.at.Compare(b.at) })
	d.lanes = slices.Concat([]*lane{d.client, d.api, d.database}, d.workers, []*lane{d.provider, d.merchant})
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
	fence := number(e.Detail, "fence")
	c := &claim{message: message, receiver: e.Who, holder: text(e.Detail, "holder"), fence: cmp.Or(fence, number(e.Detail, "claims")), began: began, ended: e.At}
	if e.What == "taken over" {
		c.lost = true
		if at := moment(e.Detail, "lease_ended_at"); at.Before(c.ended) {
			c.ended = at
		}
		if c.ended.Before(began) {
			c.ended = began
		}
	}
	d.claims = append(d.claims, c)
}

// claimOf is the claim of a message with a fence; nil if it is not known.
func (d *drawing) claimOf(message string, fence int64) *claim {
	i := slices.IndexFunc(d.claims, func(c *claim) bool { return c.message == message && c.fence == fence })
	if i < 0 {
		return nil
	}
	return d.claims[i]
}

// worker is the swim lane of a holder. Workers have letters, in the order in which they are seen.
func (d *drawing) worker(holder string) *lane {
	for _, l := range d.workers {
		if l.holder == holder {
			return l
		}
	}
	name := fmt.Sprintf("worker %d", len(d.workers)+1)
	if n := len(d.workers); n < 26 {
		name = "worker " + string(rune('A'+n))
	}
	l := &lane{name: name, about: "not known", holder: holder, width: 176}
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
	if r.from == r.lane {
		r.from = nil
	}
	d.rows = append(d.rows, &r)
	return &r
}

// span is the text of a duration, in two units at most.
func span(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
}

// since is a duration exact to a millisecond, as a clock writes it from a minute on.
func since(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("+%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Minute:
		return fmt.Sprintf("+%.3f s", d.Seconds())
	}
	return fmt.Sprintf("+%d:%02d:%06.3f", int(d.Hours()), int(d.Minutes())%60, (d % time.Minute).Seconds())
}

// summary says in a sentence what the drawing shows.
func (d *drawing) summary() string {
	events := 0
	for _, e := range d.timeline.Entries {
		if e.Version > 0 {
			events++
		}
	}
	parts := []string{counted(events, "event"), counted(len(d.claims), "claim") + " by " + counted(len(d.workers), "worker")}
	if d.takeovers > 0 {
		parts = append(parts, counted(d.takeovers, "takeover")+" after a lease ended")
	}
	if d.dropped > 0 {
		parts = append(parts, counted(d.dropped, "duplicate")+" dropped")
	}
	if n := len(d.rows); n > 0 {
		parts = append(parts, span(d.rows[n-1].at.Sub(d.rows[0].at))+" from "+d.rows[0].at.UTC().Format("2006-01-02 15:04:05.000 UTC")+" on")
	}
	return strings.Join(parts, " · ")
}

func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func (d *drawing) headline() string {
	lines := []string{"Timeline"}
	for _, c := range d.timeline.Charges {
		lines = append(lines, chargeLine(c))
	}
	return strings.Join(lines, " · ")
}

func chargeLine(c audit.TimelineCharge) string {
	return fmt.Sprintf("%s  %s  %s  order %s", c.ID, cmp.Or(string(c.Status), "not readable"), Money(c.Amount, c.Currency), c.OrderID)
}
