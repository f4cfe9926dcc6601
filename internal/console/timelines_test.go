package console_test

import (
	"fmt"
	"strconv"
	"time"

	"github.com/payonce/payonce/internal/audit"
)

var start = time.Date(2026, 11, 21, 8, 22, 48, 792_000_000, time.UTC)

func at(after time.Duration) string { return start.Add(after).Format(time.RFC3339Nano) }

// entry is of the charge ch_1. details are names and values.
func entry(after time.Duration, kind, what, who string, version int, details ...any) audit.TimelineEntry {
	e := audit.TimelineEntry{At: start.Add(after), Kind: kind, What: what, Who: who, Version: version, ChargeID: "ch_1", Detail: audit.Detail{}}
	for i := 0; i < len(details); i += 2 {
		e.Detail[fmt.Sprint(details[i])] = details[i+1]
	}
	return e
}

func timeline(order string, entries ...audit.TimelineEntry) audit.Timeline {
	return audit.Timeline{
		AsOf:    entries[len(entries)-1].At,
		Charges: []audit.TimelineCharge{{ID: "ch_01a1fd336ed47bf6827f5db90a1e2454", MerchantID: "acme", OrderID: order, Amount: 1000, Currency: "USD", Status: "succeeded"}},
		Entries: entries,
	}
}

const us, ms = time.Microsecond, time.Millisecond

// quick is a charge that nothing disturbed.
func quick() audit.Timeline {
	return timeline("order-1",
		entry(0, "key", "POST /v1/charges", "acme", 0, "key", "key-48cb6565ce6b8275", "status_code", 202),
		entry(100*us, "event", "charge.requested.v1", "api", 1, "event_id", "e1", "order_id", "order-1"),
		entry(200*us, "outbox", "passed", "charges", 0, "message_id", "e1"),
		entry(4*ms, "inbox", "received", "fulfillment", 0, "message", 1, "message_id", "e1", "duplicates", 0, "type", "charge.requested.v1"),
		entry(9*ms, "event", "inventory.reserved.v1", "worker", 2, "cause", "e1", "items", []string{"1 tshirt"}),
		entry(14*ms, "event", "payment.started.v1", "worker", 3, "cause", "e1", "payment_intent", "pi_2MUSLBDBMHZ", "provider_key", "886d6009-d933-5200-9373-3158a7795b6d"),
		entry(21*ms, "event", "payment.captured.v1", "worker", 4, "cause", "e1", "payment_intent", "pi_2MUSLBDBMHZ", "provider_key", "99ad6009-d933-5200-9373-3158a7795b6d"),
		entry(21*ms+20*us, "event", "charge.succeeded.v1", "worker", 5, "cause", "e1"),
		entry(21*ms+40*us, "outbox", "passed", "notification", 0, "message_id", "e5"),
		entry(21*ms+60*us, "inbox", "done", "fulfillment", 0, "message", 1, "claims", 1, "holder", "vm:13276/AAAAAAA2", "claimed_at", at(4*ms)),
		entry(23*ms, "inbox", "received", "notification", 0, "message", 2, "message_id", "e5", "type", "charge.succeeded.v1"),
		entry(30*ms, "webhook", "merchant.notified.v1", "worker", 6, "cause", "e5", "type", "charge.succeeded", "webhook_id", "886d6009-d933"),
		entry(30*ms+10*us, "inbox", "done", "notification", 0, "message", 2, "claims", 1, "holder", "vm:13276/BBBBBBB3", "claimed_at", at(23*ms)),
		entry(500*ms, "provider", "payment_intent", "stripe", 0, "id", "pi_2MUSLBDBMHZ", "status", "succeeded"),
	)
}

// crashed is a charge whose worker died, whose message came three times, and whose shop was
// away for three hours.
func crashed() audit.Timeline {
	const dead, heir = "vm:13276:ZK4QDA7B", "vm:13290:P2W7XH3C"
	const away = 3*time.Hour + 2*time.Minute
	entries := append(quick().Entries[:6], // up to the start of the payment
		entry(1500*ms, "inbox", "duplicate", "fulfillment", 0, "message", 1, "duplicates", 2, "dropped_by", "inbox_message_once"),
		entry(3100*ms, "inbox", "taken over", "fulfillment", 0, "message", 1, "fence", 1, "holder", dead, "claimed_at", at(4*ms),
			"lease_ended_at", at(3004*ms), "taken_over_by", heir),
		entry(3121*ms, "event", "payment.captured.v1", "worker", 4, "cause", "e1", "payment_intent", "pi_2MUSLBDBMHZ", "provider_key", "99ad6009-d933-5200-9373-3158a7795b6d"),
		entry(3121*ms+20*us, "event", "charge.succeeded.v1", "worker", 5, "cause", "e1"),
		entry(3121*ms+60*us, "inbox", "done", "fulfillment", 0, "message", 1, "claims", 2, "holder", heir, "claimed_at", at(3100*ms)),
		entry(3123*ms, "inbox", "received", "notification", 0, "message", 2, "message_id", "e5", "type", "charge.succeeded.v1"),
	)
	claimed := 3123 * ms
	for n := range 3 {
		failed := claimed + 40*ms
		entries = append(entries, entry(failed, "inbox", "failed", "notification", 0, "message", 2, "fence", n+1, "holder", heir,
			"claimed_at", at(claimed), "error", "notification: waiting: deliver webhook e5: webhook answered 503: Service Unavailable"))
		claimed = failed + time.Duration(n+1)*50*time.Minute
	}
	return timeline("order-1", append(entries,
		entry(away, "webhook", "merchant.notified.v1", "worker", 6, "cause", "e5", "type", "charge.succeeded", "webhook_id", "886d6009-d933"),
		entry(away+10*us, "inbox", "done", "notification", 0, "message", 2, "claims", 4, "holder", heir, "claimed_at", at(away-20*ms)),
		entry(away+time.Second, "provider", "payment_intent", "stripe", 0, "id", "pi_2MUSLBDBMHZ", "status", "succeeded"),
	)...)
}

// hostileTimeline is a charge of which every text was chosen by an attacker.
func hostileTimeline() audit.Timeline {
	const text = "\"><script>alert('1')</script>\u202e]]>&\x00</text>"
	t := timeline(text,
		entry(0, "key", text, text, 0, "key", text, "status_code", text),
		entry(ms, "event", text, text, 1, "event_id", text, "cause", text, "order_id", text, "items", []string{text}),
	)
	for i, kind := range []string{"event", "webhook", "outbox", "inbox", "provider", text} {
		for j, what := range []string{text, "received", "duplicate", "taken over", "failed", "released", "done", "running", "dead letter", "resent"} {
			t.Entries = append(t.Entries, entry(time.Duration(i*20+j)*ms, kind, what, text, j, "message", text, "holder", text+strconv.Itoa(j), "claimed_at", at(0),
				"error", text, "last_error", text, "type", text, "status", text, "id", text, "webhook_id", text, "provider_key", text, "dropped_by", text, text, text))
		}
	}
	t.Charges[0].ID, t.Charges[0].Status = text, text
	return t
}
