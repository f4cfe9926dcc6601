package console_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/console"
	"github.com/payonce/payonce/internal/testrun"
)

// node is an element of a drawing.
type node struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Text    string     `xml:",chardata"`
	Nodes   []node     `xml:",any"`
}

func (n node) attr(name string) string {
	for _, a := range n.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// number is an attribute that is one.
func (n node) number(t *testing.T, name string) int {
	t.Helper()
	value, err := strconv.Atoi(n.attr(name))
	testrun.Must(t, err)
	return value
}

// all are the elements below with a class, in their order.
func (n node) all(class string) (found []node) {
	for _, below := range n.Nodes {
		if slices.Contains(strings.Fields(below.attr("class")), class) {
			found = append(found, below)
		}
		found = append(found, below.all(class)...)
	}
	return found
}

// texts are the texts of the elements with a class.
func (n node) texts(class string) (texts []string) {
	for _, found := range n.all(class) {
		texts = append(texts, found.Text)
	}
	return texts
}

// box is the rectangle of a row.
func (n node) box(t *testing.T) node {
	t.Helper()
	i := slices.IndexFunc(n.Nodes, func(n node) bool { return n.XMLName.Local == "rect" })
	if i < 0 {
		t.Fatalf("no box in %+v", n)
	}
	return n.Nodes[i]
}

func drawn(t *testing.T, tl audit.Timeline) (drawing node) {
	t.Helper()
	first, err := console.Draw(tl)
	second, secondErr := console.Draw(tl)
	testrun.Must(t, errors.Join(err, secondErr, xml.Unmarshal([]byte(first), &drawing)))
	if first != second {
		t.Error("the same timeline is drawn in two ways")
	}
	return drawing
}

func TestDraw_isAnImageWithLanesAndRows(t *testing.T) {
	t.Parallel()
	d := drawn(t, quick())
	if names := strings.Join(d.texts("name"), " "); names != "client client api api database database worker A worker A provider provider merchant merchant" {
		t.Errorf("the lanes are %q, each with its name at both ends", names)
	}
	if d.attr("role") != "img" || d.Nodes[0].XMLName.Local != "title" || d.Nodes[1].XMLName.Local != "desc" || !strings.Contains(d.Nodes[1].Text, "6 events") {
		t.Errorf("the image is %q, %+v", d.attr("role"), d.Nodes[:2])
	}
	texts := d.texts("middle")
	for _, want := range []string{
		"POST /v1/charges", "key key-48cb6565ce6b82…", "key with its answer 202", "1 charge.requested", "takes message 1", "claim 1 of fulfillment",
		"create the payment", "key 886d6009-d933-5200…", "5 charge.succeeded", "charge.succeeded", "webhook-id 886d6009-d9…", "message 2 done", "succeeded now",
	} {
		if !slices.Contains(texts, want) {
			t.Errorf("%q is not drawn: %q", want, texts)
		}
	}
	if n := len(d.all("gap")) + len(d.all("night")) + len(d.all("strike")); n > 0 {
		t.Errorf("%d gaps, dark lanes and dropped messages", n)
	}
}

func TestDraw_drawsATakeoverAndADroppedDuplicate(t *testing.T) {
	t.Parallel()
	d := drawn(t, crashed())
	rows := map[string]node{}
	for _, r := range d.all("row") {
		for class := range strings.FieldsSeq(r.attr("class")) {
			rows[class] = r
		}
	}
	lost, takeover, dropped, nights := rows["dark"], rows["takeover"], rows["dropped"], d.all("night")
	testrun.Same(t, "texts", []string{
		"message 1 again, 2 times", "inbox_message_once", "lease ended, no sign", "inbox_done_by_holder", "takes over", "message 1, claim 2",
	}, slices.Concat(dropped.texts("gone"), dropped.texts("guard"), lost.texts("middle"), takeover.texts("middle")))
	failed, arrows := strings.Count(strings.Join(d.texts("middle"), "\n"), "waits, tries again"), takeover.all("arrow")
	testrun.Same(t, "strikes, dark lanes, arrows, leases and failed attempts", []int{1, 1, 1, 6, 3},
		[]int{len(dropped.all("strike")), len(nights), len(arrows), len(d.all("lease")), failed})
	from, to, night := lost.box(t), takeover.box(t), nights[0]
	if night.number(t, "x") != from.number(t, "x") || night.number(t, "y") != from.number(t, "y") || night.number(t, "height") < 500 {
		t.Errorf("the lane is dark at %+v, its lease ends at %+v", night, from)
	}
	start := "M" + strconv.Itoa(from.number(t, "x")+from.number(t, "width")/2) + " "
	if end := "H" + strconv.Itoa(to.number(t, "x")-7); !strings.HasPrefix(arrows[0].attr("d"), start) || !strings.HasSuffix(arrows[0].attr("d"), end) {
		t.Errorf("the arrow is %q, want %s…%s", arrows[0].attr("d"), start, end)
	}
}

// Long times are torn out, so a charge that waited for hours is as readable as a fast one.
func TestDraw_neverLetsRowsCollide(t *testing.T) {
	t.Parallel()
	many := quick()
	for n := range 1000 {
		many.Entries = append(many.Entries, entry(time.Second+time.Duration(n)*ms, "event", "refund.requested.v1", "api", n+7))
	}
	minute := timeline("order-1", entry(0, "event", "charge.requested.v1", "api", 1), entry(time.Minute, "event", "charge.failed.v1", "worker", 2))
	for name, test := range map[string]struct {
		of   audit.Timeline
		gaps []string
	}{
		"a fast charge":         {quick(), nil},
		"a minute":              {minute, []string{"1m0s later"}},
		"three hours":           {crashed(), []string{"1.49s later", "1.5s later", "50m0s later", "1h40m0s later", "31m57s later"}},
		"a thousand refunds":    {many, []string{"620 rows left out"}},
		"what an attacker sent": {hostileTimeline(), nil},
		"nothing":               {audit.Timeline{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := drawn(t, test.of)
			var gaps []string
			for _, g := range d.all("gap") {
				gaps = append(gaps, g.texts("soft")...)
			}
			if !slices.Equal(gaps, test.gaps) {
				t.Errorf("the gaps are %q, want %q", gaps, test.gaps)
			}
			end := 0
			for _, r := range d.all("row") {
				box := r.box(t)
				if y := box.number(t, "y"); y < end || end > 0 && y > end+100 {
					t.Errorf("a row at %d, the one before ends at %d", y, end)
				}
				end = box.number(t, "y") + box.number(t, "height")
				for _, text := range r.all("middle") {
					if n := len([]rune(text.Text)); n > box.number(t, "width")/6+2 {
						t.Errorf("%q is wider than its box", text.Text)
					}
				}
			}
		})
	}
}

// What others have stored is text and nothing else.
func TestDraw_escapesHostileTexts(t *testing.T) {
	t.Parallel()
	var check func(n node)
	check = func(n node) {
		if !slices.Contains([]string{"svg", "title", "desc", "style", "g", "rect", "path", "circle", "text"}, n.XMLName.Local) {
			t.Errorf("an element %q", n.XMLName.Local)
		}
		if n.XMLName.Local == "style" && n.Text != console.Style {
			t.Errorf("a style %q", n.Text)
		}
		for _, a := range n.Attrs {
			if name := a.Name.Local; strings.HasPrefix(name, "on") || slices.Contains([]string{"style", "href", "id"}, name) || strings.ContainsAny(a.Value, "<'&") {
				t.Errorf("an attribute %s=%q", name, a.Value)
			}
		}
		if strings.ContainsFunc(n.Text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
			t.Errorf("unprintable: %q", n.Text)
		}
		for _, below := range n.Nodes {
			check(below)
		}
	}
	d := drawn(t, hostileTimeline())
	check(d)
	if class := d.attr("class"); class != "lanes wide" {
		t.Errorf("the drawing of many workers is %q", class)
	}
	if headline := d.texts("head"); len(headline) != 1 || !strings.Contains(headline[0], "<script>alert('1')</script>\uFFFD]]>&\uFFFD") {
		t.Errorf("the headline is %q", headline)
	}
}

var start = time.Date(2026, 11, 21, 8, 22, 48, 792_000_000, time.UTC)

func at(after time.Duration) string { return start.Add(after).Format(time.RFC3339Nano) }

// entry is of the charge ch_1. details are names and values.
func entry(after time.Duration, kind, what, who string, version int, details ...any) audit.TimelineEntry {
	e := audit.TimelineEntry{At: start.Add(after), Kind: kind, What: what, Who: who, Version: version, ChargeID: "ch_1", Detail: audit.Detail{}}
	for i := 0; i < len(details); i += 2 {
		e.Detail[fmt.Sprint(details[i])] = details[i+1]
	}
	return e
}

func timeline(order string, entries ...audit.TimelineEntry) audit.Timeline {
	return audit.Timeline{
		AsOf:    entries[len(entries)-1].At,
		Charges: []audit.TimelineCharge{{ID: "ch_01a1fd336ed47bf6827f5db90a1e2454", MerchantID: "acme", OrderID: order, Amount: 1000, Currency: "USD", Status: "succeeded"}},
		Entries: entries,
	}
}

const us, ms = time.Microsecond, time.Millisecond

// quick is a charge that nothing disturbed.
func quick() audit.Timeline {
	return timeline("order-1",
		entry(0, "key", "POST /v1/charges", "acme", 0, "key", "key-48cb6565ce6b8275", "status_code", 202),
		entry(100*us, "event", "charge.requested.v1", "api", 1, "event_id", "e1", "order_id", "order-1"),
		entry(200*us, "outbox", "passed", "charges", 0, "message_id", "e1"),
		entry(4*ms, "inbox", "received", "fulfillment", 0, "message", 1, "message_id", "e1", "duplicates", 0, "type", "charge.requested.v1"),
		entry(9*ms, "event", "inventory.reserved.v1", "worker", 2, "cause", "e1", "items", []string{"1 tshirt"}),
		entry(14*ms, "event", "payment.started.v1", "worker", 3, "cause", "e1", "payment_intent", "pi_2MUSLBDBMHZ", "provider_key", "886d6009-d933-5200-9373-3158a7795b6d"),
		entry(21*ms, "event", "payment.captured.v1", "worker", 4, "cause", "e1", "payment_intent", "pi_2MUSLBDBMHZ", "provider_key", "99ad6009-d933-5200-9373-3158a7795b6d"),
		entry(21*ms+20*us, "event", "charge.succeeded.v1", "worker", 5, "cause", "e1"),
		entry(21*ms+40*us, "outbox", "passed", "notification", 0, "message_id", "e5"),
		entry(21*ms+60*us, "inbox", "done", "fulfillment", 0, "message", 1, "claims", 1, "holder", "vm:13276/AAAAAAA2", "claimed_at", at(4*ms)),
		entry(23*ms, "inbox", "received", "notification", 0, "message", 2, "message_id", "e5", "type", "charge.succeeded.v1"),
		entry(30*ms, "webhook", "merchant.notified.v1", "worker", 6, "cause", "e5", "type", "charge.succeeded", "webhook_id", "886d6009-d933"),
		entry(30*ms+10*us, "inbox", "done", "notification", 0, "message", 2, "claims", 1, "holder", "vm:13276/BBBBBBB3", "claimed_at", at(23*ms)),
		entry(500*ms, "provider", "payment_intent", "stripe", 0, "id", "pi_2MUSLBDBMHZ", "status", "succeeded"),
	)
}

// crashed is a charge whose worker died, whose message came three times, and whose shop was
// away for three hours.
func crashed() audit.Timeline {
	const dead, heir = "vm:13276:ZK4QDA7B", "vm:13290:P2W7XH3C"
	const away = 3*time.Hour + 2*time.Minute
	entries := append(quick().Entries[:6], // up to the start of the payment
		entry(1500*ms, "inbox", "duplicate", "fulfillment", 0, "message", 1, "duplicates", 2, "dropped_by", "inbox_message_once"),
		entry(3100*ms, "inbox", "taken over", "fulfillment", 0, "message", 1, "fence", 1, "holder", dead, "claimed_at", at(4*ms),
			"lease_ended_at", at(3004*ms), "taken_over_by", heir),
		entry(3121*ms, "event", "payment.captured.v1", "worker", 4, "cause", "e1", "payment_intent", "pi_2MUSLBDBMHZ", "provider_key", "99ad6009-d933-5200-9373-3158a7795b6d"),
		entry(3121*ms+20*us, "event", "charge.succeeded.v1", "worker", 5, "cause", "e1"),
		entry(3121*ms+60*us, "inbox", "done", "fulfillment", 0, "message", 1, "claims", 2, "holder", heir, "claimed_at", at(3100*ms)),
		entry(3123*ms, "inbox", "received", "notification", 0, "message", 2, "message_id", "e5", "type", "charge.succeeded.v1"),
	)
	claimed := 3123 * ms
	for n := range 3 {
		failed := claimed + 40*ms
		entries = append(entries, entry(failed, "inbox", "failed", "notification", 0, "message", 2, "fence", n+1, "holder", heir,
			"claimed_at", at(claimed), "error", "notification: waiting: deliver webhook e5: webhook answered 503: Service Unavailable"))
		claimed = failed + time.Duration(n+1)*50*time.Minute
	}
	return timeline("order-1", append(entries,
		entry(away, "webhook", "merchant.notified.v1", "worker", 6, "cause", "e5", "type", "charge.succeeded", "webhook_id", "886d6009-d933"),
		entry(away+10*us, "inbox", "done", "notification", 0, "message", 2, "claims", 4, "holder", heir, "claimed_at", at(away-20*ms)),
		entry(away+time.Second, "provider", "payment_intent", "stripe", 0, "id", "pi_2MUSLBDBMHZ", "status", "succeeded"),
	)...)
}

// hostileTimeline is a charge of which every text was chosen by an attacker.
func hostileTimeline() audit.Timeline {
	const text = "\"><script>alert('1')</script>\u202e]]>&\x00</text>"
	t := timeline(text,
		entry(0, "key", text, text, 0, "key", text, "status_code", text),
		entry(ms, "event", text, text, 1, "event_id", text, "cause", text, "order_id", text, "items", []string{text}),
	)
	for i, kind := range []string{"event", "webhook", "outbox", "inbox", "provider", text} {
		for j, what := range []string{text, "received", "duplicate", "taken over", "failed", "released", "done", "running", "dead letter", "resent"} {
			t.Entries = append(t.Entries, entry(time.Duration(i*20+j)*ms, kind, what, text, j, "message", text, "holder", text+strconv.Itoa(j), "claimed_at", at(0),
				"error", text, "last_error", text, "type", text, "status", text, "id", text, "webhook_id", text, "provider_key", text, "dropped_by", text, text, text))
		}
	}
	t.Charges[0].ID, t.Charges[0].Status = text, text
	return t
}
