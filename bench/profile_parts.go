package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"

	"github.com/google/pprof/profile"
)

// part is a part of a program's work: all time in which one of its functions is on
// the stack, and none of a part before it.
type part struct {
	name  string
	holds *regexp.Regexp
}

// spent is what a part took of each that was done.
type spent struct {
	part   string
	micros float64
}

const rest = "the rest"

func partsOf(program string) []part {
	parts := map[string][][2]string{
		"api": {
			{"garbage collector", `gcBgMarkWorker|bgsweep|bgscavenge|gcAssistAlloc|gcStart|gcDrain`},
			{"commit: encode, send, wait", `postgres\.\(\*DB\)\.commit|\(\*Tenant\)\.Commit`},
			{"let in, and look at the key", `httpapi.*lookUp|idempotency\.\(\*KeyReader\)|idempotency\.readKeys`},
			{"log line", `log/slog`},
			{"counters", `payonce/internal/telemetry|prometheus`},
			{"JSON: read and validate the body", `httpapi\.decode|httpapi\.validate|httpapi.*readBody`},
			{"JSON: key, canonical form, fingerprint", `\(\*API\)\.keyed`},
			{"decide, queue what is written", `intake\.`},
			{"receive once", `payonce/idempotency\.`},
			{"middleware, routing, reply", `httpapi\.|labstack/echo`},
			{"HTTP server", `net/http`},
			{"scheduler, network poller", `runtime\.(mcall|park_m|schedule|findRunnable|mstart|goexit0|netpoll|sysmon)`},
		},
		"worker": {
			{"garbage collector", `gcBgMarkWorker|bgsweep|bgscavenge|gcAssistAlloc|gcStart|gcDrain`},
			{"webhook: sign and send", `webhook\.\(\*Sender\)`},
			{"stripe-go, its JSON and form", `payonce/internal/stripe\.|stripe-go`},
			{"connections of the HTTP clients", `persistConn|http\.\(\*Transport\)`},
			{"projections", `ledger\.\(\*Projector\)`},
			{"receive: Watermill, page", `watermill`},
			{"claims", `inbox\.\(\*run\)\.(claim|take|places|rest)|inbox\.\(\*Processor\)\.Run`},
			{"commits: encode, send, wait", `postgres\.\(\*DB\)\.(Commit|commit)`},
			{"reads: streams, endpoints, stock", `ledger\.(Load|replay|\(\*Loader\))|merchants\.(\(\*Endpoints\)|readWebhooks|ReadWebhook)|fulfillment\.(\(\*Reader\)|readStock)|postgres\.\(\*Reads`},
			{"decide, queue what is written", `ledger\.Append|outbox\.Append|domain\.Decide|inbox\.Done|\(\*walk\)\.queue|\(\*Notification\)\.record`},
			{"steps, the rest of them", `payonce/(fulfillment|inbox)`},
			{"scheduler, timers", `runtime\.(mcall|park_m|schedule|findRunnable|mstart|sysmon|timer|gopark|goexit0|morestack)`},
		},
	}
	var all []part
	for _, p := range parts[program] {
		all = append(all, part{p[0], regexp.MustCompile(p[1])})
	}
	return all
}

// readProfile puts each sample of a profile to the first part that holds it, and
// divides by how many were done.
func readProfile(file string, parts []part, done int) (all []spent, err error) {
	if done == 0 {
		return nil, fmt.Errorf("profile %s: nothing was done", file)
	}
	f, err := os.Open(file) //nolint:gosec // it reads a file of ours
	if err != nil {
		return nil, fmt.Errorf("open a profile: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	read, err := profile.Parse(f)
	if err != nil {
		return nil, fmt.Errorf("read profile %s: %w", file, err)
	}
	took := map[string]int64{}
	for _, s := range read.Sample {
		took[partOf(stackOf(s), parts)] += s.Value[1] // how often it was seen, and how long
	}
	for name, nanoseconds := range took {
		all = append(all, spent{name, float64(nanoseconds) / 1e3 / float64(done)})
	}
	slices.SortFunc(all, func(a, b spent) int { return cmp.Or(cmp.Compare(b.micros, a.micros), cmp.Compare(a.part, b.part)) })
	return all, nil
}

// stackOf are a sample's functions, innermost first; none where Go could not tell.
func stackOf(s *profile.Sample) (stack []string) {
	for _, l := range s.Location {
		for _, line := range l.Line { // several where functions are inlined
			if line.Function != nil {
				stack = append(stack, line.Function.Name)
			}
		}
	}
	return stack
}

func partOf(stack []string, parts []part) string {
	for _, p := range parts {
		if slices.ContainsFunc(stack, p.holds.MatchString) {
			return p.name
		}
	}
	return rest
}
