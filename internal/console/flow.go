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
)

//go:embed flow.sql
var selectFlow string

// facts are what selectFlow returns, with durations in nanoseconds.
type facts struct {
	At        time.Time
	Sessions  map[string]int
	Leases    []lease        // the first to end first
	Takeovers []takeover     // newest first
	Followed  []int64        // messages of both
	AtStep    map[string]int `json:"at_step"`
	Rates     map[string]float64
	Times     map[string][]time.Duration // p50 and p99 of a charge and of its steps
	Quick     []audit.Check

	Recent, Open, Waiting, Dead, Unread, Keys, Appended int // Recent are the newest events, which the rest is about

	Waited time.Duration // the oldest unread message
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

// wrong is what is wrong with a part of the diagram.
type wrong struct{ State, Why string } // State is "warn" or "bad"

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

// judge says how many programs of a kind are alive, and what is wrong, by the part of the diagram.
func judge(f facts, programs []process) (alive map[string]int, all map[string]wrong) {
	alive, all = map[string]int{}, map[string]wrong{}
	dark, attempts := map[string]int{}, f.Rates["attempts"]
	counts := map[bool]map[string]int{false: alive, true: dark}
	for _, p := range programs {
		counts[p.Gone > 0][p.Kind]++
	}
	for _, w := range []struct {
		yes            bool
		id, state, why string
	}{
		{alive["api"] == 0, "api", "bad", "no api has a session"},
		{dark["api"] > 0, "api", "warn", "an api has died"},
		{alive["worker"] == 0, "watermill", "bad", "no worker has a session"},
		{dark["worker"] > 0, "watermill", "warn", "a worker has died"},
		{f.Waited > 2*time.Second, "outbox", "warn", "the oldest has waited " + f.Waited.Round(time.Second).String()},
		{f.Dead > 0, "inbox", "bad", plural(f.Dead, "dead letter")},
		{attempts > 0, "provider", "warn", fmt.Sprintf("%.1f failed attempts/s", attempts)},
		{f.Waiting > 0, "provider", "warn", plural(f.Waiting, "message") + " waiting for it"},
	} {
		if w.yes && all[w.id].State != "bad" {
			all[w.id] = wrong{w.state, w.why}
		}
	}
	return alive, all
}

// flow is the page of the tick, which every page has.
func (c *Console) flow(*http.Request) (any, error) { return nil, nil }
