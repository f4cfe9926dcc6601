package console

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testrun"
)

// TestDraw compares the drawing of a charge whose worker died, whose message came three times, and whose shop was
// away for three hours, with testdata/crashed.html, which UPDATE_GOLDEN=1 writes anew. The steps of the tour have its rows.
func TestDraw(t *testing.T) {
	t.Parallel()
	stored, err := os.ReadFile("testdata/crashed.json")
	testrun.Must(t, err)
	var crashed audit.Timeline
	testrun.Must(t, json.Unmarshal(stored, &crashed))
	var got, tour strings.Builder
	pages := New(Options{}).pages
	testrun.Must(t, pages["Charge"].ExecuteTemplate(&got, "lanes", crashed))
	testrun.Golden(t, "crashed.html", got.String())
	testrun.Must(t, pages["Learn"].ExecuteTemplate(&tour, "main", view{Data: history{Timeline: crashed}}))
	if n := strings.Count(tour.String(), "Rows of the step"); n != 8 {
		t.Errorf("%d of 8 steps of the tour have rows", n)
	}
}

// TestDraw_callsOfTheProvider: an event that is about a call is drawn with the call before it, if it can be read.
func TestDraw_callsOfTheProvider(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		event domain.Event
		call  string
	}{
		{domain.PaymentAttemptFailed{Stage: domain.StageConfirm}, "confirm the payment"},
		{domain.PaymentDeclined{Failure: domain.Failure{Code: domain.CardDeclined}}, "no payment"},
		{domain.RefundAttemptFailed{RefundID: "re_1"}, "refund"},
		{domain.RefundSucceeded{RefundID: "re_1"}, "refund"},
		{domain.RefundFailed{RefundID: "re_1"}, "refund"},
	} {
		entry := audit.TimelineEntry{Kind: "event", What: domain.TypeOf(test.event), Detail: domain.Details(test.event)}
		unread := entry
		unread.Detail = audit.Detail{"event_id": "e1"}
		var calls []string
		for _, r := range draw(audit.Timeline{Entries: []audit.TimelineEntry{entry, unread}}).Rows {
			if r.lane.Name == "provider" {
				calls = append(calls, r.Text)
			}
		}
		testrun.Same(t, entry.What, []string{test.call}, calls)
	}
}

// TestDraw_manyRows: of a long timeline the end is drawn, of any words, and of workers beyond the alphabet.
func TestDraw_manyRows(t *testing.T) {
	t.Parallel()
	const text = "\"><script>\u202e\x00"
	start := time.Date(2026, 11, 21, 8, 22, 48, 0, time.UTC)
	whats := []string{text, "received", "duplicate", "taken over", "failed", "released", "done", "running", "dead letter"}
	var long audit.Timeline
	for i := range 500 {
		long.Entries = append(long.Entries, audit.TimelineEntry{
			At: start.Add(time.Duration(i) * time.Second), Kind: []string{"key", "event", "webhook", "inbox", "provider", text}[i%6],
			What: whats[i%len(whats)], Who: text, Detail: audit.Detail{"items": []string{text}, "claimed_at": start.Format(time.RFC3339Nano), "holder": strconv.Itoa(i % 30)},
		})
	}
	d := draw(long)
	last := d.Rows[len(d.Rows)-1]
	if len(d.Rows) != mostRows || d.Left == 0 || !last.at.Equal(long.Entries[499].At) || len(last.Cells) != len(d.Lanes) || len(d.Lanes) < 5+30 {
		t.Errorf("%d rows, %d left out, %d lanes; the last is of %s", len(d.Rows), d.Left, len(d.Lanes), last.at)
	}
	var got strings.Builder
	testrun.Must(t, New(Options{}).pages["Charge"].ExecuteTemplate(&got, "lanes", long))
	for _, active := range []string{"<script>", "\u202e", "\x00"} {
		if strings.Contains(got.String(), active) {
			t.Errorf("the drawing holds %q", active)
		}
	}
}

// TestShort: what takes less than half a millisecond is not shown as nothing.
func TestShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 412_345 * time.Nanosecond: "410µs", 1_499 * time.Microsecond: "1ms", 61_000_400 * time.Microsecond: "1m1s",
	} {
		if got := short(d); got != want {
			t.Errorf("%d ns is shown as %s, want %s", d, got, want)
		}
	}
}
