package console

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/audit"
)

// add draws an entry.
func (d *drawing) add(e audit.TimelineEntry) {
	if e.Version > 0 {
		d.events++
	}
	title := strings.Join([]string{e.At.UTC().Format("2006-01-02 15:04:05.000000"), e.ChargeID, e.Kind, e.What, e.Who, e.Detail.String()}, " ")
	r := row{at: e.At, Lane: d.database, Class: "message", Title: title}
	switch e.Kind {
	case "key": // of the request that was answered first: replays are not stored
		asked := r.as(strings.Replace(e.What, "/v1/charges/:id", "…", 1), "key "+text(e.Detail, "key"))
		asked.From, asked.Lane, asked.Class = d.client, d.api, "key"
		if number(e.Detail, "status_code") >= 400 {
			asked.Class = "bad"
		}
		d.row(asked)
		r.From, r.Class = d.api, asked.Class
		d.row(r.as("key with its answer "+text(e.Detail, "status_code"), "once: idempotency_keys_once"))
	case "event":
		d.addEvent(e, r)
	case "webhook":
		d.addWebhook(e, r)
	case "outbox":
		d.row(r.as("message queued", "outbox, topic "+e.Who+": "+e.What))
	case "inbox":
		d.addInbox(e, r)
	case "provider":
		r.Lane, r.Class = d.provider, "held"
		d.row(r.as(text(e.Detail, "status")+" now", text(e.Detail, "id")))
	}
}

// as is the row with texts.
func (r row) as(text, note string) row {
	r.Text, r.Note = text, note
	return r
}

// addEvent draws an event, and before it the provider's call that it is about.
func (d *drawing) addEvent(e audit.TimelineEntry, r row) {
	name, _, _ := strings.Cut(e.What, ".v")
	r.From = d.actor(e)
	if key := text(e.Detail, "provider_key"); key != "" {
		call := r
		call.Lane, call.Class = d.provider, outcome(name, "call")
		what := "confirm the payment"
		switch {
		case name == "payment.started" || text(e.Detail, "stage") == "create":
			what = "create the payment"
		case strings.HasPrefix(name, "refund."):
			what = "refund"
		}
		call.Title = what + ", Idempotency-Key " + key + ": the same for every worker, until an answer 5xx"
		d.row(call.as(what, "key "+key))
	}
	r.Class = outcome(name, "event")
	for _, member := range []string{"provider_status", "code", "refund_id", "dispute_id", "payment_intent", "items", "order_id"} {
		r.Note = cmp.Or(r.Note, text(e.Detail, member))
	}
	if text(e.Detail, "provider_status") != "" {
		r.Note = "the provider answered " + r.Note
	}
	d.row(r.as(strconv.Itoa(e.Version)+" "+name, r.Note))
}

// outcome is the class of an event, or of its call, that may be one of a failure.
func outcome(name, good string) string {
	if strings.HasSuffix(name, "failed") || strings.HasSuffix(name, "declined") || strings.HasSuffix(name, "rejected") {
		return "bad"
	}
	return good
}

func (d *drawing) addWebhook(e audit.TimelineEntry, r row) {
	sent := r.as("sent once more", "webhook-id "+text(e.Detail, "webhook_id"))
	sent.From, sent.Lane, sent.Class = d.database, d.merchant, "call"
	switch {
	case e.Version > 0:
		sent.From, sent.Text = d.actor(e), text(e.Detail, "type")
		d.row(sent)
		d.addEvent(e, r)
	case e.What == "resent":
		d.row(sent)
	default:
		d.row(r.as(e.What, "by "+e.Who))
	}
}

// addInbox draws what became of a message at its receiver.
func (d *drawing) addInbox(e audit.TimelineEntry, r row) {
	message, claims, holder := "message "+text(e.Detail, "message"), number(e.Detail, "claims"), d.database
	c := d.claimOf(text(e.Detail, "message"), max(number(e.Detail, "fence"), claims))
	if name := text(e.Detail, "holder"); name != "" {
		holder = d.worker(name)
	}
	r = r.as(message+" "+e.What, "for "+e.Who)
	switch e.What {
	case "received":
		r.Text, r.Note = message+" stored", "inbox, for "+e.Who
		if kind := text(e.Detail, "type"); strings.HasPrefix(kind, "stripe.") {
			r.From, r.Note = d.provider, kind
		}
	case "duplicate":
		n := int(number(e.Detail, "duplicates"))
		d.dropped += n
		r.Text, r.Note, r.Dropped = message+" again", text(e.Detail, "dropped_by"), true
		if n > 1 {
			r.Text += fmt.Sprintf(", %d times", n)
		}
	case "taken over":
		d.addTakeover(c, r)
		return
	case "released":
		r.Lane, r.Text = holder, "released: it stops"
	case "failed":
		const waiting = "waiting: " // begins what a message waits for
		r.Lane, r.Text, r.Class, r.Note = holder, "attempt failed", "bad", text(e.Detail, "error")
		if i := strings.LastIndex(r.Note, waiting); i >= 0 {
			r.Text, r.Class, r.Note = "waits, tries again", "message", r.Note[i+len(waiting):]
		}
	case "done":
		r.From, r.Note = holder, fmt.Sprintf("claim %d of %s", claims, e.Who)
	case "dead letter":
		r.Class, r.Note = "bad", text(e.Detail, "last_error")
	case "running":
		r.Lane, r.Text = holder, message+" in progress"
	case "retried", "discarded":
		r.Note = "by " + e.Who
	}
	drawn := d.row(r)
	if slices.Contains([]string{"done", "running", "failed", "released"}, e.What) {
		c.last = drawn
	}
}

// addTakeover draws the end of a lease in the swim lane of its holder, and the claim of the next one.
func (d *drawing) addTakeover(lost *claim, r row) {
	d.takeovers++
	r.From = d.worker(lost.holder)
	lost.last = d.row(row{
		at: lost.ended, Lane: r.From, Class: "dark", Text: "lease ended, no sign", Note: "inbox_done_by_holder",
		Title: "The worker died or went silent. Whatever it still commits is refused by inbox_done_by_holder, with all of its transaction.",
	})
	r.Class = "takeover"
	next := d.claimOf(lost.message, lost.fence+1)
	if next.holder != "" {
		r.Lane = d.worker(next.holder)
		r = r.as("takes over", fmt.Sprintf("message %s, claim %d", next.message, next.fence))
	}
	next.first = d.row(r)
}

// text is a member of a detail, empty where there is none. A list has no brackets.
func text(d audit.Detail, name string) string {
	return strings.Trim(fmt.Sprint(cmp.Or(d[name], any(""))), "[]")
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
