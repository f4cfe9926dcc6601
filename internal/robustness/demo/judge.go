package demo

import (
	"net/http"
	"slices"
	"strings"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// What a client sees and the audit does not: answers, and the records of the merchant's receiver.
const (
	oneAnswer     = "observed: one answer per key, byte for byte"
	endsAsPlanned = "observed: every charge and refund ends as planned"
	notifiedOnce  = "observed: the merchant is notified of each outcome once"
	webhooksAgain = "observed: repeated webhooks change nothing"
)

// evidence is what was observed of a run.
type evidence struct {
	sent          []*charge     // those of the plan, and of the lab
	before, books harness.Books // before the first charge, and in the end
	repeated      harness.Repeated
	events, added int // of the charges, and by the repeated webhooks
	chaos         chaos
}

// suppressed is how many requests the provider answered from its record.
func (e *evidence) suppressed() int {
	return e.books.DuplicatesSuppressed - e.before.DuplicatesSuppressed
}

// redelivered is how many webhooks were delivered beyond the first time.
func (e *evidence) redelivered() int { return e.books.Redelivered() - e.before.Redelivered() }

// checks are those of a run, in the order in which they are named first.
type checks []harness.Check

func (c *checks) named(name string) *harness.Check {
	i := slices.IndexFunc(*c, func(c harness.Check) bool { return c.Name == name })
	if i < 0 {
		i, *c = len(*c), append(*c, harness.Check{Name: name, Examples: []any{}})
	}
	return &(*c)[i]
}

// expect examines one case of a promise.
func (c *checks) expect(name string, holds bool, complaint string, args ...any) {
	c.named(name).Expect(holds, complaint, args...)
}

// count is for what happened so often.
func (c *checks) count(name string, happened int, holds bool, complaint string, args ...any) {
	c.expect(name, holds, complaint, args...)
	c.named(name).Checked = happened
}

// verdict checks what the audit cannot see of a run, in which programs were killed or the like.
func (e *evidence) verdict(killed string) []harness.Check {
	found := &checks{}
	for _, charge := range e.sent {
		e.judge(found, "charge", &charge.request)
		if charge.cancel != nil {
			e.judge(found, "", charge.cancel)
		}
		for _, refund := range charge.refunds {
			e.judge(found, "refund", refund)
		}
	}
	found.count(webhooksAgain, e.events, e.events > 0 && e.added == 0, "%d events, then %d more", e.events, e.added)
	e.judgeChaos(found, killed)
	return *found
}

// judge judges the answers to a request, and what it made, if that is a charge or a refund.
func (e *evidence) judge(found *checks, makes string, r *request) {
	different := func(a harness.Answer) bool { return a != r.answers[0] }
	alike := len(r.answers) >= 3 && !slices.ContainsFunc(r.answers, different)
	if alike && makes == "charge" {
		alike = r.answers[0].Status == http.StatusAccepted
	}
	outside := r.ID != "" && r.answers == nil // made in the provider's dashboard
	found.expect(oneAnswer, alike || outside, "%s: answered %+v", r.key, r.answers)
	right := slices.Contains(r.wanted, r.outcome()) && (makes == "" || r.ID == "" || r.Amount == r.amount)
	found.expect(endsAsPlanned, right, "%s: %q, %+v, should be %s of %d", r.key, r.outcome(), r.made, strings.Join(r.wanted, " or "), r.amount)
	if makes == "" || !r.hasEnded() {
		return
	}
	outcome := makes + "." + failed
	if r.outcome() == succeeded {
		outcome = makes + "." + succeeded
	}
	var received []harness.Notification
	for _, n := range e.books.Notifications {
		if n.Reference == r.ID {
			received = append(received, n)
		}
	}
	once := len(received) == 1 && received[0].Type == outcome && received[0].Effects == 1 && received[0].Deliveries >= 1
	found.expect(notifiedOnce, once, "%s: notified %+v, should be %s once", r.ID, received, outcome)
}

// leastWorkerKills is how many workers must have been killed for a run to prove something.
const leastWorkerKills = 10

// judgeChaos checks that faults really happened, and no other.
func (e *evidence) judgeChaos(found *checks, killed string) {
	c := e.chaos
	workers, apis, restarts := c.struck[killWorker], c.struck[killAPI], c.struck[restartDatabase]
	found.count("chaos: workers "+killed+" while charges flow", workers, workers >= leastWorkerKills && c.inFlight > 0,
		"%d, should be %d; while a charge was in flight %d, should be 1", workers, leastWorkerKills, c.inFlight)
	found.count("chaos: an api "+killed, apis, apis > 0, "none")
	const restarted, ended = "chaos: database restarted at once", "chaos: nothing ended that was not killed"
	if found.expect(restarted, c.notRun || restarts > 0, "it was not restarted"); c.notRun {
		*found.named(restarted) = harness.Check{Name: restarted, NotRun: true, Examples: []any{"not run"}}
	}
	// Only faults cause these: requests that the provider had carried out before, and webhooks
	// that the shop had accepted before.
	again := e.suppressed() + e.redelivered()
	found.count("chaos: provider and shop asked again after faults", again, again > 0, "none")
	sent := e.repeated.Sent
	found.count("chaos: webhooks of the provider sent again", sent, sent > 0 && sent == e.repeated.Delivered, "%d were taken", e.repeated.Delivered)
	found.count(ended, c.programs, len(c.losses) == 0, "%s", strings.Join(c.losses, "\n"))
	found.named(ended).NotRun = c.programs == 0
}
