package console

import (
	"net/http"
	"strings"

	"github.com/payonce/payonce/internal/audit"
)

// step is a step of the tour.
type step struct {
	Title, Text string
	File, Func  string // where the code is
	If          string // the process dies here
	kinds       string // of the entries that it wrote: kind and beginning of what
	Rows        []audit.TimelineEntry
}

// Source is where the code can be read.
func (s step) Source() string { return "https://github.com/payonce/payonce/blob/main/" + s.File }

// tour is the page Learn.
type tour struct {
	Charge string // "" while there is none
	Steps  []step
}

// The newest charge that has come to its end.
const selectLearned = `
select charge_id
  from charge_list
 where generation = (select generation from projections where state = 'live')
   and status in ('succeeded', 'refunded', 'partially_refunded')
 order by charge_id desc
 limit 1`

func (c *Console) learn(r *http.Request) (any, error) {
	page := tour{Charge: r.URL.Query().Get("charge"), Steps: append([]step(nil), steps...)}
	if page.Charge == "" {
		if err := c.db.Load().QueryRow(r.Context(), selectLearned).Scan(&page.Charge); err != nil {
			return page, nil //nolint:nilerr // without a charge the tour has no rows
		}
	}
	h, err := c.history(r, page.Charge)
	if err != nil {
		return nil, err
	}
	for i := range page.Steps {
		for _, e := range h.Entries {
			for name := range strings.SplitSeq(page.Steps[i].kinds, ",") {
				if strings.HasPrefix(e.Kind+" "+e.What+" "+e.Who, name) {
					page.Steps[i].Rows = append(page.Steps[i].Rows, e.TimelineEntry)
				}
			}
		}
	}
	return page, nil
}

// steps are those of a charge, in their order. Test: TestLearn_namesCodeThatIsThere.
var steps = []step{
	{
		Title: "A request with a key", File: "internal/httpapi/charges.go", Func: "createCharge",
		Text: "The client sends POST /v1/charges with an Idempotency-Key. The api validates the request and takes its fingerprint. Nothing is stored yet.",
		If:   "Nothing is on disk. The client sends the request again with the same key, and it runs from the start.",
	},
	{
		Title: "The decision", File: "intake/charge.go", Func: "AcceptCharge", kinds: "event charge.requested",
		Text: "A pure function decides. Its event, the postings of the event and a message for the worker are queued in one batch: no statement has been sent.",
		If:   "As before: a decision that is not committed is none.",
	},
	{
		Title: "The key and its answer", File: "idempotency/receive.go", Func: "Receive", kinds: "key POST",
		Text: "The first write of the same batch is the key with its whole answer. The primary key idempotency_keys_once refuses a second one, and with it everything else in that commit.",
		If:   "After the commit the answer is stored. The client that did not get it asks again and gets this one, replayed.",
	},
	{
		Title: "One commit", File: "groupcommit/committer.go", Func: "CommitAs", kinds: "outbox passed charges,outbox waiting charges",
		Text: "Key, event, postings and message become durable in one transaction. Batches that are queued at the same moment share it.",
		If:   "All batches of the transaction are there, or none is. An unknown outcome is resolved by the key.",
	},
	{
		Title: "The message travels", File: "outbox/page.go", Func: "Messages",
		Text: "The doorbell rings. A worker's Watermill subscriber reads a page of messages in the order of their commits, and moves its offset when the page is stored.",
		If:   "The offset is older than the page: the page is read again, and each message that was stored is counted as a duplicate.",
	},
	{
		Title: "Stored once, and leased", File: "inbox/receive.go", Func: "Receive", kinds: "inbox received fulfillment",
		Text: "The inbox stores the message under inbox_message_once and gives it to one worker, with a lease and a fencing token. A second delivery inserts nothing.",
		If:   "The lease runs out. Another worker claims the message with a higher fence; whatever the first one still commits is refused by inbox_done_by_holder.",
	},
	{
		Title: "Stock is reserved", File: "fulfillment/inventory.go", Func: "reserve", kinds: "event inventory.",
		Text: "The step loads the stream and commits its event together with the stock. Of two workers that read the same version of the stream, ledger_events_version_once refuses one.",
		If:   "Either the event and the stock are committed, or neither is. The next holder reads the stream and continues from there.",
	},
	{
		Title: "Money is taken", File: "fulfillment/payment.go", Func: "run", kinds: "event payment.",
		Text: "The worker creates a payment intent, commits its id, and confirms it, each call with an idempotency key that is derived from the charge. No transaction is open while it calls.",
		If:   "The money may be taken and the stream does not know. The next holder asks the provider for the intent first, finds it succeeded, and records the capture. ledger_events_one_capture allows one.",
	},
	{
		Title: "The outcome", File: "fulfillment/run.go", Func: "record", kinds: "event charge.succeeded,event charge.failed,inbox done fulfillment,outbox passed outcomes,outbox waiting outcomes",
		Text: "Capture, outcome, their postings, the end of the delivery and the message about the outcome are one commit. ledger_events_one_outcome allows one outcome.",
		If:   "Nothing of it is there, and the next holder does it; or all of it is, and there is nothing left to do.",
	},
	{
		Title: "The merchant is told", File: "fulfillment/notification.go", Func: "notification", kinds: "inbox received notification,inbox done notification,webhook ",
		Text: "A receiver of its own signs and sends the webhook. Its webhook-id is the id of the outcome's event, the same at each attempt, so the merchant can drop a repetition.",
		If:   "The merchant may have it and the stream does not know. Another worker delivers it again under the same webhook-id.",
	},
}
