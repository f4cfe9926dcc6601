package demo

import "fmt"

// The least that a demo must have broken for its audit to mean something.
const (
	leastWorkerKills = 10
	leastAPIKills    = 1
)

// judgeChaos asks whether the faults really happened, and nothing else.
func judgeChaos(seen evidence) []Check {
	return []Check{
		enoughWorkerKills(seen),
		atLeast("chaos: an api "+seen.strikes.blow, seen.strikes.apiKills, leastAPIKills),
		databaseRestarted(seen),
		providerFaulty(seen),
		webhooksRepeated(seen),
		nothingElseDied(seen),
	}
}

func atLeast(name string, happened, least int) Check {
	f := about(name, 0)
	f.check.Checked = happened
	if happened < least {
		f.violate(fmt.Sprintf("happened %d times, should be %d", happened, least))
	}
	return f.result()
}

func enoughWorkerKills(seen evidence) Check {
	f := about("chaos: workers "+seen.strikes.blow+" while charges flow", 0)
	f.check.Checked = seen.strikes.workerKills
	if seen.strikes.workerKills < leastWorkerKills {
		f.violate(fmt.Sprintf("happened to %d workers, should be %d", seen.strikes.workerKills, leastWorkerKills))
	}
	if seen.strikes.killsUnderWay == 0 {
		f.violate("no charge was under way at any of them")
	}
	return f.result()
}

func databaseRestarted(seen evidence) Check {
	f := about("chaos: database restarted at once", 0)
	switch {
	case seen.strikes.restarted > 0:
		f.check.Checked = 1
	case seen.strikes.notRun:
		f.check.notRun = true
		f.check.Examples = append(f.check.Examples, errNotRun.Error())
	default:
		f.violate("it was not restarted")
	}
	return f.result()
}

// providerFaulty counts what only faults can cause: requests that the provider
// had carried out before, and notifications that the shop had taken before.
func providerFaulty(seen evidence) Check {
	f := about("chaos: provider and shop asked again after faults", 0)
	f.check.Checked = seen.suppressed() + seen.redelivered()
	if f.check.Checked == 0 {
		f.violate(fmt.Sprintf("no repetition among %d requests", seen.books.Requests-seen.before.Requests))
	}
	return f.result()
}

// suppressed are the requests that the provider answered from its record.
func (seen evidence) suppressed() int {
	return seen.books.DuplicatesSuppressed - seen.before.DuplicatesSuppressed
}

// redelivered are the notifications beyond the first of each.
func (seen evidence) redelivered() int { return seen.books.redelivered() - seen.before.redelivered() }

// webhooksRepeated counts what was sent again. What still waits to be sent is no
// complaint: where services run for long there may be many.
func webhooksRepeated(seen evidence) Check {
	f := about("chaos: webhooks of the provider sent again", 1)
	f.check.Checked = seen.repeated.Sent
	if missing := seen.repeated.Sent - seen.repeated.Delivered; missing > 0 {
		f.violate(fmt.Sprintf("%d of %d were not taken", missing, seen.repeated.Sent))
	}
	return f.result()
}

func nothingElseDied(seen evidence) Check {
	f := about("chaos: nothing ended that was not killed", 0)
	f.check.Checked = seen.programs
	f.check.notRun = seen.programs == 0
	for _, loss := range seen.losses {
		f.violate(loss)
	}
	return f.result()
}
