package demo

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// judge is the verdict from outside: what the requests were answered, against
// what the sandbox's books say. It reads no table of the service.
func judge(seen evidence) []Check {
	checks := []Check{
		oneAnswerPerKey(seen),
		oneChargePerKey(seen),
		reusedKeysRefused(seen),
		endsAsPlanned(seen),
		streamsInOrder(seen),
		atMostOneCapture(seen),
		capturedIfSucceeded(seen),
		notCapturedIfFailed(seen),
		nothingElseCaptured(seen),
		notifiedOnce(seen),
		settledForGood(seen),
	}
	checks = append(checks, judgeList(seen)...)
	checks = append(checks, judgeRefunds(seen)...)
	if seen.plan.Stock != nil {
		checks = append(checks, scarceStockSold(seen))
	}
	return append(checks, judgeChaos(seen)...)
}

// perCharge asks the same of every charge.
func perCharge(name string, seen evidence, complain func(record) string) Check {
	f := about(name, len(seen.plan.Charges))
	for _, r := range seen.records {
		f.see(complain(r))
	}
	return f.result()
}

func oneAnswerPerKey(seen evidence) Check {
	f := about("outside: one answer per key, byte for byte", len(seen.plan.Charges))
	for _, r := range seen.records {
		f.see(differ(r.charge.Key, r.answers))
	}
	return f.result()
}

// differ complains where three requests were not all accepted with one answer.
func differ(key string, answers []answer) string {
	if complaint := unequal(key, answers); complaint != "" {
		return complaint
	}
	if a := answers[0]; a.Status != http.StatusAccepted {
		return fmt.Sprintf("%s: answered %d %s", key, a.Status, a.Body)
	}
	return ""
}

func oneChargePerKey(seen evidence) Check {
	owner := map[string]string{}
	return perCharge("outside: one charge per key", seen, func(r record) string {
		other, taken := owner[r.id]
		owner[r.id] = r.charge.Key
		switch {
		case r.id == "":
			return r.charge.Key + ": no charge"
		case taken:
			return fmt.Sprintf("%s: the same charge %s as %s", r.charge.Key, r.id, other)
		}
		return ""
	})
}

func reusedKeysRefused(seen evidence) Check {
	f := about("outside: a used key refuses another body", planned(seen, func(c Charge) bool { return c.Reuse }))
	for _, r := range seen.records {
		for _, a := range r.reuse {
			complaint := ""
			if a.Status != http.StatusUnprocessableEntity || a.problem() != "/problems/idempotency-key-reused" {
				complaint = fmt.Sprintf("%s: answered %d %s", r.charge.Key, a.Status, a.Body)
			}
			f.see(complaint)
		}
	}
	return f.result()
}

func endsAsPlanned(seen evidence) Check {
	return perCharge("outside: every charge ends, and as it should", seen, func(r record) string {
		if r.final.ended() && slices.Contains(r.charge.Ends, r.final.end()) {
			return ""
		}
		return fmt.Sprintf("%s %s: %q, should be %s", r.charge.Order, r.id, r.final.end(), strings.Join(r.charge.Ends, " or "))
	})
}

func streamsInOrder(seen evidence) Check {
	return perCharge("outside: every stream gapless, with one ending", seen, disorder)
}

func disorder(r record) string {
	for i, e := range r.events {
		if e.Version != i+1 {
			return fmt.Sprintf("%s: version %d follows %d", r.id, e.Version, i)
		}
	}
	if n := count(r.events, "charge.succeeded") + count(r.events, "charge.failed"); n != 1 {
		return fmt.Sprintf("%s: %d endings", r.id, n)
	}
	if n := count(r.events, "payment.captured"); n > 1 {
		return fmt.Sprintf("%s: captured %d times", r.id, n)
	}
	if n := count(r.events, "merchant.notified"); n != r.endings() {
		return fmt.Sprintf("%s: %d endings, the merchant was told %d times", r.id, r.endings(), n)
	}
	return ""
}

func atMostOneCapture(seen evidence) Check {
	captures := seen.books.capturesByCharge()
	return perCharge("outside: at most one capture per charge", seen, func(r record) string {
		if n := len(captures[r.id]); n > 1 {
			return fmt.Sprintf("%s: %d captures", r.id, n)
		}
		return ""
	})
}

func capturedIfSucceeded(seen evidence) Check {
	f := about("outside: a succeeded charge is captured once, in full", planned(seen, Charge.mustSucceed))
	captures := seen.books.capturesByCharge()
	for _, r := range seen.records {
		if !r.final.captured() {
			continue
		}
		complaint := ""
		switch c := captures[r.id]; {
		case len(c) != 1:
			complaint = fmt.Sprintf("%s: %d captures", r.id, len(c))
		case c[0].Amount != r.charge.Amount || !strings.EqualFold(c[0].Currency, r.charge.Currency):
			complaint = fmt.Sprintf("%s: captured %d %s, not %d %s", r.id, c[0].Amount, c[0].Currency, r.charge.Amount, r.charge.Currency)
		}
		f.see(complaint)
	}
	return f.result()
}

func notCapturedIfFailed(seen evidence) Check {
	f := about("outside: a failed charge is never captured", planned(seen, Charge.mustFail))
	captures := seen.books.capturesByCharge()
	for _, r := range seen.records {
		if r.final.Status != failed {
			continue
		}
		complaint := ""
		if n := len(captures[r.id]); n != 0 {
			complaint = fmt.Sprintf("%s: %d captures", r.id, n)
		}
		f.see(complaint)
	}
	return f.result()
}

// planned is how many charges of the plan are of a sort.
func planned(seen evidence, sort func(Charge) bool) int {
	n := 0
	for _, charge := range seen.plan.Charges {
		if sort(charge) {
			n++
		}
	}
	return n
}

// nothingElseCaptured finds captures that belong to no charge of the demo.
func nothingElseCaptured(seen evidence) Check {
	f := about("outside: no capture without a charge", planned(seen, Charge.mustSucceed))
	known := seen.before.capturesByCharge()
	for _, r := range seen.records {
		if r.id != "" {
			known[r.id] = nil
		}
	}
	for _, c := range seen.books.Captures {
		complaint := ""
		if _, ours := known[c.Reference]; !ours {
			complaint = fmt.Sprintf("%d %s captured for %q", c.Amount, c.Currency, c.Reference)
		}
		f.see(complaint)
	}
	return f.result()
}

func notifiedOnce(seen evidence) Check {
	f := about("outside: the merchant is told of each ending once", len(seen.plan.Charges))
	told := seen.books.notificationsByReference()
	for _, r := range seen.records {
		ending := "charge.succeeded"
		if r.final.Status == failed {
			ending = "charge.failed"
		}
		f.see(misinformed(r.id, ending, told[r.id]))
		for _, refund := range r.refunds {
			if refund.ended() {
				f.see(misinformed(refund.id, "refund."+refund.status, told[refund.id]))
			}
		}
	}
	return f.result()
}

func misinformed(reference, ending string, told []notification) string {
	switch {
	case len(told) != 1:
		return fmt.Sprintf("%s: %d notifications", reference, len(told))
	case told[0].Type != ending:
		return fmt.Sprintf("%s: told %s, not %s", reference, told[0].Type, ending)
	case told[0].Effects != 1 || told[0].Deliveries < 1:
		return fmt.Sprintf("%s: delivered %d times, %d effects", reference, told[0].Deliveries, told[0].Effects)
	}
	return ""
}

// settledForGood looks at the streams once more, after the provider has sent all
// of its webhooks again.
func settledForGood(seen evidence) Check {
	return perCharge("outside: webhooks sent again change nothing", seen, func(r record) string {
		if !slices.Equal(r.events, r.later) {
			return fmt.Sprintf("%s: %d events, later %d", r.id, len(r.events), len(r.later))
		}
		return ""
	})
}

// scarceStockSold looks at the charges that wanted the last of something: as
// many got it as there were, no more and no fewer.
func scarceStockSold(seen evidence) Check {
	wanted := planned(seen, Charge.isScarce)
	f := about("outside: scarce stock sells out and not twice", wanted)
	sold := 0
	for _, r := range seen.records {
		if !r.charge.isScarce() {
			continue
		}
		f.see("")
		if r.final.end() == succeeded {
			sold++
		}
	}
	if supply := min(wanted, seen.plan.Stock[poster]); sold != supply {
		f.violate(fmt.Sprintf("%d wanted, %d in stock, %d sold", wanted, seen.plan.Stock[poster], sold))
	}
	return f.result()
}
