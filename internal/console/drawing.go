package console

import (
	"cmp"
	"fmt"
	"html/template"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
)

const (
	maxRows = 400

	gutter  = 92 // for the times
	height  = 36 // of a row
	between = 8  // rows
	torn    = 30 // where time is left out
	longGap = time.Second
)

// lane is a column of the drawing.
type lane struct {
	Name, About    string // About is the holder whose lane it is
	Width, Left, X int    // X is its middle
}

// row is one moment: a box in a swim lane, and an arrow from the one where it comes from.
type row struct {
	at                 time.Time
	From, Lane         *lane // From is nil where there is no arrow
	Class, Text, Note  string
	Title              string
	Since              string // the first row; "" where the row before is of the same time
	Torn               string // what is left out before it
	Y                  int    // 0 where the row is left out
	Left, Width        int
	Middle, Reach, Tip int // of the arrow
}

// claim is a lease of a message by a holder: a bar in the holder's lane, between two rows.
type claim struct {
	message, receiver string
	fence             int64
	lane              *lane
	began             time.Time
	lost              bool // it ended without a sign of its holder
	first, last       *row
}

// bar is a rectangle behind the rows.
type bar struct {
	Class               string
	X, Y, Width, Height int
	Title               string
}

type drawing struct {
	claims   []*claim
	messages map[string]string // numbers of messages by their ids

	Lanes              []*lane // from left to right, with the workers before the provider
	Rows               []*row
	Bars               []bar
	Width, Top, Bottom int
}

// sentence is a row of an entry: the swim lanes that it comes from and stands in, its class and its texts, in which
// $x is a member of the entry's detail.
type sentence struct{ from, lane, class, text, note string }

// sentences are the rows of an entry by its kind, and of a message by what became of it too.
var sentences = map[string][]sentence{
	"key": { // of the request that was answered first: replays are not stored
		{"client", "api", "key", "$what", "key $key"},
		{"api", "database", "key", "key with its answer $status_code", "once: idempotency_keys_once"},
	},
	"event":             {{"actor", "database", "event", "$version $what", "$about"}},
	"webhook":           {{"actor", "merchant", "call", "$type", "webhook-id $webhook_id"}, {"actor", "database", "event", "$version $what", ""}},
	"provider":          {{"", "provider", "held", "$status now", "$id"}},
	"inbox":             {{"", "database", "message", "message $message $what", "for $who"}},
	"inbox received":    {{"", "database", "message", "message $message stored", "$type for $who"}},
	"inbox duplicate":   {{"", "database", "dropped", "message $message again, in all $duplicates", "$dropped_by"}},
	"inbox taken over":  {{"", "holder", "dark", "lease ended, no sign", "inbox_done_by_holder"}},
	"inbox released":    {{"", "holder", "message", "released: it stops", "for $who"}},
	"inbox failed":      {{"", "holder", "bad", "attempt failed", "$error"}},
	"inbox waits":       {{"", "holder", "message", "waits, tries again", "$error"}},
	"inbox done":        {{"holder", "database", "message", "message $message done", "claim $claims of $who"}},
	"inbox running":     {{"", "holder", "message", "message $message in progress", "for $who"}},
	"inbox dead letter": {{"", "database", "bad", "message $message dead letter", "$last_error"}},
}

var picture = template.Must(template.New("lanes.svg").Funcs(template.FuncMap{
	"fit": fit, "add": func(a, b int) int { return a + b },
}).ParseFS(assets, "assets/lanes.svg"))

// Draw draws the timeline of a charge as an SVG: lanes for the client, the api, the database, each
// worker, the provider and the merchant, with time downwards. It is an image to a screen reader: the page
// has the entries beside it as text. What was stored by others is shortened and escaped. Of more than
// 400 rows the first and the last 200 are drawn.
func Draw(t audit.Timeline) (template.HTML, error) {
	d := &drawing{messages: map[string]string{}, Lanes: []*lane{
		{Name: "client", Width: 80},
		{Name: "api", Width: 170},
		{Name: "database", Width: 210},
		{Name: "provider", Width: 176},
		{Name: "merchant", Width: 176},
	}}
	d.readClaims(t.Entries)
	for _, e := range t.Entries {
		d.add(e)
	}
	for _, c := range d.claims {
		r := row{
			at: c.began, From: d.laneOf("database", audit.TimelineEntry{}), Lane: c.lane, Class: "claim",
			Text: "takes message " + c.message, Note: fmt.Sprintf("claim %d of %s", c.fence, c.receiver),
		}
		if before := d.claimOf(c.message, c.fence-1); before.lost {
			r.From, r.Class, r.Text = before.lane, "takeover", "takes over message "+c.message
		}
		c.first = d.row(r)
	}
	slices.SortStableFunc(d.Rows, func(a, b *row) int { return a.at.Compare(b.at) })
	d.place()
	d.drawClaims()
	var text strings.Builder
	err := picture.Execute(&text, d)
	return template.HTML(text.String()), err //nolint:gosec // the template has escaped it
}

// readClaims notes each claim that an entry ends or shows.
func (d *drawing) readClaims(entries []audit.TimelineEntry) {
	for _, e := range entries {
		message := text(e.Detail, "message")
		if id := text(e.Detail, "message_id"); id != "" && e.What == "received" {
			d.messages[id] = message
		}
		if began, err := time.Parse(time.RFC3339Nano, text(e.Detail, "claimed_at")); err == nil {
			d.claims = append(d.claims, &claim{
				message: message, receiver: e.Who, fence: fenceOf(e), lane: d.laneOf("holder", e),
				began: began, lost: e.What == "taken over",
			})
		}
	}
}

// fenceOf is the claim that an entry of the inbox is about.
func fenceOf(e audit.TimelineEntry) int64 {
	n, _ := strconv.ParseInt(cmp.Or(text(e.Detail, "fence"), text(e.Detail, "claims")), 10, 64) // 0 where it is none
	return n
}

// claimOf is the claim of a message with a fence, or one that is not drawn where none is known.
func (d *drawing) claimOf(message string, fence int64) *claim {
	if i := slices.IndexFunc(d.claims, func(c *claim) bool { return c.message == message && c.fence == fence }); i >= 0 {
		return d.claims[i]
	}
	return &claim{}
}

// worker is the swim lane of a holder. Workers have letters, in the order in which they are seen.
func (d *drawing) worker(holder string) *lane {
	holder = cmp.Or(holder, "not known")
	if i := slices.IndexFunc(d.Lanes, func(l *lane) bool { return l.About == holder }); i >= 0 {
		return d.Lanes[i]
	}
	n := len(d.Lanes) - 5
	l := &lane{Name: "worker " + strings.Repeat(string(rune('A'+n%26)), 1+n/26), About: holder, Width: 176}
	d.Lanes = slices.Insert(d.Lanes, len(d.Lanes)-2, l)
	return l
}

// laneOf is the swim lane of a name, of the holder of an entry's message, or of the actor that recorded an event:
// the holder of the message that caused it. It is nil for no name.
func (d *drawing) laneOf(name string, e audit.TimelineEntry) (found *lane) {
	switch {
	case name == "holder":
		return d.worker(text(e.Detail, "holder"))
	case name == "actor" && e.Who == "api":
		name = "api"
	case name == "actor":
		for _, c := range d.claims {
			if c.message == d.messages[text(e.Detail, "cause")] && !c.began.After(e.At) {
				found = c.lane
			}
		}
		if found == nil {
			found = d.worker("")
		}
		return found
	}
	for _, l := range d.Lanes {
		if l.Name == name {
			found = l
		}
	}
	return found
}

func (d *drawing) row(r row) *row {
	if r.From == r.Lane {
		r.From = nil
	}
	d.Rows = append(d.Rows, &r)
	return &r
}

// add draws an entry.
func (d *drawing) add(e audit.TimelineEntry) {
	words := d.words(e)
	said := sentences[e.Kind]
	if special, found := sentences[e.Kind+" "+words["what"]]; found {
		said = special
	}
	if call := calls[e.What]; e.Kind == "event" && call != "" && words["about"] != "" { // it was read
		said = append([]sentence{{"actor", "provider", "call", call, "$code"}}, said...)
	}
	at := e.At
	if ended, err := time.Parse(time.RFC3339Nano, words["lease_ended_at"]); err == nil && ended.Before(at) {
		at = ended
	}
	when := e.At.UTC().Format("2006-01-02 15:04:05.000000")
	title := strings.Join([]string{when, e.ChargeID, e.Kind, e.What, e.Who, e.Detail.String()}, " ")
	for _, s := range said {
		expand := func(text string) string { return os.Expand(text, func(name string) string { return words[name] }) }
		r := row{
			at: at, From: d.laneOf(s.from, e), Lane: d.laneOf(s.lane, e), Class: cmp.Or(words["bad"], s.class),
			Text: expand(s.text), Note: expand(s.note), Title: title,
		}
		if drawn := d.row(r); words["claimed_at"] != "" {
			d.claimOf(words["message"], fenceOf(e)).last = drawn
		}
	}
}

// calls are the texts of the provider's calls that events are about, by the types of these.
var calls = map[string]string{
	domain.TypeOf(domain.PaymentStarted{}):       "create the payment",
	domain.TypeOf(domain.PaymentAttemptFailed{}): "$stage the payment",
	domain.TypeOf(domain.PaymentCaptured{}):      "confirm the payment",
	domain.TypeOf(domain.PaymentDeclined{}):      "no payment",
	domain.TypeOf(domain.RefundAttemptFailed{}):  "refund",
	domain.TypeOf(domain.RefundSucceeded{}):      "refund",
	domain.TypeOf(domain.RefundFailed{}):         "refund",
}

// failure is how the types of events end that are drawn as such.
var failure = regexp.MustCompile(`(failed|declined|rejected)$`)

// words are what the sentences of an entry name.
func (d *drawing) words(e audit.TimelineEntry) map[string]string {
	words := map[string]string{}
	for name := range e.Detail {
		words[name] = text(e.Detail, name)
	}
	what, _, _ := strings.Cut(e.What, ".v")
	words["what"], words["who"] = strings.Replace(what, "/v1/charges/:id", "…", 1), e.Who
	words["version"] = strconv.Itoa(e.Version)
	for _, member := range []string{"provider_status", "code", "refund_id", "dispute_id", "payment_intent", "items", "order_id"} {
		words["about"] = cmp.Or(words["about"], words[member])
	}
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

// place gives each swim lane and row its place. Long times are torn out.
func (d *drawing) place() {
	d.Width, d.Top = gutter, 40
	for _, l := range d.Lanes {
		l.Left, l.X, d.Width = d.Width, d.Width+l.Width/2, d.Width+l.Width
	}
	y, rows := d.Top+16, d.Rows
	if left := len(rows) - maxRows; left > 0 {
		rows = slices.Delete(slices.Clone(rows), maxRows/2, maxRows/2+left)
		rows[maxRows/2].Torn = plural(left, "row") + " left out"
	}
	for i, r := range rows {
		passed := r.at.Sub(rows[max(i-1, 0)].at)
		if i == 0 || passed > 0 {
			r.Since = "+" + r.at.Sub(rows[0].at).Round(100*time.Microsecond).String()
		}
		if passed >= longGap && r.Torn == "" {
			r.Torn = passed.Round(100*time.Millisecond).String() + " later"
		}
		if r.Torn != "" {
			y += torn
		}
		r.Left, r.Width, r.Y, r.Middle = r.Lane.Left+8, r.Lane.Width-16, y, y+height/2
		r.Reach, r.Tip = r.Left, -7
		if r.From != nil && r.From.X > r.Lane.X {
			r.Reach, r.Tip = r.Left+r.Width, 7
		}
		y += height + between
	}
	d.Bottom = y + 8
}

// drawClaims draws the leases, those of each receiver beside the others'. A swim lane is dark from a
// lease that ended until its worker claims again.
func (d *drawing) drawClaims() {
	var receivers []string
	for _, c := range d.claims {
		if c.last == nil || c.first.Y == 0 || c.last.Y == 0 {
			continue // its end is not kept, or left out
		}
		if !slices.Contains(receivers, c.receiver) {
			receivers = append(receivers, c.receiver)
		}
		x, y := c.lane.Left+4+9*slices.Index(receivers, c.receiver), c.last.Y
		from, to := min(c.first.Y, y), max(c.first.Y, y)+height
		title := fmt.Sprintf("claim %d of message %s by %s", c.fence, c.message, c.lane.About)
		d.Bars = append(d.Bars, bar{"lease", x, from, 8, to - from, title})
		if !c.lost {
			continue
		}
		end := d.Bottom
		for _, next := range d.claims {
			if next.lane == c.lane && next.first.Y > y {
				end = min(end, next.first.Y)
			}
		}
		d.Bars = append(d.Bars, bar{"night", c.lane.Left + 8, y, c.lane.Width - 16, end - y, "no sign of " + c.lane.About})
	}
}

// fit cuts a text to about a width in pixels, and replaces what has no glyph or changes the
// direction of the text.
func fit(s string, width int) string {
	var kept strings.Builder
	for _, r := range s {
		if !unicode.IsPrint(r) {
			r = unicode.ReplacementChar
		}
		switch width -= 7; {
		case r >= 0x1100:
			width -= 7
		case unicode.IsUpper(r):
			width -= 2
		}
		if width < 0 {
			return kept.String() + "…"
		}
		kept.WriteRune(r)
	}
	return kept.String()
}
