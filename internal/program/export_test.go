package program

import "context"

// What tests reach past its constants.
var (
	Misspelled  = func(environ map[string]string) error { return misspelled(environ, Known()) }
	Gone        = gone
	ServeWithin = serve
	Bounded     = bounded
	Uses        = uses
)

// Pings returns how many of so many probes ping, or try to.
func (r *Readiness) Pings(ctx context.Context, probes int, used bool) int64 {
	tried := func() int64 { return r.pool.Stat().AcquireCount() + r.pool.Stat().CanceledAcquireCount() }
	before, probe := tried(), r.probes(func() bool { return used })
	for range probes {
		probe(ctx)
	}
	return tried() - before
}

// Known are the settings of all programs.
func Known() (names []string) {
	for _, s := range settingsOf("") {
		names = append(names, s.name)
	}
	return names
}
