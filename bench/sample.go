package main

import "time"

// window is what was seen while it was measured.
type window struct {
	Done    int           `json:"done"`
	Seconds float64       `json:"seconds"`
	P50     time.Duration `json:"p50"`
	P99     time.Duration `json:"p99"`
	Used    usage         `json:"used"`
	Total   int           `json:"total"` // done, warm-up and drain included
}

// Sample is what one measurement came to. What was not measured is zero.
type Sample struct {
	Round     int     `json:"round"`
	Unit      float64 `json:"unit"`  // pgbench before and after it, inserts a second
	Done      int     `json:"done"`  // while it was measured
	Total     int     `json:"total"` // warm-up and drain included
	PerSecond float64 `json:"per_second"`
	Ideal     float64 `json:"ideal_per_second,omitempty"` // if only a slow provider took time
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`

	// For each that was done.
	Writes       float64 `json:"writes"`       // transactions that wrote
	Transactions float64 `json:"transactions"` // all of them, reads too
	Flushes      float64 `json:"flushes"`      // of the WAL
	LogBytes     float64 `json:"log_bytes"`
	Statements   float64 `json:"statements,omitempty"` // with --statements
	ProgramCPU   float64 `json:"program_cpu_ms"`
	DatabaseCPU  float64 `json:"database_cpu_ms"`

	API    Resident `json:"api,omitzero"`
	Worker Resident `json:"worker,omitzero"` // or the one program that does both
}

// newSample divides. Processor time is that of the window, and the server's counters
// are those of everything, warm-up and drain included.
func newSample(w window, c counters) Sample {
	s := Sample{
		Done: w.Done, Total: w.Total,
		P50: 1000 * w.P50.Seconds(), P99: 1000 * w.P99.Seconds(),
	}
	if w.Done > 0 && w.Seconds > 0 {
		s.PerSecond = float64(w.Done) / w.Seconds
		s.ProgramCPU = 1000 * w.Used.Programs.Seconds() / float64(w.Done)
		s.DatabaseCPU = 1000 * w.Used.Database.Seconds() / float64(w.Done)
	}
	if w.Total > 0 {
		all := float64(w.Total)
		s.Writes, s.Transactions = float64(c.Writes)/all, float64(c.Transactions)/all
		s.Flushes, s.LogBytes = float64(c.Flushes)/all, float64(c.LogBytes)/all
		s.Statements = float64(c.Statements) / all
	}
	return s
}
