package console

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

//go:embed flow.sql
var selectFlow string

// receivers are those of fulfillment, which the console does not link.
var receivers = []string{"fulfillment", "notification", "resend"}

// facts are what selectFlow returns.
type facts struct {
	At       time.Time
	Sessions map[string]int
	Events   []event // newest first
	Open     []message
	Followed []message
	Unread   int
	UnreadAt *time.Time `json:"unread_at"`
	Dead     int
	Aside    int
	Foreign  int
	Keys     int
	Appended int64
	Folded   int64
}

type event struct {
	StreamID   string `json:"stream_id"`
	Version    int
	Type       string
	RecordedAt time.Time `json:"recorded_at"`
	Intent     string
	About      string
}

// is reports whether the event has a type, whatever its version is.
func (e event) is(types ...string) bool {
	return slices.ContainsFunc(types, func(t string) bool { return strings.HasPrefix(e.Type, t+".v") })
}

type message struct {
	ID          int64
	Receiver    string
	OrderingKey string `json:"ordering_key"`
	Type        string
	Status      string
	Holder      string
	Attempts    int
	Deaths      int
	Waits       int
	ReceivedAt  time.Time  `json:"received_at"`
	DueAt       *time.Time `json:"due_at"` // nil: held back
}

// box is a part of the diagram.
type box struct {
	ID, Name, What string
	Count          string
	Unit           string
	Rate           float64 // per second
	P50, P99       time.Duration
	State          string // "", "warn" or "bad"
	Why            string
}

// Pace names the speed of the dots before the box.
func (b box) Pace() string {
	switch {
	case b.Rate >= 10:
		return "fast"
	case b.Rate >= 1:
		return "steady"
	case b.Rate > 0:
		return "slow"
	}
	return "still"
}

// process is a program as its database sessions show it.
type process struct {
	Kind, Name string
	Sessions   int
	Leases     int
	Gone       time.Duration // since its last session was seen; 0 while it has one
}

// lease is a message that a worker has claimed.
type lease struct {
	message

	Left time.Duration // of the lease; below zero: another worker may take the message over
	Dark bool          // the holder is gone
}

// takeover is a message whose holder died, and what became of it.
type takeover struct {
	ID             int64
	Charge, Holder string
	Next           string // the holder that took it over; "" while there is none
	Ended          bool
	After          time.Duration
}

// mark is an invariant with what was checked.
type mark struct {
	Name              string
	Checked, Violated int64
	Examples          []string
}

const (
	overdue  = time.Minute      // after which an open message that is due is a violation
	rateOver = 10 * time.Second // of rates
	darkFor  = 15 * time.Second // for which a program that is gone is shown
)

// boxes computes the diagram from the facts.
func boxes(f facts, programs []process) map[string]box {
	rate, times := rates(f), durations(f.Events)
	count := func(kind string) (n, dark int) {
		for _, p := range programs {
			if p.Kind == kind && p.Gone > 0 {
				dark++
			} else if p.Kind == kind {
				n++
			}
		}
		return n, dark
	}
	last := map[string]event{}
	for _, e := range slices.Backward(f.Events) {
		last[e.StreamID] = e
	}
	var pending, running, waiting, late int
	at := map[string]int{}
	for _, m := range f.Open {
		switch {
		case m.Status == "running":
			running++
		case m.Waits > 0:
			waiting++
		default:
			pending++
		}
		if m.DueAt != nil && f.At.Sub(*m.DueAt) > overdue {
			late++
		}
		e := last[m.OrderingKey]
		switch {
		case m.Receiver != receivers[0]:
			at["notification"]++
		case e.is("inventory.reserved", "payment.started", "payment.attempt_failed"):
			at["payment"]++
		case e.is("charge.requested"):
			at["inventory"]++
		}
	}
	apis, darkAPIs := count("api")
	workers, darkWorkers := count("worker")
	all := map[string]box{
		"api":          {Name: "api", What: "accepts requests", Count: number(apis), Unit: "processes", Rate: rate["accepted"]},
		"keys":         {Name: "keys", What: "one answer per key", Count: capped(f.Keys, 10000), Unit: "keys", Rate: rate["accepted"]},
		"events":       {Name: "events", What: "the ledger", Count: fmt.Sprint(f.Appended), Unit: "appended", Rate: rate["events"]},
		"outbox":       {Name: "outbox", What: "messages to send", Count: capped(f.Unread, 999), Unit: "unread", Rate: rate["messages"]},
		"watermill":    {Name: "Watermill", What: "carries messages", Count: number(workers), Unit: "workers", Rate: rate["messages"]},
		"inbox":        {Name: "inbox", What: "stores each once", Count: number(pending + running + waiting), Unit: "open", Rate: rate["messages"], P50: times["charge"].p50, P99: times["charge"].p99},
		"inventory":    {Name: "inventory", What: "reserves stock", Count: number(at["inventory"]), Unit: "in progress", Rate: rate["inventory"], P50: times["inventory"].p50, P99: times["inventory"].p99},
		"payment":      {Name: "payment", What: "captures money", Count: number(at["payment"]), Unit: "in progress", Rate: rate["payment"], P50: times["payment"].p50, P99: times["payment"].p99},
		"notification": {Name: "notification", What: "sends webhooks", Count: number(at["notification"]), Unit: "in progress", Rate: rate["notified"], P50: times["notification"].p50, P99: times["notification"].p99},
		"provider":     {Name: "provider", What: "outside: takes the money", Count: number(waiting), Unit: "waiting for it", Rate: rate["payment"] + rate["attempts failed"]},
		"merchant":     {Name: "merchant", What: "outside: gets webhooks", Count: decimal(rate["notified"]), Unit: "webhooks/s", Rate: rate["notified"]},
		"client":       {Name: "client", What: "outside: asks, asks again", Count: decimal(rate["accepted"]), Unit: "requests/s", Rate: rate["accepted"]},
	}
	warn := func(id, state, why string, yes bool) {
		if b := all[id]; yes && b.State != "bad" {
			b.State, b.Why = state, why
			all[id] = b
		}
	}
	warn("api", "bad", "no api has a session", apis == 0)
	warn("api", "warn", "an api has died", darkAPIs > 0)
	warn("watermill", "bad", "no worker has a session", workers == 0)
	warn("watermill", "warn", "a worker has died", darkWorkers > 0)
	warn("outbox", "warn", "the oldest has waited "+age(f.At, f.UnreadAt), f.UnreadAt != nil && f.At.Sub(*f.UnreadAt) > 2*time.Second)
	warn("inbox", "bad", fmt.Sprintf("%d overdue", late), late > 0)
	warn("inbox", "bad", plural(f.Dead, "dead letter"), f.Dead > 0)
	warn("provider", "warn", decimal(rate["attempts failed"])+" failed attempts/s", rate["attempts failed"] > 0)
	warn("provider", "warn", plural(waiting, "message")+" waiting for it", waiting > 0)
	warn("events", "warn", plural(f.Aside, "charge")+" set aside by the projector", f.Aside > 0)
	for id, b := range all {
		b.ID = id
		all[id] = b
	}
	return all
}

// rates are per second, over the last seconds or what the events cover of them.
func rates(f facts) map[string]float64 {
	counts := map[string]float64{}
	span := rateOver
	if n := len(f.Events); n >= 400 {
		span = min(span, max(f.At.Sub(f.Events[n-1].RecordedAt), time.Second))
	}
	for _, e := range f.Events {
		if f.At.Sub(e.RecordedAt) > span {
			continue
		}
		counts["events"]++
		for kind, types := range map[string][]string{
			"accepted":        {"charge.requested", "refund.requested", "charge.cancel_requested"},
			"messages":        {"charge.requested", "refund.requested", "charge.cancel_requested", "charge.succeeded", "charge.failed", "refund.succeeded", "refund.failed"},
			"inventory":       {"inventory.reserved", "inventory.rejected"},
			"payment":         {"payment.captured", "payment.declined", "refund.succeeded", "refund.failed"},
			"attempts failed": {"payment.attempt_failed", "refund.attempt_failed"},
			"notified":        {"merchant.notified"},
		} {
			if e.is(types...) {
				counts[kind]++
			}
		}
	}
	for kind := range counts {
		counts[kind] /= span.Seconds()
	}
	return counts
}

type quantiles struct{ p50, p99 time.Duration }

// durations are the times between two events of a charge, of the newest events.
func durations(events []event) map[string]quantiles {
	first, all := map[string]time.Time{}, map[string][]time.Duration{}
	for _, e := range slices.Backward(events) {
		for _, span := range []struct {
			name      string
			from, end []string
		}{
			{"charge", []string{"charge.requested"}, []string{"charge.succeeded", "charge.failed"}},
			{"inventory", []string{"charge.requested"}, []string{"inventory.reserved", "inventory.rejected"}},
			{"payment", []string{"inventory.reserved"}, []string{"payment.captured", "payment.declined"}},
			{"notification", []string{"charge.succeeded", "charge.failed"}, []string{"merchant.notified"}},
		} {
			key := span.name + e.StreamID
			if began, ok := first[key]; ok && e.is(span.end...) {
				all[span.name] = append(all[span.name], e.RecordedAt.Sub(began))
				delete(first, key)
			} else if e.is(span.from...) {
				first[key] = e.RecordedAt
			}
		}
	}
	found := map[string]quantiles{}
	for name, list := range all {
		slices.Sort(list)
		found[name] = quantiles{list[len(list)/2], list[len(list)*99/100]}
	}
	return found
}

// quick are the invariants that the facts show. The newest events are the end of each stream:
// a later event of a stream is never read without those between.
func quick(f facts) []mark {
	seen := map[string]map[string]int64{}
	note := func(name, what string) {
		if seen[name] == nil {
			seen[name] = map[string]int64{}
		}
		seen[name][what]++
	}
	next := map[string]int{} // the version that was read before, by stream
	for _, e := range f.Events {
		switch {
		case e.is("payment.captured"):
			note("one capture per charge", e.StreamID)
			note("one charge per captured payment intent", e.Intent)
		case e.is("charge.succeeded", "charge.failed"):
			note("one outcome per charge", e.StreamID)
		case e.is("refund.succeeded", "refund.failed"):
			note("one outcome per refund", e.About)
		case e.is("merchant.notified"):
			note("the merchant was notified once of every outcome", e.About)
		}
		note("streams have no gap", fmt.Sprintf("%s version %d", e.StreamID, e.Version))
		if later, ok := next[e.StreamID]; ok && later != e.Version+1 {
			note("streams have no gap", fmt.Sprintf("%s version %d", e.StreamID, e.Version))
		}
		next[e.StreamID] = e.Version
	}
	for _, m := range f.Open {
		if m.Status == "running" {
			note("one worker for each charge's message", m.Receiver+" of "+m.OrderingKey)
		}
	}
	var marks []mark
	for _, name := range []string{
		"streams have no gap", "one capture per charge", "one charge per captured payment intent", "one outcome per charge",
		"one outcome per refund", "the merchant was notified once of every outcome", "one worker for each charge's message",
	} {
		m := mark{Name: name, Checked: int64(len(seen[name]))}
		for _, what := range slices.Sorted(maps.Keys(seen[name])) {
			if n := seen[name][what]; n > 1 {
				m.Violated++
				m.Examples = append(m.Examples, fmt.Sprintf("%s: %d times", what, n))
			}
		}
		marks = append(marks, m)
	}
	late := mark{Name: "no message is overdue", Checked: int64(len(f.Open))}
	for _, m := range f.Open {
		if m.DueAt != nil && f.At.Sub(*m.DueAt) > overdue {
			late.Violated++
			late.Examples = append(late.Examples, fmt.Sprintf("message %d of %s", m.ID, m.OrderingKey))
		}
	}
	for _, c := range []struct {
		name string
		n    int
	}{{"no message is a dead letter", f.Dead}, {"nothing is in quarantine", f.Foreign}} {
		marks = append(marks, mark{Name: c.name, Checked: int64(len(f.Open) + c.n), Violated: int64(c.n)})
	}
	return append(marks, late)
}

// programsOf are the programs that have sessions and those that lost them lately. seen is when
// each was last seen, and is brought up to date.
func programsOf(f facts, seen map[string]time.Time) []process {
	for name := range f.Sessions {
		seen[name] = f.At
	}
	var all []process
	for name, at := range seen {
		kind, instance, _ := strings.Cut(strings.TrimPrefix(name, "payonce-"), " ")
		gone := f.At.Sub(at)
		switch {
		case gone > darkFor:
			delete(seen, name)
			continue
		case kind != "api" && kind != "worker":
			continue
		}
		p := process{Kind: kind, Name: instance, Sessions: f.Sessions[name], Gone: gone}
		for _, m := range f.Open {
			if m.Status == "running" && m.Holder == instance && kind == "worker" {
				p.Leases++
			}
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b process) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return all
}
