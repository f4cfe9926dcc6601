package console_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/console"
	"github.com/payonce/payonce/internal/testrun"
)

// TestDraw compares the drawing of a charge whose worker died, whose message came three times, and whose shop was
// away for three hours, with testdata/crashed.svg, which UPDATE_GOLDEN=1 writes anew.
func TestDraw(t *testing.T) {
	t.Parallel()
	stored, err := os.ReadFile("testdata/crashed.json")
	testrun.Must(t, err)
	var crashed audit.Timeline
	testrun.Must(t, json.Unmarshal(stored, &crashed))
	got, err := console.Draw(crashed)
	testrun.Must(t, err)
	testrun.Golden(t, "crashed.svg", string(got))
}

// TestDraw_callsOfTheProvider: an event that is about a call is drawn with the call before it.
func TestDraw_callsOfTheProvider(t *testing.T) {
	t.Parallel()
	const create, confirm = "create the payment", "confirm the payment"
	started, captured := domain.PaymentStarted{PaymentIntent: "pi_1"}, domain.PaymentCaptured{PaymentIntent: "pi_1"}
	declined := domain.PaymentDeclined{Failure: domain.Failure{Code: domain.CardDeclined}}
	type events = []domain.Event
	for name, test := range map[string]struct {
		events events
		calls  []string
	}{
		"captured":                   {events{started, captured}, []string{create, confirm}},
		"a failed creation":          {events{domain.PaymentAttemptFailed{Stage: domain.StageCreate}}, []string{create}},
		"a failed confirmation":      {events{domain.PaymentAttemptFailed{Stage: domain.StageConfirm}}, []string{confirm}},
		"declined":                   {events{started, declined}, []string{create, "no payment"}},
		"a failed attempt to refund": {events{domain.RefundAttemptFailed{RefundID: "re_1"}}, []string{"refund"}},
		"refunded":                   {events{domain.RefundSucceeded{RefundID: "re_1"}}, []string{"refund"}},
		"a failed refund":            {events{domain.RefundFailed{RefundID: "re_1"}}, []string{"refund"}},
		"events that are about none": {events{domain.ChargeRequested{}, domain.RefundObserved{RefundID: "re_1"}}, nil},
	} {
		var entries []audit.TimelineEntry
		for _, e := range test.events {
			entries = append(entries, audit.TimelineEntry{Kind: "event", What: domain.TypeOf(e), Detail: domain.Details(e)})
		}
		testrun.Same(t, name, test.calls, callsIn(t, entries))
		for i := range entries {
			entries[i].Detail = audit.Detail{"event_id": "e1"}
		}
		testrun.Same(t, name+", if it cannot be read", []string(nil), callsIn(t, entries))
	}
}

// callsIn are the texts of the rows that are drawn for events, but for the events themselves.
func callsIn(t *testing.T, events []audit.TimelineEntry) (calls []string) {
	t.Helper()
	text, err := console.Draw(audit.Timeline{Entries: events})
	testrun.Must(t, err)
	var drawing node
	testrun.Must(t, xml.Unmarshal([]byte(text), &drawing))
	drawing.each(func(n node) {
		if n.attr("class") == "what middle" && !strings.HasPrefix(n.Text, "0 ") { // the version of an event
			calls = append(calls, n.Text)
		}
	})
	return calls
}

// node is an element of a drawing.
type node struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Text    string     `xml:",chardata"`
	Nodes   []node     `xml:",any"`
}

func (n node) attr(name string) string {
	i := slices.IndexFunc(n.Attrs, func(a xml.Attr) bool { return a.Name.Local == name })
	if i < 0 {
		return ""
	}
	return n.Attrs[i].Value
}

// each visits an element and all below it.
func (n node) each(visit func(node)) {
	visit(n)
	for _, below := range n.Nodes {
		below.each(visit)
	}
}

// hostileTimeline has n entries, of which every text was chosen by an attacker.
func hostileTimeline(n int) audit.Timeline {
	const text = "\"><script>alert('1')</script>\u202e]]>&\x00</text>"
	start := time.Date(2026, 11, 21, 8, 22, 48, 0, time.UTC)
	t := audit.Timeline{AsOf: start, Charges: []audit.TimelineCharge{{ID: text, Status: text}}}
	whats := []string{text, "received", "duplicate", "taken over", "failed", "released", "done", "running", "dead letter"}
	for i := range n {
		detail := audit.Detail{text: text, "items": []string{text}, "claimed_at": start.Format(time.RFC3339Nano), "holder": text + strconv.Itoa(i%9)}
		for _, name := range []string{
			"message", "error", "last_error", "type", "status", "id",
			"webhook_id", "dropped_by", "key", "status_code", "cause", "event_id",
		} {
			detail[name] = text
		}
		t.Entries = append(t.Entries, audit.TimelineEntry{
			At: start.Add(time.Duration(i*i) * 10 * time.Millisecond), Kind: []string{"key", "event", "webhook", "outbox", "inbox", "provider", text}[i%7],
			ChargeID: text, Version: i % 3, What: whats[i%len(whats)], Who: text, Detail: detail,
		})
	}
	return t
}

// TestDraw_escapesHostileTexts: what others have stored is text and nothing else, and no row is over another one.
func TestDraw_escapesHostileTexts(t *testing.T) {
	t.Parallel()
	for entries, left := range map[int]string{0: "", 80: "", 500: "rows left out"} {
		text, err := console.Draw(hostileTimeline(entries))
		testrun.Must(t, err)
		var drawing node
		testrun.Must(t, xml.Unmarshal([]byte(text), &drawing))
		rows, end := 0, 0
		drawing.each(func(n node) {
			if !slices.Contains([]string{"svg", "title", "g", "rect", "path", "circle", "text"}, n.XMLName.Local) {
				t.Errorf("an element %q", n.XMLName.Local)
			}
			for _, a := range n.Attrs {
				if name := a.Name.Local; strings.HasPrefix(name, "on") || slices.Contains([]string{"style", "href", "id"}, name) || strings.ContainsAny(a.Value, "<'&") {
					t.Errorf("an attribute %s=%q", name, a.Value)
				}
			}
			if strings.ContainsFunc(n.Text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
				t.Errorf("unprintable: %q", n.Text)
			}
			if strings.HasPrefix(n.attr("class"), "row ") {
				box := n.Nodes[slices.IndexFunc(n.Nodes, func(n node) bool { return n.XMLName.Local == "rect" })]
				y, err := strconv.Atoi(box.attr("y"))
				if rows++; err != nil || y < end || end > 0 && y > end+100 {
					t.Errorf("a row at %d, the one before ends at %d: %v", y, end, err)
				}
				end = y + 36
			}
		})
		if left != "" && (rows != 400 || !strings.Contains(string(text), left)) || entries > 0 && !strings.Contains(fmt.Sprint(text), "&lt;script&gt;") {
			t.Errorf("of %d entries %d rows are drawn", entries, rows)
		}
	}
}
