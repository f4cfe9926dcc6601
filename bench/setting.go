package main

import (
	"cmp"
	"fmt"
	"strings"
)

// setting is how a subject is measured: the load, and the programs that carry it.
type setting struct {
	InFlight  int  `json:"in_flight"` // charges that were accepted and are not finished
	Slots     int  `json:"slots"`     // WORKER_CONCURRENCY; 0: the worker's default
	Merchants int  `json:"merchants"` // of equal size
	APIs      int  `json:"apis"`      // api processes that share the load
	Base      bool `json:"base"`      // the programs of the other work tree
}

// inFlight is how many charges are in flight unless a setting says otherwise.
const inFlight = 256

func (s setting) orDefault() setting {
	s.InFlight, s.Merchants, s.APIs = cmp.Or(s.InFlight, inFlight), cmp.Or(s.Merchants, 1), cmp.Or(s.APIs, 1)
	return s
}

// over returns s with the fields that fixed sets.
func (s setting) over(fixed setting) setting {
	s.InFlight, s.Slots = cmp.Or(fixed.InFlight, s.InFlight), cmp.Or(fixed.Slots, s.Slots)
	s.Merchants, s.APIs = cmp.Or(fixed.Merchants, s.Merchants), cmp.Or(fixed.APIs, s.APIs)
	return s
}

// String names what differs from the default.
func (s setting) String() string {
	var parts []string
	for _, part := range []struct {
		name          string
		value, normal int
	}{
		{"in-flight", s.InFlight, inFlight}, {"slots", s.Slots, 0}, {"merchants", s.Merchants, 1}, {"apis", s.APIs, 1},
	} {
		if part.value != part.normal {
			parts = append(parts, fmt.Sprintf("%s=%d", part.name, part.value))
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
