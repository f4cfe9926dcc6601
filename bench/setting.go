package main

import (
	"fmt"
	"strings"
)

// setting is how a subject is measured: the load, the programs and the tables.
type setting struct {
	InFlight  int  `json:"in_flight"` // charges that were accepted and are not finished
	Slots     int  `json:"slots"`     // WORKER_CONCURRENCY, River's workers; 0: the program's default
	Merchants int  `json:"merchants"` // of equal size
	APIs      int  `json:"apis"`      // api processes that share the load
	Workers   int  `json:"workers"`   // worker processes
	Stored    int  `json:"stored"`    // charges in the tables before the measurement
	Waiting   int  `json:"waiting"`   // charges accepted before a worker starts; 0: as many as the sizes say
	Latency   int  `json:"latency"`   // of each answer of the provider, in milliseconds
	Base      bool `json:"base"`      // the programs of the other work tree
}

// parameter is a number of a setting, and the option that gives it values.
type parameter struct {
	name   string
	normal int // unless the subject or the option says otherwise
	field  func(*setting) *int
	values func(runCmd) []int
}

var parameters = []parameter{
	{"in-flight", 256, func(s *setting) *int { return &s.InFlight }, func(c runCmd) []int { return c.InFlight }},
	{"slots", 0, func(s *setting) *int { return &s.Slots }, func(c runCmd) []int { return c.Slots }},
	{"merchants", 1, func(s *setting) *int { return &s.Merchants }, func(c runCmd) []int { return c.Merchants }},
	{"apis", 1, func(s *setting) *int { return &s.APIs }, func(c runCmd) []int { return c.APIs }},
	{"workers", 1, func(s *setting) *int { return &s.Workers }, func(c runCmd) []int { return c.Workers }},
	{"stored", 0, func(s *setting) *int { return &s.Stored }, func(c runCmd) []int { return c.Stored }},
	{"waiting", 0, func(s *setting) *int { return &s.Waiting }, func(c runCmd) []int { return c.Waiting }},
	{"latency", 0, func(s *setting) *int { return &s.Latency }, func(c runCmd) []int { return c.Latency }},
}

// orElse returns s with its zero fields taken from other.
func (s setting) orElse(other setting) setting {
	for _, p := range parameters {
		if own := p.field(&s); *own == 0 {
			*own = *p.field(&other)
		}
	}
	s.Base = s.Base || other.Base
	return s
}

// String names what differs from the default.
func (s setting) String() string {
	var parts []string
	for _, p := range parameters {
		if value := *p.field(&s); value != p.normal {
			parts = append(parts, fmt.Sprintf("%s=%d", p.name, value))
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
	for _, p := range parameters {
		values := p.values(c)
		if len(values) == 0 {
			values = []int{p.normal}
		}
		var next []setting
		for _, s := range all {
			for _, value := range values {
				*p.field(&s) = value
				next = append(next, s)
			}
		}
		all = next
	}
	return all
}
