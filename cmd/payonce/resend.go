package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
)

type webhooksResendCmd struct {
	Names    []string  `arg:"" optional:"" name:"id" help:"Id of an event, which is the webhook-id, or of a charge: all of its webhook events and those of its refunds."`
	Merchant string    `placeholder:"ID" help:"All webhook events of this merchant, within --since and --until."`
	Since    time.Time `placeholder:"2026-11-21T08:00:00Z" help:"Recorded at this time or later (RFC 3339)."`
	Until    time.Time `placeholder:"2026-11-21T09:00:00Z" help:"Recorded before this time; now without it."`
	JSON     bool      `name:"json" help:"Print the webhooks as JSON."`
}

// resendPage is how many webhook events of a merchant are read at once, and their resends committed.
const resendPage = 200

func (r webhooksResendCmd) check() error {
	switch {
	case len(r.Names) == 0 && r.Merchant == "":
		return errors.New("say what: an event's id, a charge's, or --merchant and --since")
	case len(r.Names) > 0 && (r.Merchant != "" || !r.Since.IsZero() || !r.Until.IsZero()):
		return errors.New("ids, or --merchant with --since and --until, but not both")
	case r.Merchant != "" && r.Since.IsZero():
		return errors.New("--merchant needs --since")
	case !r.Until.IsZero() && !r.Until.After(r.Since):
		return errors.New("--until must be later than --since")
	}
	return nil
}

// resend is a webhook that will be delivered once more.
type resend struct {
	fulfillment.WebhookEvent

	Type       string    `db:"-" json:"type"` // of the webhook: charge.succeeded, …
	RecordedAt time.Time `json:"recorded_at"`
	ResendID   uuid.UUID `db:"-" json:"resend_id"`

	TxID      string        `db:"txid" json:"-"`
	Position  int64         `json:"-"`
	Reachable bool          `json:"-"` // the merchant has an endpoint
	Message   *int64        `json:"-"` // in the inbox
	Status    *inbox.Status `json:"-"` // of the message
}

// The webhook events that are meant: ofNames are those of events, and of charges with their refunds, to
// which indexes lead. ofMerchant is a page of a merchant's, in the order of the index
// ledger_events_feed from the end of the page before; no index leads to a time.
const (
	selectOutcomes = `
select e.event_id,
       e.stream_id   as charge_id,
       e.merchant_id,
       e.type        as stored,
       e.version,
       e.txid::text  as txid,
       e.position,
       e.recorded_at at time zone 'UTC' as recorded_at,
       exists (
         select
           from ledger_events n
          where n.stream_id = e.stream_id
            and n.type like 'merchant.notified.v%'
            and n.data ->> 'event_id' = e.event_id::text) as notified,
       exists (
         select
           from merchants m
          where m.merchant_id = e.merchant_id
            and m.webhook_url is not null) as reachable,
       (select i.id
          from inbox i
         where i.receiver = 'notification'
           and i.message_id = e.event_id::text) as message,
       (select i.status
          from inbox i
         where i.receiver = 'notification'
           and i.message_id = e.event_id::text) as status
  from ledger_events e
 where e.webhook`
	ofNames = `
   and e.event_id in (
         select event_id
           from ledger_events
          where event_id = any ($1::text[]::uuid[])
          union
         select event_id
           from ledger_events
          where stream_id = any ($2))
 order by e.position`
	ofMerchant = `
   and (e.merchant_id, e.txid, e.position) > ($1, $4::text::xid8, $5)
   and e.merchant_id <= $1
   and e.recorded_at >= $2
   and e.recorded_at < coalesce($3::timestamptz, 'infinity')
 order by e.merchant_id, e.txid, e.position
 limit $6`
)

// read returns the webhook events of the names, or a page of the merchant's that begins after an event.
func (r webhooksResendCmd) read(ctx context.Context, db *postgres.DB, after resend) ([]resend, error) {
	var events, charges []string
	for _, name := range r.Names {
		if id, err := uuid.Parse(name); err == nil {
			events = append(events, id.String())
		} else if strings.HasPrefix(name, "ch_") {
			charges = append(charges, name)
		}
	}
	sql, args := selectOutcomes+ofNames, []any{events, charges}
	if r.Merchant != "" {
		until := &r.Until
		if r.Until.IsZero() {
			until = nil
		}
		sql, args = selectOutcomes+ofMerchant, []any{r.Merchant, r.Since, until, after.TxID, after.Position, resendPage}
	}
	rows, _ := db.Query(ctx, sql, args...) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[resend])
	if err != nil {
		return nil, fmt.Errorf("read webhook events: %w", err)
	}
	return found, nil
}

// refusal is why the webhook is not sent again; nil if it can be. A webhook whose message an
// operator discarded was never sent, and can be.
func (r resend) refusal() error {
	switch {
	case !r.Reachable:
		return errors.New("the merchant has no webhook endpoint any more: give it one with payonce seed, and ask again")
	case r.Notified:
		return nil
	case r.Message == nil, *r.Status == inbox.StatusDone:
		return errors.New("there is no webhook to send again: the merchant had no endpoint when it was asked for, or the message has not been received yet")
	case *r.Status == inbox.StatusDead:
		return fmt.Errorf("the webhook was never delivered, its message is a dead letter: payonce inbox retry %d", *r.Message)
	case *r.Status == inbox.StatusDiscarded:
		return nil
	default:
		return errors.New("the webhook is on its way already")
	}
}

// run returns when the resends are recorded; the workers deliver. A webhook that cannot be
// delivered again is named on stderr and does not keep the others from it. If it was given
// by name, the exit code is then 1.
func (r webhooksResendCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	resends, refused, failed := r.record(ctx, c, db)
	if r.JSON { // also after a failure: what was recorded before it will be delivered
		c.stdout.json(map[string]any{"data": resends})
	}
	if r.Merchant == "" {
		return errors.Join(append(refused, failed)...)
	}
	for _, refusal := range refused {
		c.stderr.printf("left out: %v\n", refusal)
	}
	if failed == nil && len(resends)+len(refused) == 0 {
		return fmt.Errorf("merchant %q has no webhook event within that time", r.Merchant)
	}
	return failed
}

// record records the resends of all names, or of each page of a merchant's, in one commit.
//
// If we die here: the resends of pages that were committed are delivered, and those of later
// pages are not recorded. The operator repeats the command, and the merchant knows the
// repeated webhooks by their IDs.
// Test: TestWebhooksResend/what_a_lost_answer_leaves_open_may_be_asked_again.
func (r webhooksResendCmd) record(ctx context.Context, c *console, db *postgres.DB) (resends []resend, refused []error, err error) {
	resends, unknown := []resend{}, slices.Clone(r.Names)
	for after, full := (resend{TxID: "0"}), true; full; {
		found, err := r.read(ctx, db, after)
		if err != nil {
			return resends, refused, err
		}
		full = r.Merchant != "" && len(found) == resendPage
		b := &pgx.Batch{}
		var page []resend
		for _, o := range found {
			after = o
			unknown = slices.DeleteFunc(unknown, func(name string) bool {
				id, err := uuid.Parse(name)
				return name == o.ChargeID || err == nil && id == o.EventID
			})
			o.Type, o.ResendID = domain.EventTypeNamed(o.Stored).Webhook, uuid.New()
			if refusal := o.refusal(); refusal != nil {
				refused = append(refused, fmt.Errorf("%s of %s, event %s: %w", o.Type, o.ChargeID, o.EventID, refusal))
				continue
			}
			fulfillment.Resend(b, o.WebhookEvent, o.ResendID, operator())
			page = append(page, o)
		}
		if len(page) == 0 {
			continue
		}
		if err := db.Commit(ctx, b); err != nil {
			return resends, refused, fmt.Errorf("ask for %d webhooks once more, from event %s on (ask again if in doubt): %w", len(page), page[0].EventID, err)
		}
		resends = append(resends, page...)
		for _, one := range page {
			if !r.JSON {
				c.stdout.printf("%s of %s will be delivered once more: event %s, resend %s\n", one.Type, oneLine(one.ChargeID), one.EventID, one.ResendID)
			}
		}
	}
	for _, name := range unknown {
		refused = append(refused, fmt.Errorf("%q is neither a webhook event nor a charge that has one", name))
	}
	return resends, refused, nil
}
