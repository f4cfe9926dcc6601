package console

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/audit"
)

const mostRows = 400

// drawing is the timeline of a charge as a table of swim lanes: the client, the api, the database, each
// worker, the provider and the merchant, with time downwards.
type drawing struct {
	Lanes []*lane // from left to right, with the workers before the provider
	Rows  []*row  // the oldest first, at most mostRows
	Left  int     // rows that are left out before these

	claims   []*claim          // the first to begin first
	messages map[string]string // numbers of messages by their ids
}

// lane is a column of the drawing. About is the holder whose lane it is.
type lane struct{ Name, About string }

// row is one moment: a box in a swim lane, and an arrow from the one where it comes from.
type row struct {
	at         time.Time
	from, lane *lane // from is nil where there is no arrow

	Class, Text, Note string
	Since             string   // the first row; "" where the row before is of the same time
	Column            int      // the number of its swim lane
	Cells             []string // their classes, lane by lane
}

// claim is a lease of a message by a holder, which marks its swim lane.
type claim struct {
	message, receiver string
	fence             int64
	lane              *lane
	began, ended      time.Time
	lost              bool // it ended without a sign of its holder
}

// sentence is a row of an entry: the swim lanes that it comes from and stands in, its class and its texts, in which
// $x is a member of the entry's detail.
type sentence struct{ from, lane, class, text, note string }

// recorded is the row of an event.
var recorded = sentence{"actor", "database", "event", "$version $what", "$about"}

// called are the rows of an event that is about a call of the provider.
func called(call string) []sentence {
	return []sentence{{"actor", "provider", "call", call, "$code"}, recorded}
}

// sentences are the rows of an entry by its kind, and of some by what happened too.
var sentences = map[string][]sentence{
	"key": { // of the request that was answered first: replays are not stored
		{"client", "api", "key", "$what", "key $key"},
		{"api", "database", "key", "key with its answer $status_code", "once: idempotency_keys_once"},
	},
	"event":                        {recorded},
	"event payment.started":        called("create the payment"),
	"event payment.attempt_failed": called("$stage the payment"),
	"event payment.captured":       called("confirm the payment"),
	"event payment.declined":       called("no payment"),
	"event refund.attempt_failed":  called("refund"),
	"event refund.succeeded":       called("refund"),
	"event refund.failed":          called("refund"),
	"webhook":                      {{"actor", "merchant", "call", "$type", "webhook-id $webhook_id"}, recorded},
	"provider":                     {{"", "provider", "held", "$status now", "$id"}},
	"inbox":                        {{"", "database", "message", "message $message $what", "for $who"}},
	"inbox received":               {{"", "database", "message", "message $message stored", "$type for $who"}},
	"inbox duplicate":              {{"", "database", "dropped", "message $message again, in all $duplicates", "$dropped_by"}},
	"inbox taken over":             {{"", "holder", "gone", "lease ended, no sign", "inbox_done_by_holder"}},
	"inbox released":               {{"", "holder", "message", "released: it stops", "for $who"}},
	"inbox failed":                 {{"", "holder", "bad", "attempt failed", "$error"}},
	"inbox waits":                  {{"", "holder", "message", "waits, tries again", "$error"}},
	"inbox done":                   {{"holder", "database", "message", "message $message done", "claim $claims of $who"}},
	"inbox running":                {{"", "holder", "message", "message $message in progress", "for $who"}},
	"inbox dead letter":            {{"", "database", "bad", "message $message dead letter", "$last_error"}},
}

// draw draws a timeline.
func draw(t audit.Timeline) *drawing {
	lanes := []*lane{{Name: "client"}, {Name: "api"}, {Name: "database"}, {Name: "provider"}, {Name: "merchant"}}
	d := &drawing{Lanes: lanes, messages: map[string]string{}}
	d.readClaims(t.Entries)
	for _, e := range t.Entries {
		d.add(e)
	}
	for _, c := range d.claims {
		r := &row{
			at: c.began, from: d.laneOf("database", audit.TimelineEntry{}), lane: c.lane, Class: "claim",
			Text: "takes message " + c.message, Note: fmt.Sprintf("claim %d of %s", c.fence, c.receiver),
		}
		before := func(b *claim) bool { return b.lost && b.message == c.message && b.fence == c.fence-1 }
		if i := slices.IndexFunc(d.claims, before); i >= 0 {
			r.from, r.Class, r.Text = d.claims[i].lane, "takeover", "takes over message "+c.message
		}
		d.Rows = append(d.Rows, r)
	}
	slices.SortStableFunc(d.Rows, func(a, b *row) int { return a.at.Compare(b.at) })
	d.place()
	return d
}

// readClaims notes each claim that an entry ends or shows.
func (d *drawing) readClaims(entries []audit.TimelineEntry) {
	for _, e := range entries {
		message := text(e.Detail, "message")
		if id := text(e.Detail, "message_id"); id != "" && e.What == "received" {
			d.messages[id] = message
		}
		if began, err := time.Parse(time.RFC3339Nano, text(e.Detail, "claimed_at")); err == nil {
			fence, _ := strconv.ParseInt(cmp.Or(text(e.Detail, "fence"), text(e.Detail, "claims")), 10, 64) // 0 where it is none
			d.claims = append(d.claims, &claim{message, e.Who, fence, d.worker(text(e.Detail, "holder")), began, timeOf(e), e.What == "taken over"})
		}
	}
	slices.SortStableFunc(d.claims, func(a, b *claim) int { return a.began.Compare(b.began) })
}

// timeOf is when an entry happened: the end of a lease, not when that was seen.
func timeOf(e audit.TimelineEntry) time.Time {
	if ended, err := time.Parse(time.RFC3339Nano, text(e.Detail, "lease_ended_at")); err == nil && ended.Before(e.At) {
		return ended
	}
	return e.At
}

// worker is the swim lane of a holder. Workers have letters, in the order in which they are seen.
func (d *drawing) worker(holder string) *lane {
	holder = cmp.Or(holder, "not known")
	if i := slices.IndexFunc(d.Lanes, func(l *lane) bool { return l.About == holder }); i >= 0 {
		return d.Lanes[i]
	}
	n := len(d.Lanes) - 5
	l := &lane{"worker " + strings.Repeat(string(rune('A'+n%26)), 1+n/26), holder}
	d.Lanes = slices.Insert(d.Lanes, len(d.Lanes)-2, l)
	return l
}

// laneOf is the swim lane of a name, of the holder of an entry's message, or of the actor that recorded an event:
// the holder of the message that caused it. It is nil for no name.
func (d *drawing) laneOf(name string, e audit.TimelineEntry) *lane {
	switch {
	case name == "holder":
		return d.worker(text(e.Detail, "holder"))
	case name == "actor" && e.Who != "api":
		for _, c := range slices.Backward(d.claims) {
			if c.message == d.messages[text(e.Detail, "cause")] && !c.began.After(e.At) {
				return c.lane
			}
		}
		return d.worker("")
	case name == "actor":
		name = "api"
	}
	if i := slices.IndexFunc(d.Lanes, func(l *lane) bool { return l.Name == name }); i >= 0 {
		return d.Lanes[i]
	}
	return nil
}

// add draws an entry.
func (d *drawing) add(e audit.TimelineEntry) {
	words := d.words(e)
	said, special := sentences[e.Kind+" "+words["what"]]
	if !special || e.Kind == "event" && words["about"] == "" { // it cannot be read
		said = sentences[e.Kind]
	}
	expand := func(text string) string { return os.Expand(text, func(name string) string { return words[name] }) }
	for _, s := range said {
		d.Rows = append(d.Rows, &row{
			at: timeOf(e), from: d.laneOf(s.from, e), lane: d.laneOf(s.lane, e), Class: cmp.Or(words["bad"], s.class),
			Text: expand(s.text), Note: expand(s.note),
		})
	}
}

var (
	failure     = regexp.MustCompile(`(failed|declined|rejected)$`) // the types of events that are drawn as such
	unprintable = regexp.MustCompile(`[^\PC\s]`)                    // what may hide or reorder a text
)

// words are what the sentences of an entry name.
func (d *drawing) words(e audit.TimelineEntry) map[string]string {
	words := map[string]string{}
	for name := range e.Detail {
		words[name] = text(e.Detail, name)
	}
	what, _, _ := strings.Cut(e.What, ".v")
	words["what"], words["who"] = strings.Replace(what, "/v1/charges/:id", "…", 1), e.Who
	words["version"] = strconv.Itoa(e.Version)
	words["about"] = cmp.Or(words["provider_status"], words["code"], words["refund_id"], words["dispute_id"],
		words["payment_intent"], words["items"], words["order_id"])
	if _, reason, waits := strings.Cut(words["error"], "waiting: "); waits && e.What == "failed" {
		words["what"], words["error"] = "waits", reason
	} else if e.Kind == "key" && words["status_code"] >= "400" || failure.MatchString(what) {
		words["bad"] = "bad"
	}
	return words
}

// text is a member of a detail, empty where there is none. A list has no brackets.
func text(d audit.Detail, name string) string {
	return strings.Trim(fmt.Sprint(cmp.Or(d[name], any(""))), "[]")
}

// place gives each row its time and its cells, and U+FFFD for what cannot be printed.
func (d *drawing) place() {
	d.Left = max(0, len(d.Rows)-mostRows)
	d.Rows = d.Rows[d.Left:]
	for i, r := range d.Rows {
		r.Text, r.Note = unprintable.ReplaceAllString(r.Text, "\uFFFD"), unprintable.ReplaceAllString(r.Note, "\uFFFD")
		if i == 0 || r.at.After(d.Rows[i-1].at) {
			r.Since = "+" + r.at.Sub(d.Rows[0].at).Round(100*time.Microsecond).String()
		}
		r.Column = slices.Index(d.Lanes, r.lane)
		from := slices.Index(d.Lanes, cmp.Or(r.from, r.lane)) // no arrow leads to where it begins
		for at, l := range d.Lanes {
			r.Cells = append(r.Cells, d.state(l, r)+arrow(from, at, r.Column))
		}
	}
}

// state is what is known of the holder of a swim lane at a row: it holds a lease, or has let one end and not claimed since.
func (d *drawing) state(l *lane, r *row) (class string) {
	for _, c := range d.claims {
		switch {
		case c.lane != l || c.began.After(r.at):
		case !c.ended.Before(r.at):
			class = "lease"
		case c.lost:
			class = "night"
		case class == "night":
			class = ""
		}
	}
	return class
}

// arrow is the part of an arrow from one column to another that is in a cell.
func arrow(from, at, to int) string {
	if from == to || at < min(from, to) || at > max(from, to) {
		return ""
	}
	direction := " right"
	if from > to {
		direction = " left"
	}
	return cmp.Or(map[int]string{from: " from", to: " to"}[at], " through") + direction
}
