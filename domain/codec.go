package domain

import (
	"encoding/json"
	"errors"
	"fmt"
)

// The stored names. They are literals because a stored name outlives the Go
// type that it was written from.
const (
	TypeChargeRequested       = "charge.requested.v1"
	TypeChargeCancelRequested = "charge.cancel_requested.v1"
	TypeInventoryReserved     = "inventory.reserved.v1"
	TypeInventoryRejected     = "inventory.rejected.v1"
	TypeInventoryReleased     = "inventory.released.v1"
	TypePaymentStarted        = "payment.started.v1"
	TypePaymentAttemptFailed  = "payment.attempt_failed.v1"
	TypePaymentCaptured       = "payment.captured.v1"
	TypePaymentDeclined       = "payment.declined.v1"
	TypeChargeSucceeded       = "charge.succeeded.v1"
	TypeChargeFailed          = "charge.failed.v1"
	TypeMerchantNotified      = "merchant.notified.v1"
	TypeRefundRequested       = "refund.requested.v1"
	TypeRefundAttemptFailed   = "refund.attempt_failed.v1"
	TypeRefundSucceeded       = "refund.succeeded.v1"
	TypeRefundFailed          = "refund.failed.v1"
	TypeRefundReversed        = "refund.reversed.v1"
)

// SchemaVersion is the version in every name above.
const SchemaVersion = 1

// ErrUnknownType is returned by Decode for a name that this program does not
// know: it was written by a newer one.
var ErrUnknownType = errors.New("unknown event type")

// TypeOf is the stored name of an event.
func TypeOf(e Event) string {
	switch e.(type) {
	case ChargeRequested:
		return TypeChargeRequested
	case InventoryReserved:
		return TypeInventoryReserved
	case InventoryRejected:
		return TypeInventoryRejected
	case InventoryReleased:
		return TypeInventoryReleased
	case PaymentStarted:
		return TypePaymentStarted
	case PaymentAttemptFailed:
		return TypePaymentAttemptFailed
	case PaymentCaptured:
		return TypePaymentCaptured
	case PaymentDeclined:
		return TypePaymentDeclined
	case ChargeSucceeded:
		return TypeChargeSucceeded
	case ChargeFailed:
		return TypeChargeFailed
	case MerchantNotified:
		return TypeMerchantNotified
	case ChargeCancelRequested:
		return TypeChargeCancelRequested
	case RefundRequested:
		return TypeRefundRequested
	case RefundAttemptFailed:
		return TypeRefundAttemptFailed
	case RefundSucceeded:
		return TypeRefundSucceeded
	case RefundFailed:
		return TypeRefundFailed
	case RefundReversed:
		return TypeRefundReversed
	default:
		return ""
	}
}

// Encode is the stored form of an event: a JSON object.
func Encode(e Event) ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", e, err)
	}
	return data, nil
}

// Decode reads a stored event. Every name ever stored stays readable here; an
// old version is turned into today's type at this place and nowhere else.
func Decode(name string, data []byte) (Event, error) {
	switch name {
	case TypeChargeRequested:
		return decode[ChargeRequested](name, data)
	case TypeInventoryReserved:
		return decode[InventoryReserved](name, data)
	case TypeInventoryRejected:
		return decode[InventoryRejected](name, data)
	case TypeInventoryReleased:
		return decode[InventoryReleased](name, data)
	case TypePaymentStarted:
		return decode[PaymentStarted](name, data)
	case TypePaymentAttemptFailed:
		return decode[PaymentAttemptFailed](name, data)
	case TypePaymentCaptured:
		return decode[PaymentCaptured](name, data)
	case TypePaymentDeclined:
		return decode[PaymentDeclined](name, data)
	case TypeChargeSucceeded:
		return decode[ChargeSucceeded](name, data)
	case TypeChargeFailed:
		return decode[ChargeFailed](name, data)
	case TypeMerchantNotified:
		return decode[MerchantNotified](name, data)
	case TypeChargeCancelRequested:
		return decode[ChargeCancelRequested](name, data)
	case TypeRefundRequested:
		return decode[RefundRequested](name, data)
	case TypeRefundAttemptFailed:
		return decode[RefundAttemptFailed](name, data)
	case TypeRefundSucceeded:
		return decode[RefundSucceeded](name, data)
	case TypeRefundFailed:
		return decode[RefundFailed](name, data)
	case TypeRefundReversed:
		return decode[RefundReversed](name, data)
	default:
		return nil, fmt.Errorf("decode %q: %w", name, ErrUnknownType)
	}
}

func decode[E Event](name string, data []byte) (Event, error) {
	var e E
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("decode %s: %w", name, err)
	}
	return e, nil
}
