package e2e_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testrun"
)

func TestPointNames(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"":                                     "ping",
		"-- ping":                              "ping",
		"begin isolation level read committed": "begin",
		"set role payonce_api":                 "set role",
		"insert into ledger_events\n (event_id) values ($1)":                        "insert ledger_events",
		"update stock\n set sold = sold + 1 from x":                                 "update stock",
		"update only stock set a = 1":                                               "update stock",
		"delete from inbox i using due":                                             "delete inbox",
		"select version from ledger_events where type = 'a from b'":                 "select version from ledger_events",
		"select set_config('a', 'from x', true)":                                    "select set_config",
		"select name from unnest($1::text[]) as s(name)":                            "select name",
		"select c.now from (select clock_timestamp() as now) as c left join keys k": "select now from keys",
		"select exists (select from events e where e.a > p.a) from projections p":   "select exists from projections",
		"select a is distinct from b from t":                                        "select a from t",
		"with due as (select id from inbox) update inbox i set a = 1 from due":      "due: update inbox",
		"with recursive ops as (select 1 from a) select op from ops":                "ops: select op from ops",
		"WITH position AS MATERIALIZED (select 1) SELECT x FROM outbox o":           "position: select x from outbox",
		"with a as (insert into x values (1) returning id) insert into y select 1":  "a: insert y",
		"/* from nowhere */ select \"offset\" from \"outbox\" -- from elsewhere":    "select offset from outbox",
	} {
		testrun.Same(t, sql, want, statementName(sql))
	}
	testrun.Same(t, "batch", "a, b ×3, a", batchName([]string{"a", "b", "b", "b", "a"}))
	testrun.Same(t, "request", "POST /v1/payment_intents/:id/confirm", requestName("POST", "/v1/payment_intents/pi_3Mt/confirm"))
	testrun.Same(t, "request", "POST /v1/payment_intents/:id/confirm", requestName("POST", "/v1/payment_intents/pi_KJNLSUNBGIG/confirm"))
	testrun.Same(t, "request", "POST /v1/payment_intents", requestName("POST", "/v1/payment_intents"))
}

// life feeds a plan with round trips, as a proxy does, and returns what came of each.
func life(p *crashPlan, trips ...*failpoint.Trip) (faults []failpoint.Fault) {
	for _, t := range trips {
		fault := p.Before(t)
		if fault == failpoint.None {
			fault = p.After(t)
		}
		faults = append(faults, fault)
	}
	return faults
}

// TestCrashPlan_numbersPoints: what another connection of the pool did is no point, a poll is one
// when it finds something, and so is its transaction.
func TestCrashPlan_numbersPoints(t *testing.T) {
	t.Parallel()
	const insert, poll = "insert into effects values ($1)", "select id from effects"
	a, b := &failpoint.Session{Settings: "a"}, &failpoint.Session{Settings: "b"}
	p := newCrashPlan(crashAim{}, knownTrips{polls: map[string]bool{"select id from effects": true}}, nil)
	for _, s := range []*failpoint.Session{a, {Settings: "a"}, b} {
		life(p, &failpoint.Trip{Session: s, Connects: true, Idle: true}, &failpoint.Trip{Session: s, Prepared: []string{insert}, Idle: true},
			&failpoint.Trip{Session: s, Executed: []string{insert, insert}, Rows: 1, Idle: true})
	}
	for _, found := range []int{0, 1, 0} {
		life(p, &failpoint.Trip{Session: a, Executed: []string{"begin"}, Opens: true}, &failpoint.Trip{Session: a, Executed: []string{poll}, Rows: found},
			&failpoint.Trip{Session: a, Executed: []string{"rollback"}, Closes: true, Idle: true})
	}
	life(p, &failpoint.Trip{Session: b, Executed: []string{"commit"}, Closes: true, Rows: 1, Idle: true})
	var seen []string
	for _, point := range p.seen() {
		seen = append(seen, point.String())
	}
	testrun.Same(t, "points", []string{
		"connect", "prepare insert effects", "insert effects ×2", "insert effects ×2#2", "connect (session 2)", "insert effects ×2#3",
		"begin", "select id from effects", "rollback",
	}, seen)
}

// TestCrashPlan_firesOnceAtItsAim sends the same four round trips to each plan.
func TestCrashPlan_firesOnceAtItsAim(t *testing.T) {
	t.Parallel()
	first := func(name string) crashPoint { return crashPoint{name, 1} }
	for name, test := range map[string]struct {
		aim  crashAim
		at   int // the round trip that gets the fault; -1 for none
		want failpoint.Fault
	}{
		"the k-th of a name":                           {crashAim{point: crashPoint{"insert a", 2}, side: failpoint.Before, fault: faultKill}, 2, failpoint.Cut},
		"after that many points":                       {crashAim{nth: 2, fault: failpoint.Cut}, 2, failpoint.Cut},
		"a poll, when what it would find is there":     {crashAim{point: first("select b"), side: failpoint.Before, fault: faultDeadlock, behind: first("insert a")}, 1, faultDeadlock},
		"a paused round trip continues where it was":   {crashAim{point: first("insert a"), side: failpoint.After, fault: faultPause}, -1, failpoint.None},
		"a name that does not come up leaves it alone": {crashAim{point: first("insert c"), side: failpoint.After, fault: faultKill}, -2, failpoint.None},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var injected []failpoint.Fault
			p := newCrashPlan(test.aim, knownTrips{polls: map[string]bool{"select b": true}}, func(f failpoint.Fault) { injected = append(injected, f) })
			s := &failpoint.Session{}
			var trips []*failpoint.Trip
			for _, sql := range []string{"insert into a", "select b", "insert into a", "insert into a"} {
				trips = append(trips, &failpoint.Trip{Session: s, Executed: []string{sql}, Rows: strings.Count(sql, "insert"), Idle: true})
			}
			faults := life(p, trips...)
			want := make([]failpoint.Fault, len(trips))
			if test.at >= 0 {
				want[test.at] = test.want
			}
			testrun.Same(t, "faults", want, faults)
			if fires := test.at > -2; p.fired() != fires || fires && !slices.Equal(injected, []failpoint.Fault{test.aim.fault}) {
				t.Errorf("fired is %v, injected %q", p.fired(), injected)
			}
		})
	}
}

func TestGate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		side   failpoint.Side
		fault  failpoint.Fault
		status int // 0 where the connection ends
		calls  int64
	}{
		{name: "nothing is planned", status: http.StatusCreated, calls: 1},
		{"killed before", failpoint.Before, faultKill, 0, 0},
		{"cut after", failpoint.After, failpoint.Cut, 0, 1},
		{"paused", failpoint.After, faultPause, http.StatusCreated, 1},
		{"broken before", failpoint.Before, faultBroken, http.StatusInternalServerError, 0},
		{"broken after", failpoint.After, faultBroken, http.StatusInternalServerError, 1},
		{"unavailable after", failpoint.After, faultUnavailable, http.StatusServiceUnavailable, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				w.Header().Set("X-Outside", r.Header.Get("Idempotency-Key"))
				w.WriteHeader(http.StatusCreated)
				_, _ = io.Copy(w, r.Body)
			}))
			defer outside.Close()
			plan := newCrashPlan(crashAim{point: crashPoint{"POST /v1/refunds/:id", 1}, side: test.side, fault: test.fault}, knownTrips{}, nil)
			gate, err := newGate(t.Context(), outside.URL, func() gateHook { return plan.call })
			must(t, err)
			defer gate.close()

			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gate.url()+"/v1/refunds/re_1", strings.NewReader("money"))
			must(t, err)
			request.Header.Set("Idempotency-Key", "k1")
			transport := &http.Transport{DisableKeepAlives: true}
			response, err := transport.RoundTrip(request)
			status := 0
			if err == nil {
				defer func() { _ = response.Body.Close() }()
				status = response.StatusCode
				body, _ := io.ReadAll(response.Body)
				if status == http.StatusCreated && (string(body) != "money" || response.Header.Get("X-Outside") != "k1") {
					t.Errorf("forwarded %q and %q", body, response.Header)
				}
			}
			if status != test.status || calls.Load() != test.calls || plan.fired() != (test.side != "") {
				t.Errorf("answered %d (%v) after %d calls, fired %v", status, err, calls.Load(), plan.fired())
			}
			if points := plan.seen(); len(points) != 1 || points[0].String() != "POST /v1/refunds/:id" || points[0].kind != httpTrip {
				t.Errorf("points: %+v", points)
			}
		})
	}
}
