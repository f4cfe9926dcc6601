package lanes

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/audit"
)

// add draws an entry.
func (d *drawing) add(e audit.TimelineEntry) {
	title := titleOf(e)
	switch e.Kind {
	case "key":
		d.addKey(e, title)
	case "event":
		d.addEvent(e, title)
	case "webhook":
		d.addWebhook(e, title)
	case "outbox":
		d.row(row{at: e.At, lane: d.database, class: "message", text: "message queued", note: "outbox, topic " + e.Who + ": " + e.What, title: title})
	case "inbox":
		d.addInbox(e, title)
	case "provider":
		d.row(row{at: e.At, lane: d.provider, class: "held", text: text(e.Detail, "status") + " now", note: text(e.Detail, "id"), title: title})
	}
}

// addKey draws the request that was answered first. Replays are not stored.
func (d *drawing) addKey(e audit.TimelineEntry, title string) {
	class := "key"
	if number(e.Detail, "status_code") >= 400 {
		class = "bad"
	}
	d.row(row{at: e.At, from: d.client, lane: d.api, class: class, text: strings.Replace(e.What, "/v1/charges/:id", "…", 1), note: "key " + text(e.Detail, "key"), title: title})
	d.row(row{
		at: e.At, from: d.api, lane: d.database, class: class,
		text: "key with its answer " + text(e.Detail, "status_code"), note: "once: idempotency_keys_once", title: title,
	})
}

// addEvent draws an event, and before it the provider's call that it is about.
func (d *drawing) addEvent(e audit.TimelineEntry, title string) {
	actor, name := d.actor(e), strings.TrimSuffix(e.What, ".v1")
	if key := text(e.Detail, "provider_key"); key != "" {
		call, class := "confirm the payment", "call"
		switch {
		case name == "payment.started" || text(e.Detail, "stage") == "create":
			call = "create the payment"
		case strings.HasPrefix(name, "refund."):
			call = "refund"
		}
		if strings.HasSuffix(name, "failed") || strings.HasSuffix(name, "declined") {
			class = "bad"
		}
		d.row(row{
			at: e.At, from: actor, lane: d.provider, class: class, text: call, note: "key " + key,
			title: call + ", Idempotency-Key " + key + ": the same for every worker, until an answer 5xx",
		})
	}
	class, note := "event", ""
	if strings.HasSuffix(name, "failed") || strings.HasSuffix(name, "declined") || strings.HasSuffix(name, "rejected") {
		class = "bad"
	}
	for _, shown := range []struct{ member, label string }{
		{"provider_status", "the provider answered "}, {"code", ""}, {"refund_id", ""}, {"payment_intent", ""}, {"items", ""}, {"order_id", "order "},
	} {
		if value := text(e.Detail, shown.member); value != "" && note == "" {
			note = shown.label + value
		}
	}
	d.row(row{at: e.At, from: actor, lane: d.database, class: class, text: strconv.Itoa(e.Version) + " " + name, note: note, title: title})
}

func (d *drawing) addWebhook(e audit.TimelineEntry, title string) {
	switch id := "webhook-id " + text(e.Detail, "webhook_id"); {
	case e.Version > 0:
		d.row(row{at: e.At, from: d.actor(e), lane: d.merchant, class: "call", text: text(e.Detail, "type"), note: id, title: title})
		d.addEvent(e, title)
	case e.What == "resent":
		d.row(row{at: e.At, from: d.database, lane: d.merchant, class: "call", text: "sent once more", note: id, title: title})
	default:
		d.row(row{at: e.At, lane: d.database, class: "message", text: e.What, note: "by " + e.Who, title: title})
	}
}

// addInbox draws what became of a message at its receiver.
func (d *drawing) addInbox(e audit.TimelineEntry, title string) {
	message := text(e.Detail, "message")
	fence := number(e.Detail, "fence")
	c := d.claimOf(message, max(fence, number(e.Detail, "claims")))
	r := row{at: e.At, lane: d.database, class: "message", text: "message " + message + " " + e.What, note: "for " + e.Who, title: title}
	switch e.What {
	case "received":
		r.text, r.note = "message "+message+" stored", "inbox, for "+e.Who
		if strings.HasPrefix(text(e.Detail, "type"), "stripe.") {
			r.from, r.note = d.provider, text(e.Detail, "type")
		}
	case "duplicate":
		n := number(e.Detail, "duplicates")
		r.text, r.note, r.dropped = "message "+message+" again", text(e.Detail, "dropped_by"), true
		if n > 1 {
			r.text += fmt.Sprintf(", %d times", n)
		}
		d.dropped += int(n)
	case "quarantined":
		r.text, r.note, r.dropped = "same id, other payload", "inbox_quarantine_once", true
		d.dropped++
	case "taken over":
		d.addTakeover(e, c, r)
		return
	case "failed", "released":
		d.addEnded(e, c, r)
		return
	case "done":
		r.note = fmt.Sprintf("claim %d of %s", number(e.Detail, "claims"), e.Who)
		r.from = d.worker(text(e.Detail, "holder"))
	case "dead letter":
		r.class, r.note = "bad", text(e.Detail, "last_error")
	case "running":
		r.lane, r.text = d.worker(text(e.Detail, "holder")), "message "+message+" in progress"
	case "retried", "discarded":
		r.note = "by " + e.Who
	}
	drawn := d.row(r)
	if c != nil && (e.What == "done" || e.What == "running") {
		c.last = drawn
	}
}

// addEnded draws the end of a claim that did not finish its message, and before it the call that
// its error is about. The texts of errors are no promise: of others than these the box shows
// the beginning.
func (d *drawing) addEnded(e audit.TimelineEntry, c *claim, r row) {
	why := text(e.Detail, "error")
	r.lane = d.worker(text(e.Detail, "holder"))
	r.text, r.class, r.note = "attempt failed", "bad", why
	if i := strings.LastIndex(why, waiting); i >= 0 {
		r.text, r.class, r.note = "waits, tries again", "message", why[i+len(waiting):]
	}
	if e.What == "released" {
		r.text, r.class = "released: it stops", "message"
	}
	call, reason, isCall := strings.Cut(r.note, ": ")
	failed := row{at: e.At, from: r.lane, class: "bad", text: call, note: reason, title: r.title}
	switch {
	case isCall && strings.HasPrefix(reason, "provider "):
		failed.lane, r.note = d.provider, reason
	case isCall && strings.HasPrefix(reason, "webhook "):
		failed.lane, failed.text, r.note = d.merchant, "webhook failed", reason
	}
	// An event may have drawn the call.
	known := c != nil && slices.ContainsFunc(d.rows, func(r *row) bool { return r.lane == d.provider && r.class == "bad" && !r.at.Before(c.began) })
	if failed.lane != nil && !known {
		d.row(failed)
	}
	drawn := d.row(r)
	if c != nil {
		c.last = drawn
	}
}

// waiting begins what a message waits for in an error.
const waiting = "waiting: "

// addTakeover draws the end of a lease in the swim lane of its holder, and the claim of the next one.
func (d *drawing) addTakeover(e audit.TimelineEntry, lost *claim, r row) {
	d.takeovers++
	from := d.worker(text(e.Detail, "holder"))
	if lost != nil {
		lost.last = d.row(row{
			at: lost.ended, lane: from, class: "dark", text: "lease ended, no sign", note: "inbox_done_by_holder",
			title: "The worker died or went silent. Whatever it still commits is refused by inbox_done_by_holder, with all of its transaction.",
		})
	}
	r.from, r.lane, r.class = from, d.database, "takeover"
	next := d.claimOf(text(e.Detail, "message"), number(e.Detail, "fence")+1)
	if next == nil {
		d.row(r)
		return
	}
	r.lane, r.text = d.worker(next.holder), "takes over"
	r.note = fmt.Sprintf("message %s, claim %d", next.message, next.fence)
	next.first = d.row(r)
}

// titleOf is everything that is known of an entry.
func titleOf(e audit.TimelineEntry) string {
	words := []string{e.At.UTC().Format("2006-01-02 15:04:05.000000"), e.ChargeID, e.Kind, e.What, e.Who}
	for _, name := range slices.Sorted(maps.Keys(e.Detail)) {
		words = append(words, name+"="+text(e.Detail, name))
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

// text is a member of a detail, empty where there is none.
func text(d audit.Detail, name string) string {
	switch value := d[name].(type) {
	case nil:
		return ""
	case []string:
		return strings.Join(value, ", ")
	default:
		return fmt.Sprint(value)
	}
}

// number is a member that is a number as JSON writes it, 0 where there is none.
func number(d audit.Detail, name string) int64 {
	n, _ := strconv.ParseInt(text(d, name), 10, 64) // 0 where it is none
	return n
}

// moment is a member that is a time, zero where there is none.
func moment(d audit.Detail, name string) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, text(d, name)) // zero where it is none
	return at.UTC()
}
