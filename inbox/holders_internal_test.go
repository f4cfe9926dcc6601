package inbox

import (
	"testing"
	"time"
)

// TestMayTakeOver: a processor that did not reach the database for longer than a lease gives the
// other holders, which were silent too, the time of two leases to register again.
func TestMayTakeOver(t *testing.T) {
	t.Parallel()
	p := &Processor{Options: Options{Policy: Policy{Lease: 3 * time.Second}}}
	nine := time.Date(2026, time.March, 1, 9, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		now, reached time.Duration // since nine
		want         bool
	}{
		{0, 0, true}, // it has just started
		{time.Second, 0, true},
		{time.Minute, time.Second, false}, // an outage
		{time.Minute + 5*time.Second, time.Minute + 4*time.Second, false},
		{time.Minute + 7*time.Second, time.Minute + 6*time.Second, true},
	} {
		p.reached = nine.Add(step.reached)
		if got := p.mayTakeOver(nine.Add(step.now)); got != step.want {
			t.Errorf("at %s, with the database reached at %s, it takes over: %t", step.now, step.reached, got)
		}
	}
}
