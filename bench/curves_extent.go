package main

import "time"

// extent is how far the axes go.
type extent struct {
	Warm     time.Duration `json:"warm_ns"`
	Measured time.Duration `json:"measured_ns"` // of a rate
	Unit     time.Duration `json:"unit_ns"`     // of pgbench, each time

	Tables       []int           `json:"tables"`           // charges in them
	Audited      int             `json:"audited"`          // more charges are counted, and not audited
	Backlogs     []int           `json:"backlogs"`         // charges that wait
	InFlight     []int           `json:"in_flight"`        // charges
	Latencies    []time.Duration `json:"latencies_ns"`     // of the provider
	SlowInFlight []int           `json:"in_flight_slowed"` // charges, at each latency
	Expired      int             `json:"expired"`          // rows
	Turn         time.Duration   `json:"turn_ns"`          // with the janitor, and then without
	Slices       int             `json:"slices"`           // in which memory is looked at
	Slice        time.Duration   `json:"slice_ns"`
}

// long is for a quiet machine, and takes some twenty minutes.
func long() extent {
	return extent{
		Warm: 3 * time.Second, Measured: 5 * time.Second, Unit: time.Second,
		Tables:       []int{10_000, 100_000, 1_000_000},
		Audited:      20_000,
		Backlogs:     []int{0, 1_000, 10_000, 100_000},
		InFlight:     []int{1, 4, 16, 64, 256, 512},
		Latencies:    []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond},
		SlowInFlight: []int{64, 256, 512},
		Expired:      1_000_000,
		Turn:         5 * time.Second,
		Slices:       10,
		Slice:        10 * time.Second,
	}
}

// brief is for checking that everything is done once.
func brief() extent {
	return extent{
		Measured:     300 * time.Millisecond,
		Tables:       []int{50},
		Audited:      200,
		Backlogs:     []int{0, 40},
		InFlight:     []int{8},
		Latencies:    []time.Duration{20 * time.Millisecond},
		SlowInFlight: []int{8},
		Expired:      2_000,
		Turn:         200 * time.Millisecond,
		Slices:       2,
		Slice:        200 * time.Millisecond,
	}
}

func (e extent) sizes() sizes {
	return sizes{warm: e.Warm, measured: e.Measured, unit: e.Unit}
}
