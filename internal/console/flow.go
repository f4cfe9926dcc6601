package console

import (
	"cmp"
	_ "embed"
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
	Rates    map[string]float64   // per second
	Times    map[string][]float64 // p50 and p99 in seconds, of a charge and of its steps
	Quick    []mark
	Unread   int
	Waited   float64 // seconds, of the oldest unread message
	Aside    int
	Keys     int
	Appended int
}

type event struct {
	StreamID   string `json:"stream_id"`
	Version    int
	Type       string
	RecordedAt time.Time `json:"recorded_at"`
}

type message struct {
	ID          int64
	Receiver    string
	OrderingKey string `json:"ordering_key"`
	Type        string
	Status      string
	Holder      string
	Waits       int
	DueAt       *time.Time `json:"due_at"` // nil: held back
	Last        string     // the type of the last event of its charge
}

// mark is an invariant with what was checked.
type mark struct {
	Name              string
	Checked, Violated int64
	Examples          []string
}

// box is a part of the diagram.
type box struct {
	ID, Name, What string
	Count, Unit    string
	Rate           float64 // per second
	P50, P99       time.Duration
	State, Why     string // "", "warn" or "bad"
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
	Kind, Name       string
	Sessions, Leases int
	Gone             time.Duration // since its last session was seen; 0 while it has one
}

const darkFor = 15 * time.Second // for which a program that is gone is shown

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
		if gone > darkFor {
			delete(seen, name)
		} else if kind == "api" || kind == "worker" {
			p := process{Kind: kind, Name: instance, Sessions: f.Sessions[name], Gone: gone}
			for _, m := range f.Open {
				if m.Status == "running" && m.Holder == instance && kind == "worker" {
					p.Leases++
				}
			}
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b process) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return all
}

// boxes are the diagram.
func boxes(f facts, programs []process) map[string]box {
	alive, dark := map[string]int{}, map[string]int{}
	for _, p := range programs {
		if p.Gone > 0 {
			dark[p.Kind]++
		} else {
			alive[p.Kind]++
		}
	}
	at, waiting := map[string]int{}, 0
	for _, m := range f.Open {
		name, _, _ := strings.Cut(m.Last, ".v")
		switch {
		case m.Receiver != receivers[0]:
			at["notification"]++
		case name == "charge.requested":
			at["inventory"]++
		case strings.HasPrefix(name, "inventory.") || strings.HasPrefix(name, "payment."):
			at["payment"]++
		}
		if m.Waits > 0 {
			waiting++
		}
	}
	r, all := f.Rates, map[string]box{}
	for _, b := range []box{
		{ID: "client", What: "outside: asks, asks again", Count: decimal(r["accepted"]), Unit: "requests/s"},
		{ID: "api", What: "accepts requests", Count: number(alive["api"]), Unit: "processes", Rate: r["accepted"]},
		{ID: "keys", What: "one answer per key", Count: capped(f.Keys, 10000), Unit: "keys", Rate: r["accepted"]},
		{ID: "events", What: "the ledger", Count: number(f.Appended), Unit: "appended", Rate: r["events"]},
		{ID: "outbox", What: "messages to send", Count: capped(f.Unread, 999), Unit: "unread", Rate: r["messages"]},
		{ID: "watermill", Name: "Watermill", What: "carries messages", Count: number(alive["worker"]), Unit: "workers", Rate: r["messages"]},
		{ID: "inbox", What: "stores each once", Count: number(len(f.Open)), Unit: "open", Rate: r["messages"]},
		{ID: "inventory", What: "reserves stock", Count: number(at["inventory"]), Unit: "in progress", Rate: r["inventory"]},
		{ID: "payment", What: "captures money", Count: number(at["payment"]), Unit: "in progress", Rate: r["payment"]},
		{ID: "notification", What: "sends webhooks", Count: number(at["notification"]), Unit: "in progress", Rate: r["notified"]},
		{ID: "provider", What: "outside: takes money", Count: number(waiting), Unit: "waiting for it", Rate: r["payment"] + r["attempts"]},
		{ID: "merchant", What: "outside: gets webhooks", Count: decimal(r["notified"]), Unit: "webhooks/s"},
	} {
		b.Name = cmp.Or(b.Name, b.ID)
		if t := f.Times[b.ID]; len(t) == 2 {
			b.P50, b.P99 = time.Duration(t[0]*1e9), time.Duration(t[1]*1e9)
		}
		all[b.ID] = b
	}
	for _, w := range []struct {
		yes            bool
		id, state, why string
	}{
		{alive["api"] == 0, "api", "bad", "no api has a session"},
		{dark["api"] > 0, "api", "warn", "an api has died"},
		{alive["worker"] == 0, "watermill", "bad", "no worker has a session"},
		{dark["worker"] > 0, "watermill", "warn", "a worker has died"},
		{f.Waited > 2, "outbox", "warn", "the oldest has waited " + short(time.Duration(f.Waited*1e9))},
		{f.dead() > 0, "inbox", "bad", plural(f.dead(), "dead letter")},
		{r["attempts"] > 0, "provider", "warn", decimal(r["attempts"]) + " failed attempts/s"},
		{waiting > 0, "provider", "warn", plural(waiting, "message") + " waiting for it"},
		{f.Aside > 0, "events", "warn", plural(f.Aside, "charge") + " set aside by the projector"},
	} {
		if b := all[w.id]; w.yes && b.State != "bad" {
			b.State, b.Why = w.state, w.why
			all[w.id] = b
		}
	}
	return all
}

// dead is how many dead letters there are.
func (f facts) dead() int {
	i := slices.IndexFunc(f.Quick, func(m mark) bool { return m.Name == "no message is a dead letter" })
	if i < 0 {
		return 0
	}
	return int(f.Quick[i].Violated)
}

// Dead is for templates.
func (t *tick) Dead() int { return t.dead() }
