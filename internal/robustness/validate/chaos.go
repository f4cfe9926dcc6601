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

// judgeChaos checks that faults really happened, and no other.
func (j *judge) judgeChaos() {
	c := j.Chaos
	workers, api, database := "chaos: workers "+c.Killed+" while charges flow", "chaos: an api "+c.Killed, "chaos: database restarted at once"
	j.count(workers, c.WorkerKills, LeastWorkerKills)
	if c.KillsInFlight == 0 {
		j.check(workers).violate("no charge was in flight at any of them")
	}
	j.count(api, c.APIKills, 1)
	if c.NotRun {
		j.count(database, 0, 0)
		j.check(database).NotRun = true
		j.check(database).Examples = append(j.check(database).Examples, "not run")
	} else {
		j.expect(database, c.Restarted > 0, "it was not restarted")
	}
	// Only faults cause these: requests that the provider had carried out before,
	// and webhooks that the shop had accepted before.
	j.count("chaos: provider and shop asked again after faults", j.Suppressed()+j.Redelivered(), 1)
	// Webhooks that wait to be sent are no violation: where services have run for
	// long there may be many.
	const repeated = "chaos: webhooks of the provider sent again"
	j.count(repeated, j.Repeated.Sent, 1)
	if missing := j.Repeated.Sent - j.Repeated.Delivered; missing > 0 {
		j.check(repeated).violate("%d of %d were not taken", missing, j.Repeated.Sent)
	}
	const ended = "chaos: nothing ended that was not killed"
	j.count(ended, c.Programs, 0)
	j.check(ended).NotRun = c.Programs == 0
	for _, loss := range c.Losses {
		j.check(ended).violate("%s", loss)
	}
}
