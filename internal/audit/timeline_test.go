package audit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox/deadletter"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func (f *fixture) timeline(t *testing.T, name, merchant string) audit.Timeline {
	t.Helper()
	tl, err := audit.ReadTimeline(t.Context(), f.db, f.named(name), merchant)
	testdb.Must(t, err)
	return tl
}

// variable are texts that each run writes otherwise: times that are not of this test, ids of events and numbers of messages.
var variable = regexp.MustCompile(`20[0-9]{2}-[0-9T:.+Z-]{15,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b(id|message)=[0-9]+`)

// stable is a timeline as text that each run writes alike. An id of an event is the number of its first appearance.
func (f *fixture) stable(tl audit.Timeline) string {
	var text strings.Builder
	for _, c := range tl.Charges {
		fmt.Fprintf(&text, "%+v\n", c)
	}
	for _, e := range tl.Entries {
		fmt.Fprintf(&text, "%s | %s | %s | %s | %d | %s\n", e.Kind, e.What, e.Who, e.ChargeID, e.Version, e.Detail)
	}
	seen, names := map[string]string{}, make([]string, 0, 2*len(f.ids))
	for name, id := range f.ids {
		names = append(names, id, "{"+name+"}")
	}
	return variable.ReplaceAllStringFunc(strings.NewReplacer(names...).Replace(text.String()), func(found string) string {
		switch {
		case strings.Contains(found, "="):
			return found[:strings.Index(found, "=")] + "=N"
		case found[4] == '-':
			return "TIME"
		case seen[found] == "":
			seen[found] = fmt.Sprintf("EVENT%d", len(seen)+1)
		}
		return seen[found]
	})
}

// states are messages in every state, each of a charge of its name.
var states = map[string]string{
	"waits": `status = 'pending', waits = 2, fence = 2, last_error = 'waiting: the provider is away', due_at = '2126-01-01 00:00:00.5+00'`,
	"runs":  `status = 'running', fence = 1, attempts = 1, holder = 'host:2'`,
	"next":  `status = 'pending', first = false, fence = 0, holder = null`,
	"lost": `status = 'done', first = false, fence = 3, done_fence = 3, holder = 'host:3', claimed_at = '2126-01-01 00:00:06+00', finished_at = '2126-01-01 00:00:07+00',
		duplicates = 2, duplicated_at = '2126-01-01 00:00:01+00', history = '[
		{"fence": 1, "holder": "host:1", "claimed_at": null, "lease_ended_at": "2126-01-01T00:00:03+00:00", "at": "2126-01-01T00:00:04+00:00"},
		{"fence": 2, "holder": "host:2", "claimed_at": "2126-01-01T00:00:04+00:00", "at": "2126-01-01T00:00:05+00:00", "error": "no"}]'`,
	"dead":  dead,
	"retry": dead,
	"end":   dead,
}

const dead = `status = 'dead', fence = 4, attempts = 4, last_error = 'dead letter: no such thing'`

// TestReadTimeline compares timelines with testdata/timeline.txt, which UPDATE_GOLDEN=1 writes anew.
func TestReadTimeline(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.decide("paying", recorded(domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500, RequestID: "req_42"}))
	f.decide("refunded", recorded(domain.RefundAttemptFailed{RefundID: f.ids["returning"], StatusCode: 502, RequestID: "req_7"}))
	f.run("breakable")
	f.exec(`
select append_event('{bought}', 'charge.praised.v1', '{"message": "a secret"}'); -- is unreadable
select append_event('{sold}', 'refund.requested.v1', '{"refund_id": "re_forged", "amount": 100000000000000000, "notify": false}');
select append_event('{sold}', 'refund.requested.v1', '{"refund_id": "re_forged", "amount": 1, "reason": 5}')`)
	names := []string{"{sold}", "{bought}", "{paying}", "{declined}", "{canceled}", "{refunded}", "{unread}", "key-too-much"}
	f.exec(`insert into inbox_holders values ('fulfillment', 'host:2', '2126-01-01 00:00:01+00')`)
	for _, name := range slices.Sorted(maps.Keys(states)) {
		f.accept("acme", name, true)
		names = append(names, "{"+name+"}")
	}
	f.run("work")
	f.accept("acme", "unread", true)
	for name, state := range states {
		f.exec(`update inbox set ` + state + ` where ordering_key = '{` + name + `}'`)
	}
	message := func(name string) int64 {
		return number(f, f.named(`select id from inbox where ordering_key = '{`+name+`}'`))
	}
	testdb.Must(t, deadletter.Retry(t.Context(), f.db, message("retry"), "cli:ada"))
	testdb.Must(t, deadletter.Discard(t.Context(), f.db, message("end"), "cli:bob"))

	var text strings.Builder
	for _, name := range names {
		tl := f.timeline(t, name, "")
		fmt.Fprintf(&text, "\n# %s\n%s", name, f.stable(tl))
		if encoded, err := json.Marshal(tl); err != nil || strings.Contains(string(encoded), "a secret") || strings.Contains(string(encoded), "payload") {
			t.Errorf("what a merchant wrote for its own use, or a payload, is shown: %s (%v)", encoded, err)
		}
		for i, e := range tl.Entries {
			if e.At.IsZero() || e.At.Location() != time.UTC || i > 0 && e.At.Before(tl.Entries[i-1].At) {
				t.Errorf("entry %d is %+v as of %v", i, e, tl.AsOf)
			}
		}
	}
	testrun.Golden(t, "timeline.txt", text.String())
}

func TestReadTimeline_findsByName(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.accept("globex", "sold of globex", true)
	f.refuse("key-sold")
	f.exec(`update idempotency_keys set key = 're_no-refund' where key = 'key-fresh'`)
	for _, test := range []struct{ what, name, merchant, want string }{
		{"a charge", "{refunded}", "", "{refunded}"},
		{"a refund", "{part}", "acme", "{refunded}"},
		{"a dispute", "du_1", "", "{bought}"},
		{"a key of all merchants", "key-sold", "", "{sold of globex} {sold}"},
		{"a key of one merchant", "key-sold", "globex", "{sold of globex}"},
		{"a key whose request was refused", "key-too-much", "", ""},
		{"a key that looks like a refund", "re_no-refund", "", "{fresh}"},
	} {
		var got []string
		for _, c := range f.timeline(t, test.name, test.merchant).Charges {
			got = append(got, c.ID)
		}
		testrun.Same(t, test.what, sorted(strings.Fields(f.named(test.want))), sorted(got))
	}
	for name, merchant := range map[string]string{
		"ch_unknown": "", "re_unknown": "", "unknown": "", "": "", "{refunded}": "globex", "key-refunded": "globex",
	} {
		if tl, err := audit.ReadTimeline(t.Context(), f.db, f.named(name), merchant); !errors.Is(err, audit.ErrNotFound) {
			t.Errorf("%q of %q: %v, %+v", name, merchant, err, tl)
		}
	}
}
