package timeline

import (
	"context"
	"strings"
	"time"

	"github.com/payonce/payonce/domain"
)

type eventRow struct {
	ChargeID      string
	EventID       string
	Version       int
	Type          string
	MerchantID    string
	Data          []byte
	Actor         string
	CorrelationID string
	CausationID   string
	RecordedAt    time.Time
}

const selectEvents = `
select stream_id                                as charge_id,
       event_id::text                           as event_id,
       version,
       type,
       merchant_id,
       data,
       coalesce(metadata ->> 'actor', '')          as actor,
       coalesce(metadata ->> 'correlation_id', '') as correlation_id,
       coalesce(metadata ->> 'causation_id', '')   as causation_id,
       recorded_at
  from ledger_events
 where stream_id = any($1)
 order by stream_id, version`

// events shows the streams, and folds them where all of it can be read.
func (r *reading) events(ctx context.Context) error {
	r.messages = map[string]string{}
	rows, err := collect[eventRow](ctx, r.q, "the events", selectEvents, r.ids)
	if err != nil {
		return err
	}
	var folded domain.Charge
	unread := false
	for i, row := range rows {
		if row.Version == 1 {
			folded, unread = domain.Charge{ID: row.ChargeID}, false
		}
		r.messages[row.EventID] = row.ChargeID
		entry := Entry{
			At: row.RecordedAt, Kind: Event, ChargeID: row.ChargeID, Version: row.Version, What: row.Type, Who: row.Actor,
		}
		event, err := domain.Decode(row.Type, row.Data)
		if err != nil {
			unread = true
			entry.Detail = map[string]any{"unreadable": err.Error()}
		} else {
			folded = domain.Fold(folded, event)
			entry.Detail = domain.Details(event)
		}
		if strings.HasPrefix(row.Type, "merchant.notified.") {
			entry.Kind = Webhook
		}
		entry.Detail["event_id"] = row.EventID
		if row.CorrelationID != "" {
			entry.Detail["request"] = row.CorrelationID
		}
		if row.CausationID != "" && row.CausationID != row.CorrelationID {
			entry.Detail["cause"] = row.CausationID
		}
		r.add(entry)
		if i == len(rows)-1 || rows[i+1].ChargeID != row.ChargeID {
			r.t.Charges = append(r.t.Charges, summary(folded, row.MerchantID, unread))
		}
	}
	return nil
}

func summary(c domain.Charge, merchant string, unread bool) Charge {
	s := Charge{
		ID: c.ID, MerchantID: merchant, OrderID: c.OrderID, Amount: c.Amount.Amount, Currency: string(c.Amount.Currency),
		Status: c.Status, PaymentIntent: c.PaymentIntent,
	}
	if unread {
		s.Status = ""
	}
	return s
}
