package validate

import "time"

// Chaos is what was broken while charges flowed.
type Chaos struct {
	Killed        string // what happens to a program: killed, or cut off the database
	WorkerKills   int
	KillsInFlight int // of these, while charges were in flight
	APIKills      int
	// Restarted is how long the restart of the database took; 0 is never.
	Restarted time.Duration
	// NotRun says that the database could not be restarted here.
	NotRun bool
	// Losses are programs that ended and were not killed, of so many Programs.
	Losses   []string
	Programs int
}

// LeastWorkerKills is how many workers must have been killed for a run to prove
// something.
const LeastWorkerKills = 10

// chaos are the checks that faults really happened, and no other.
func chaos(killed string) []promise {
	return []promise{
		{"chaos: workers " + killed + " while charges flow", nil, func(r *run, check *Check) {
			check.atLeast(r.Chaos.WorkerKills, LeastWorkerKills, "happened to %d workers, should be %d")
			if r.Chaos.KillsInFlight == 0 {
				check.violate("no charge was under way at any of them")
			}
		}},
		{"chaos: an api " + killed, nil, func(r *run, check *Check) {
			check.atLeast(r.Chaos.APIKills, 1, "happened %d times, should be %d")
		}},
		{"chaos: database restarted at once", nil, func(r *run, check *Check) {
			switch {
			case r.Chaos.Restarted > 0:
				check.Checked = 1
			case r.Chaos.NotRun:
				check.NotRun = true
				check.Examples = append(check.Examples, "not run")
			default:
				check.violate("it was not restarted")
			}
		}},
		// Only faults cause these: requests that the provider had carried out before,
		// and webhooks that the shop had accepted before.
		{"chaos: provider and shop asked again after faults", nil, func(r *run, check *Check) {
			if check.Checked = r.Suppressed() + r.Redelivered(); check.Checked == 0 {
				check.violate("no repetition among %d requests", r.Books.Requests-r.Before.Requests)
			}
		}},
		// Webhooks that wait to be sent are no violation: where services have run for
		// long there may be many.
		{"chaos: webhooks of the provider sent again", nil, func(r *run, check *Check) {
			check.atLeast(r.Repeated.Sent, 1, "looked at %d, expected %d")
			if missing := r.Repeated.Sent - r.Repeated.Delivered; missing > 0 {
				check.violate("%d of %d were not taken", missing, r.Repeated.Sent)
			}
		}},
		{"chaos: nothing ended that was not killed", nil, func(r *run, check *Check) {
			check.Checked, check.NotRun = r.Chaos.Programs, r.Chaos.Programs == 0
			for _, loss := range r.Chaos.Losses {
				check.violate("%s", loss)
			}
		}},
	}
}
