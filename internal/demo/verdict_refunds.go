package demo

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// judgeRefunds is the verdict on what came after the charge was asked for.
func judgeRefunds(seen evidence) []Check {
	return []Check{
		cancellationsAnswered(seen),
		refundsAnswered(seen),
		refundsEndAsPlanned(seen),
		refundedOnce(seen),
		nothingElseRefunded(seen),
		chargesSayWhatWasRefunded(seen),
	}
}

// perRefund asks the same of every refund that was planned.
func perRefund(name string, seen evidence, complain func(record, refundRecord) string) Check {
	f := about(name, plannedRefunds(seen))
	for _, r := range seen.records {
		for _, refund := range r.refunds {
			f.see(complain(r, refund))
		}
	}
	return f.result()
}

// cancellationsAnswered: who is told that the charge is going to be canceled may
// still see it captured, but who is refused never sees it canceled.
func cancellationsAnswered(seen evidence) Check {
	f := about("outside: a cancellation has one answer, and the charge keeps it", planned(seen, func(c Charge) bool { return c.Cancel }))
	for _, r := range seen.records {
		if !r.charge.Cancel {
			continue
		}
		key := r.charge.Key + "-cancel"
		complaint := unequal(key, r.cancel)
		if complaint == "" {
			switch a := r.cancel[0]; {
			case a.Status == http.StatusAccepted && a.Location != "/v1/charges/"+r.id:
				complaint = fmt.Sprintf("%s: accepted, at %q", key, a.Location)
			case a.Status == http.StatusAccepted:
			case a.Status != http.StatusConflict || a.problem() != notCaptured:
				complaint = fmt.Sprintf("%s: answered %d %s", key, a.Status, a.Body)
			case r.final.end() == canceled:
				complaint = fmt.Sprintf("%s: refused, and %s was canceled", key, r.id)
			}
		}
		f.see(complaint)
	}
	return f.result()
}

func refundsAnswered(seen evidence) Check {
	return perRefund("outside: one answer per refund, byte for byte", seen, func(_ record, refund refundRecord) string {
		return unequal(refund.refund.Key, refund.answers)
	})
}

// unequal complains where three requests were not all answered, or not alike.
func unequal(key string, answers []answer) string {
	if len(answers) != 3 {
		return fmt.Sprintf("%s: %d of 3 requests were answered", key, len(answers))
	}
	for _, a := range answers {
		if a != answers[0] {
			return fmt.Sprintf("%s: answered %+v and %+v", key, answers[0], a)
		}
	}
	return ""
}

func refundsEndAsPlanned(seen evidence) Check {
	return perRefund("outside: every refund ends, and as it should", seen, func(r record, refund refundRecord) string {
		if !slices.Contains(refund.refund.Ends, refund.end()) {
			return fmt.Sprintf("%s of %s: %q, should be %s",
				refund.refund.Key, r.id, refund.end(), strings.Join(refund.refund.Ends, " or "))
		}
		if refund.ended() && refund.amount != refund.refund.Amount {
			return fmt.Sprintf("%s of %s: %d, should be %d", refund.refund.Key, r.id, refund.amount, refund.refund.Amount)
		}
		return ""
	})
}

func refundedOnce(seen evidence) Check {
	paid := seen.books.refundsByReference()
	return perRefund("outside: a refund is given back once if it succeeded, else never", seen, func(r record, refund refundRecord) string {
		given := paid[refund.id]
		switch {
		case refund.status != succeeded && len(given) > 0 && refund.id != "":
			return fmt.Sprintf("%s of %s: %s, and given back %d times", refund.id, r.id, refund.status, len(given))
		case refund.status != succeeded:
			return ""
		case len(given) != 1:
			return fmt.Sprintf("%s of %s: given back %d times", refund.id, r.id, len(given))
		case given[0].Amount != refund.refund.Amount:
			return fmt.Sprintf("%s of %s: gave back %d, not %d", refund.id, r.id, given[0].Amount, refund.refund.Amount)
		}
		return ""
	})
}

// nothingElseRefunded finds refunds at the provider that nobody asked for.
func nothingElseRefunded(seen evidence) Check {
	f := about("outside: no refund at the provider that nobody asked for", 0)
	known := seen.before.refundsByReference()
	for _, r := range seen.records {
		for _, refund := range r.refunds {
			if refund.id != "" {
				known[refund.id] = nil
			}
		}
	}
	for _, given := range seen.books.Refunds {
		complaint := ""
		if _, ours := known[given.Reference]; !ours {
			complaint = fmt.Sprintf("%d given back for %q", given.Amount, given.Reference)
		}
		f.see(complaint)
	}
	return f.result()
}

// chargesSayWhatWasRefunded compares what a charge says of itself with its
// refunds, which together never exceed it.
func chargesSayWhatWasRefunded(seen evidence) Check {
	return perCharge("outside: every charge says what was refunded", seen, func(r record) string {
		sum := int64(0)
		for _, refund := range r.refunds {
			if refund.status == succeeded {
				sum += refund.amount
			}
		}
		status := r.final.Status
		switch {
		case sum == 0 && r.final.captured():
			status = succeeded
		case sum > 0 && sum < r.charge.Amount:
			status = partiallyRefunded
		case sum == r.charge.Amount:
			status = refunded
		case sum > r.charge.Amount:
			return fmt.Sprintf("%s: %d refunded of %d", r.id, sum, r.charge.Amount)
		}
		if r.final.Status != status || r.final.AmountRefunded != sum {
			return fmt.Sprintf("%s: %s, %d refunded; should be %s, %d", r.id, r.final.Status, r.final.AmountRefunded, status, sum)
		}
		return ""
	})
}
