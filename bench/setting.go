package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// setting is how a subject is measured: the load, the programs and the tables.
type setting struct {
	InFlight  int  `json:"in_flight"` // charges that were accepted and are not finished
	Slots     int  `json:"slots"`     // WORKER_CONCURRENCY, River's workers; 0: the program's default
	Merchants int  `json:"merchants"` // of equal size
	APIs      int  `json:"apis"`      // api processes that share the load
	Base      bool `json:"base"`      // the programs of the other work tree

	Stored   int           `json:"stored,omitempty"`   // charges in the tables before the measurement
	Waiting  int           `json:"waiting,omitempty"`  // charges accepted before a worker starts
	Latency  time.Duration `json:"latency,omitempty"`  // of each answer of the provider
	Measured time.Duration `json:"measured,omitempty"` // of a rate; 0: as long as --for
}

// inFlight is how many charges are in flight unless a setting says otherwise.
const inFlight = 256

func (s setting) orDefault() setting {
	return s.orElse(setting{InFlight: inFlight, Merchants: 1, APIs: 1})
}

// orElse returns s with its zero fields taken from other.
func (s setting) orElse(other setting) setting {
	return setting{
		InFlight: cmp.Or(s.InFlight, other.InFlight), Slots: cmp.Or(s.Slots, other.Slots),
		Merchants: cmp.Or(s.Merchants, other.Merchants), APIs: cmp.Or(s.APIs, other.APIs), Base: s.Base || other.Base,
		Stored: cmp.Or(s.Stored, other.Stored), Waiting: cmp.Or(s.Waiting, other.Waiting),
		Latency: cmp.Or(s.Latency, other.Latency), Measured: cmp.Or(s.Measured, other.Measured),
	}
}

// small returns s for --quick, which checks that everything is done once.
func (s setting) small() setting {
	s.InFlight, s.Slots = min(s.InFlight, 8), min(s.Slots, 8)
	s.Stored, s.Waiting = min(s.Stored, 50), min(s.Waiting, 40)
	s.Latency, s.Measured = min(s.Latency, 20*time.Millisecond), min(s.Measured, 300*time.Millisecond)
	return s
}

// String names what differs from the default.
func (s setting) String() string {
	var parts []string
	for _, part := range []struct {
		name          string
		value, normal any
	}{
		{"in-flight", s.InFlight, inFlight},
		{"slots", s.Slots, 0},
		{"merchants", s.Merchants, 1},
		{"apis", s.APIs, 1},
		{"stored", s.Stored, 0},
		{"waiting", s.Waiting, 0},
		{"latency", s.Latency, time.Duration(0)},
		{"for", s.Measured, time.Duration(0)},
	} {
		if part.value != part.normal {
			parts = append(parts, fmt.Sprintf("%s=%v", part.name, part.value))
		}
	}
	if s.Base {
		parts = append(parts, "base")
	}
	return strings.Join(parts, " ")
}

// settings lists every combination of the options' values, the first values first.
func (c runCmd) settings() []setting {
	all := []setting{{}}
	for _, option := range []struct {
		values []int
		field  func(*setting) *int
	}{
		{c.InFlight, func(s *setting) *int { return &s.InFlight }},
		{c.Slots, func(s *setting) *int { return &s.Slots }},
		{c.Merchants, func(s *setting) *int { return &s.Merchants }},
		{c.APIs, func(s *setting) *int { return &s.APIs }},
	} {
		var next []setting
		for _, s := range all {
			for _, value := range option.values {
				*option.field(&s) = value
				next = append(next, s)
			}
		}
		if len(next) > 0 {
			all = next
		}
	}
	for i := range all {
		all[i] = all[i].orDefault()
	}
	return all
}
