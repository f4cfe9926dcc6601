package timeline

import (
	"context"
	"time"
)

type resendRow struct {
	ResendID    string
	EventID     string
	ChargeID    string
	RequestedBy string
	RequestedAt time.Time
	DeliveredAt *time.Time
}

const selectResends = `
select resend_id::text as resend_id,
       event_id::text  as event_id,
       charge_id,
       requested_by,
       requested_at,
       delivered_at
  from webhook_resends
 where charge_id = any($1)
 order by requested_at, resend_id`

// resends shows webhooks that were wanted once more, longer than the inbox keeps
// their messages: who wanted it, and when the merchant had taken it.
func (r *reading) resends(ctx context.Context) error {
	rows, err := collect[resendRow](ctx, r.q, "the resends", selectResends, r.ids)
	if err != nil {
		return err
	}
	for _, row := range rows {
		entry := func(at time.Time, what, who string) Entry {
			return Entry{
				At: at, Kind: Webhook, ChargeID: row.ChargeID, What: what, Who: who,
				Detail: map[string]any{"webhook_id": row.EventID, "resend": row.ResendID},
			}
		}
		r.add(entry(row.RequestedAt, "resend wanted", row.RequestedBy))
		if row.DeliveredAt != nil {
			r.add(entry(*row.DeliveredAt, "resent", "worker"))
		}
	}
	return nil
}
