package console

import (
	"cmp"
	_ "embed"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/console/lanes"
)

//go:embed flow.sql
var selectFlow string

// facts are what selectFlow returns, with durations in nanoseconds.
type facts struct {
	At        time.Time
	Sessions  map[string]int
	Events    []event        // newest first
	Leases    []lease        // the first to end first
	Takeovers []takeover     // newest first
	Followed  []int64        // messages of both
	AtStep    map[string]int `json:"at_step"`
	Rates     map[string]float64
	Times     map[string][]time.Duration // p50 and p99 of a charge and of its steps
	Quick     []audit.Check

	Open, Waiting, Dead, Unread, Aside, Keys, Appended int

	Waited time.Duration // the oldest unread message
}

type event struct {
	Charge  string
	Version int
	Type    string
	At      time.Time
}

// lease is a message that a worker has claimed.
type lease struct {
	Charge, Type, Holder string
	EndsIn               time.Duration `json:"ends_in"` // below zero: another worker may take the message over
	Dark                 bool          // the holder is gone
}

// takeover is the end of a lease whose message another worker has claimed.
type takeover struct {
	Charge, Holder, Next string
	At                   time.Time
}

// box is a part of the diagram.
type box struct {
	ID, Name, What string
	Count          int
	Unit           string
	Rate           float64 // per second
	Times          []time.Duration
	State, Why     string // "", "warn" or "bad"
}

// process is a program as its database sessions show it.
type process struct {
	Kind, Name string
	Sessions   int
	Gone       time.Duration // since its last session was seen; 0 while it has one
}

const darkFor = 15 * time.Second // for which a program that is gone is shown

// programsOf are the programs that have sessions and those that lost them lately. seen is when
// each was last seen, and is brought up to date.
func programsOf(f facts, seen map[string]time.Time) (all []process) {
	for name := range f.Sessions {
		seen[name] = f.At
	}
	for name, at := range seen {
		kind, instance, _ := strings.Cut(strings.TrimPrefix(name, "payonce-"), " ")
		if gone := f.At.Sub(at); gone > darkFor {
			delete(seen, name)
		} else if kind == "api" || kind == "worker" {
			all = append(all, process{kind, instance, f.Sessions[name], gone})
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
	r, all := f.Rates, map[string]box{}
	for _, b := range []box{
		{ID: "client", What: "outside: asks, asks again", Count: int(r["accepted"]), Unit: "requests/s"},
		{ID: "api", What: "accepts requests", Count: alive["api"], Unit: "processes", Rate: r["accepted"]},
		{ID: "keys", What: "one answer per key", Count: f.Keys, Unit: "keys", Rate: r["accepted"]},
		{ID: "events", What: "the ledger", Count: f.Appended, Unit: "appended", Rate: r["events"]},
		{ID: "outbox", What: "messages to send", Count: f.Unread, Unit: "unread", Rate: r["messages"]},
		{ID: "watermill", Name: "Watermill", What: "carries messages", Count: alive["worker"], Unit: "workers", Rate: r["messages"]},
		{ID: "inbox", What: "stores each once", Count: f.Open, Unit: "open", Rate: r["messages"]},
		{ID: "inventory", What: "reserves stock", Count: f.AtStep["inventory"], Unit: "in progress", Rate: r["inventory"]},
		{ID: "payment", What: "captures money", Count: f.AtStep["payment"], Unit: "in progress", Rate: r["payment"]},
		{ID: "notification", What: "sends webhooks", Count: f.AtStep["notification"], Unit: "in progress", Rate: r["notified"]},
		{ID: "provider", What: "outside: takes money", Count: f.Waiting, Unit: "waiting for it", Rate: r["payment"] + r["attempts"]},
		{ID: "merchant", What: "outside: gets webhooks", Count: int(r["notified"]), Unit: "webhooks/s"},
	} {
		b.Name, b.Times = cmp.Or(b.Name, b.ID), f.Times[b.ID]
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
		{f.Waited > 2*time.Second, "outbox", "warn", "the oldest has waited " + lanes.Span(f.Waited)},
		{f.Dead > 0, "inbox", "bad", lanes.Plural(f.Dead, "dead letter")},
		{r["attempts"] > 0, "provider", "warn", fmt.Sprintf("%.1f failed attempts/s", r["attempts"])},
		{f.Waiting > 0, "provider", "warn", lanes.Plural(f.Waiting, "message") + " waiting for it"},
		{f.Aside > 0, "events", "warn", lanes.Plural(f.Aside, "charge") + " set aside by the projector"},
	} {
		if b := all[w.id]; w.yes && b.State != "bad" {
			b.State, b.Why = w.state, w.why
			all[w.id] = b
		}
	}
	return all
}

// flow is the first state of the Flow page.
func (c *Console) flow(r *http.Request) (any, error) {
	if t := c.live.current(r.Context()); t != nil {
		return t, nil
	}
	return nil, errNoDatabase
}
