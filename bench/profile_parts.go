package main

import (
	"bufio"
	"cmp"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
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
			{"let in, and look at the key", `httpapi.*lookUp|idempotency\.\(\*Looks\)|idempotency\.lookAll`},
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
			{"webhook: sign and send", `notify\.\(\*Sender\)`},
			{"stripe-go, its JSON and form", `payonce/internal/stripe\.|stripe-go`},
			{"connections of the HTTP clients", `persistConn|http\.\(\*Transport\)`},
			{"projections", `ledger\.\(\*Projector\)`},
			{"receive: Watermill, page", `watermill`},
			{"claims", `inbox\.\(\*run\)\.(claim|take|places|rest)|inbox\.\(\*Processor\)\.Run`},
			{"commits: encode, send, wait", `postgres\.\(\*DB\)\.(Commit|commit)`},
			{"reads: streams, endpoints, stock", `ledger\.(Load|replay|\(\*Loader\))|merchants\.(\(\*Endpoints\)|readWebhooks|ReadWebhook)|fulfillment\.(\(\*Reader\)|readStock)|postgres\.\(\*Gatherer`},
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
func readProfile(file string, parts []part, done int) ([]spent, error) {
	if done == 0 {
		return nil, fmt.Errorf("profile %s: nothing was done", file)
	}
	text, err := exec.Command("go", "tool", "pprof", "-traces", file).Output() //nolint:noctx,gosec // it reads a file of ours
	if err != nil {
		return nil, fmt.Errorf("read profile %s: %w", file, err)
	}
	took := map[string]time.Duration{}
	for sample := range strings.SplitSeq(string(text), "-----------+-") {
		at, stack, err := readSample(sample)
		if err != nil {
			return nil, fmt.Errorf("read profile %s: %w", file, err)
		}
		took[partOf(stack, parts)] += at
	}
	delete(took, "")
	var all []spent
	for name, d := range took {
		all = append(all, spent{name, float64(d.Microseconds()) / float64(done)})
	}
	slices.SortFunc(all, func(a, b spent) int { return cmp.Or(cmp.Compare(b.micros, a.micros), cmp.Compare(a.part, b.part)) })
	return all, nil
}

// readSample reads a stack as pprof prints it: the time before the innermost
// function, and a line for each of the others. What is no sample has none.
func readSample(text string) (took time.Duration, stack []string, err error) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "---"):
		case len(stack) == 0:
			if !startsStack(fields) {
				return 0, nil, nil // the head
			}
			if took, err = time.ParseDuration(fields[0]); err != nil {
				return 0, nil, fmt.Errorf("read the time of a stack: %w", err)
			}
			stack = append(stack, fields[1])
		default:
			stack = append(stack, fields[0])
		}
	}
	return took, stack, lines.Err()
}

// startsStack tells a time and a function from what stands before the first stack.
func startsStack(fields []string) bool {
	return len(fields) > 1 && fields[0] != "" && fields[0][0] >= '0' && fields[0][0] <= '9'
}

// partOf is "" for no stack at all.
func partOf(stack []string, parts []part) string {
	if len(stack) == 0 {
		return ""
	}
	for _, p := range parts {
		if slices.ContainsFunc(stack, p.holds.MatchString) {
			return p.name
		}
	}
	return rest
}
