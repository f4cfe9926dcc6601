package demo

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestVerdict(t *testing.T) {
	t.Parallel()

	t.Run("a flawless run breaks nothing, and every check has looked at something", func(t *testing.T) {
		t.Parallel()
		for _, check := range judge(flawless()) {
			if check.Violated != 0 {
				t.Errorf("%s: %v", check.Name, check.Examples)
			}
			if check.Checked == 0 {
				t.Errorf("%s has looked at nothing", check.Name)
			}
		}
	})

	// Each of these is a defect that the checks must find, and the checks that
	// find it.
	for _, defect := range []struct {
		name  string
		plant func(*evidence)
		found []string
	}{
		{
			"a request without an answer", func(e *evidence) { e.records[0].answers = e.records[0].answers[:2] },
			[]string{"outside: one answer per key, byte for byte"},
		},
		{
			"a replay with another byte", func(e *evidence) { e.records[0].answers[2].Body += " " },
			[]string{"outside: one answer per key, byte for byte"},
		},
		{
			"a replay with another Location", func(e *evidence) { e.records[0].answers[1].Location = "/v1/charges/ch_other" },
			[]string{"outside: one answer per key, byte for byte"},
		},
		{
			"a refused request", func(e *evidence) {
				for i := range e.records[0].answers {
					e.records[0].answers[i].Status = http.StatusBadRequest
				}
			},
			[]string{"outside: one answer per key, byte for byte"},
		},
		{
			"a reused key that was accepted", func(e *evidence) { reused(e).reuse[0].Status = http.StatusAccepted },
			[]string{"outside: a used key refuses another body"},
		},
		{
			"a reused key that was not tried", func(e *evidence) { reused(e).reuse = nil },
			[]string{"outside: a used key refuses another body"},
		},
		{
			"a charge that never ended", func(e *evidence) { ending(e, "card_declined").final = state{Status: "pending"} },
			[]string{
				"outside: every charge ends, and as it should",
				"outside: the merchant is told of each ending once",
			},
		},
		{
			"a declined charge that succeeded", func(e *evidence) { ending(e, "card_declined").final = state{Status: succeeded} },
			[]string{
				"outside: every charge ends, and as it should",
				"outside: a succeeded charge is captured once, in full",
				"outside: the merchant is told of each ending once",
			},
		},
		{
			"a gap in a stream", func(e *evidence) { e.records[0].events[1].Version++ },
			[]string{"outside: every stream gapless, with one ending"},
		},
		{
			"two endings in a stream", func(e *evidence) {
				r := &e.records[0]
				r.events = append(r.events, event{len(r.events) + 1, "charge.failed.v1"})
			},
			[]string{"outside: every stream gapless, with one ending"},
		},
		{
			"two notes of the same notification", func(e *evidence) {
				r := &e.records[0]
				r.events = append(r.events, event{len(r.events) + 1, "merchant.notified.v1"})
			},
			[]string{"outside: every stream gapless, with one ending"},
		},
		{
			"a second capture", func(e *evidence) { e.books.Captures = append(e.books.Captures, e.books.Captures[0]) },
			[]string{"outside: at most one capture per charge", "outside: a succeeded charge is captured once, in full"},
		},
		{
			"a capture that is missing", func(e *evidence) { e.books.Captures = e.books.Captures[1:] },
			[]string{"outside: a succeeded charge is captured once, in full"},
		},
		{
			"a capture of another amount", func(e *evidence) { e.books.Captures[0].Amount++ },
			[]string{"outside: a succeeded charge is captured once, in full"},
		},
		{
			"a capture in another currency", func(e *evidence) { e.books.Captures[0].Currency = "chf" },
			[]string{"outside: a succeeded charge is captured once, in full"},
		},
		{
			"a capture of a failed charge", func(e *evidence) {
				e.books.Captures = append(e.books.Captures, capture{Reference: ending(e, "card_declined").id})
			},
			[]string{"outside: a failed charge is never captured"},
		},
		{
			"a capture for nobody", func(e *evidence) {
				e.books.Captures = append(e.books.Captures, capture{Reference: "ch_nobody"})
			},
			[]string{"outside: no capture without a charge"},
		},
		{
			"a merchant who acted twice", func(e *evidence) { e.books.Notifications[0].Effects = 2 },
			[]string{"outside: the merchant is told of each ending once"},
		},
		{
			"a merchant who was told twice, by two ids", func(e *evidence) {
				e.books.Notifications = append(e.books.Notifications, e.books.Notifications[0])
			},
			[]string{"outside: the merchant is told of each ending once"},
		},
		{
			"a merchant who was told the contrary", func(e *evidence) { e.books.Notifications[0].Type = "charge.refused" },
			[]string{"outside: the merchant is told of each ending once"},
		},
		{
			"stock sold twice", func(e *evidence) { e.plan.Stock[poster]-- },
			[]string{"outside: scarce stock sells out and not twice"},
		},
		{
			"nine kills", func(e *evidence) { e.strikes.workerKills = 9 },
			[]string{"chaos: workers killed while charges flow"},
		},
		{
			"kills of idle workers alone", func(e *evidence) { e.strikes.killsUnderWay = 0 },
			[]string{"chaos: workers killed while charges flow"},
		},
		{
			"no api killed", func(e *evidence) { e.strikes.apiKills = 0 },
			[]string{"chaos: an api killed"},
		},
		{
			"no restart of the database", func(e *evidence) { e.strikes.restarted = 0 },
			[]string{"chaos: database restarted at once"},
		},
		{
			"a provider without faults", func(e *evidence) {
				e.books.DuplicatesSuppressed = e.before.DuplicatesSuppressed
				for i := range e.books.Notifications {
					e.books.Notifications[i].Deliveries = 1
				}
			},
			[]string{"chaos: provider and shop asked again after faults"},
		},
		{
			"a program that ended by itself", func(e *evidence) { e.losses = []string{"worker-1"} },
			[]string{"chaos: nothing ended that was not killed"},
		},
		{
			"nothing at all", func(e *evidence) { *e = evidence{plan: e.plan, tally: e.tally, strikes: strikes{blow: "killed"}} },
			[]string{
				"outside: one answer per key, byte for byte",
				"outside: one charge per key",
				"outside: a used key refuses another body",
				"outside: every charge ends, and as it should",
				"outside: every stream gapless, with one ending",
				"outside: at most one capture per charge",
				"outside: a succeeded charge is captured once, in full",
				"outside: a failed charge is never captured",
				"outside: no capture without a charge",
				"outside: the merchant is told of each ending once",
				"outside: scarce stock sells out and not twice",
				"chaos: workers killed while charges flow",
				"chaos: an api killed",
				"chaos: database restarted at once",
				"chaos: provider and shop asked again after faults",
			},
		},
	} {
		t.Run(defect.name+" is found", func(t *testing.T) {
			t.Parallel()
			seen := flawless()
			defect.plant(&seen)
			var found []string
			for _, check := range judge(seen) {
				if check.Violated == 0 {
					continue
				}
				found = append(found, check.Name)
				if len(check.Examples) == 0 {
					t.Errorf("%s gives no example", check.Name)
				}
			}
			if diff := cmp.Diff(defect.found, found); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerdictElsewhere(t *testing.T) {
	t.Parallel()

	t.Run("a restart that is not the demo's to do is not a violation", func(t *testing.T) {
		t.Parallel()
		seen := flawless()
		seen.strikes.restarted, seen.strikes.notRun = 0, true
		check := databaseRestarted(seen)
		if check.Violated != 0 || !check.notRun {
			t.Errorf("check: %+v", check)
		}
	})

	t.Run("captures from before the demo belong to somebody", func(t *testing.T) {
		t.Parallel()
		seen := flawless()
		old := capture{Reference: "ch_of_yesterday"}
		seen.before.Captures = append(seen.before.Captures, old)
		seen.books.Captures = append(seen.books.Captures, old)
		if check := nothingElseCaptured(seen); check.Violated != 0 {
			t.Errorf("check: %+v", check)
		}
	})
}

func TestJoin(t *testing.T) {
	t.Parallel()
	good, bad := Check{Name: "good", Checked: 1}, Check{Name: "bad", Checked: 1, Violated: 1}
	for _, c := range []struct {
		name  string
		audit Audit
		ours  Check
		ok    bool
	}{
		{"all in order", Audit{OK: true, Checks: []Check{good}}, good, true},
		{"one of ours is not", Audit{OK: true, Checks: []Check{good}}, bad, false},
		{"one of theirs is not", Audit{OK: true, Checks: []Check{bad}}, good, false},
		{"they say no", Audit{OK: false, Checks: []Check{good}}, good, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := join(c.audit, []Check{c.ours}); got.OK != c.ok {
				t.Errorf("ok is %v", got.OK)
			}
		})
	}
}

func TestReadAudit(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":             "",
		"no JSON":             "every promise held",
		"an audit of nothing": `{"ok":true,"checks":[]}`,
	} {
		t.Run(name+" is no audit", func(t *testing.T) {
			t.Parallel()
			if audit, err := readAudit([]byte(text)); err == nil {
				t.Errorf("read %+v", audit)
			}
		})
	}
}

// flawless is the evidence of a run in which all went well.
func flawless() evidence {
	plan := newPlan(7, 80, "test")
	seen := evidence{
		plan:     plan,
		programs: 5,
		before:   books{DuplicatesSuppressed: 3},
		tally:    &tally{},
		strikes:  strikes{blow: "killed", workerKills: 12, killsUnderWay: 12, apiKills: 1, restarted: time.Second},
	}
	seen.books = books{DuplicatesSuppressed: 20, Requests: 500}
	left := plan.Stock[poster]
	for i, charge := range plan.Charges {
		end := charge.Ends[0]
		if charge.isScarce() {
			if left == 0 {
				end = charge.Ends[1]
			} else {
				left--
			}
		}
		seen.records = append(seen.records, seen.books.perform(charge, fmt.Sprintf("ch_%d", i), end))
	}
	return seen
}

// perform is a charge that went well, and its traces in the books.
func (b *books) perform(charge Charge, id, end string) record {
	accepted := answer{
		Status: http.StatusAccepted, ContentType: "application/json",
		Location: "/v1/charges/" + id, Body: `{"id":"` + id + `"}`,
	}
	r := record{charge: charge, id: id, answers: []answer{accepted, accepted, accepted}, final: state{ID: id, Status: succeeded}}
	types := []string{"charge.requested.v1"}
	if end == succeeded {
		types = append(types, "payment.captured.v1", "charge.succeeded.v1", "merchant.notified.v1")
		b.Captures = append(b.Captures, capture{Reference: id, Amount: charge.Amount, Currency: strings.ToLower(charge.Currency)})
		b.Notifications = append(b.Notifications, notification{Reference: id, Type: "charge.succeeded", Deliveries: 2, Effects: 1})
	} else {
		r.final.Status = failed
		r.final.Failure = &failure{Code: end}
		types = append(types, "charge.failed.v1", "merchant.notified.v1")
		b.Notifications = append(b.Notifications, notification{Reference: id, Type: "charge.failed", Deliveries: 1, Effects: 1})
	}
	if charge.Reuse {
		r.reuse = []answer{{Status: http.StatusUnprocessableEntity, Body: `{"type":"/problems/idempotency-key-reused"}`}}
	}
	for i, name := range types {
		r.events = append(r.events, event{Version: i + 1, Type: name})
	}
	return r
}

func ending(e *evidence, end string) *record {
	return find(e, func(r record) bool { return r.final.end() == end })
}

func reused(e *evidence) *record {
	return find(e, func(r record) bool { return len(r.reuse) > 0 })
}

func find(e *evidence, wanted func(record) bool) *record {
	for i := range e.records {
		if wanted(e.records[i]) {
			return &e.records[i]
		}
	}
	panic("the plan has no such charge")
}
