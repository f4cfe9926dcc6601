package timeline

import (
	"context"
	"fmt"
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
			folded = domain.Evolve(folded, event)
			entry.Detail = detail(event)
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

// detail is what an operator wants to know of an event.
func detail(e domain.Event) map[string]any {
	switch e := e.(type) {
	case domain.ChargeRequested:
		d := map[string]any{
			"order_id": e.OrderID, "amount": e.Amount, "currency": e.Currency, "fee": e.Fee,
			"payment_method": e.PaymentMethod, "notify": e.Notify,
		}
		if len(e.Items) > 0 {
			d["items"] = articles(e.Items)
		}
		return d
	case domain.ChargeCancelRequested, domain.ChargeSucceeded:
		return map[string]any{}
	case domain.InventoryReserved:
		return map[string]any{"items": articles(e.Items)}
	case domain.InventoryRejected:
		return map[string]any{"code": e.Code}
	case domain.InventoryReleased:
		return map[string]any{"items": articles(e.Items)}
	case domain.PaymentStarted:
		return map[string]any{"provider": e.Provider, "payment_intent": e.PaymentIntent}
	case domain.PaymentAttemptFailed:
		return attempt(e.StatusCode, e.RequestID, "stage", e.Stage)
	case domain.PaymentCaptured:
		return map[string]any{
			"provider": e.Provider, "payment_intent": e.PaymentIntent, "amount": e.Amount, "currency": e.Currency, "fee": e.Fee,
		}
	case domain.PaymentDeclined:
		return reason(e.Failure)
	case domain.ChargeFailed:
		return reason(e.Failure)
	case domain.RefundRequested:
		return map[string]any{"refund_id": e.RefundID, "amount": e.Amount, "notify": e.Notify}
	case domain.RefundAttemptFailed:
		return attempt(e.StatusCode, e.RequestID, "refund_id", e.RefundID)
	case domain.RefundSucceeded:
		return map[string]any{"refund_id": e.RefundID, "provider": e.Provider, "provider_refund": e.ProviderRefund, "amount": e.Amount}
	case domain.RefundFailed:
		d := reason(domain.Failure{Code: e.Code, Message: e.Message})
		d["refund_id"] = e.RefundID
		if e.ProviderRefund != "" {
			d["provider_refund"] = e.ProviderRefund
		}
		return d
	case domain.RefundReversed:
		return map[string]any{"refund_id": e.RefundID, "provider_refund": e.ProviderRefund, "amount": e.Amount, "message": e.Message}
	case domain.MerchantNotified:
		d := map[string]any{"webhook_id": e.EventID, "type": e.Type}
		if e.Version > 0 {
			d["about_version"] = e.Version
		}
		return d
	}
	return map[string]any{}
}

func attempt(status int, request, name string, value any) map[string]any {
	d := map[string]any{"provider_status": status, name: value}
	if request != "" {
		d["provider_request"] = request
	}
	return d
}

func reason(f domain.Failure) map[string]any {
	d := map[string]any{"code": f.Code, "message": f.Message}
	if f.DeclineCode != "" {
		d["decline_code"] = f.DeclineCode
	}
	return d
}

func articles(items []domain.Item) []string {
	names := make([]string, len(items))
	for i, item := range items {
		names[i] = fmt.Sprintf("%d %s", item.Quantity, item.SKU)
	}
	return names
}
