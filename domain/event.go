package domain

// Event is something that happened to a charge. The set is sealed: only this
// package adds to it.
//
//sumtype:decl
type Event interface{ event() }

type (
	// ChargeRequested opens the stream. Everything that later decisions need is
	// frozen here: the fee, and whether the merchant wants to be told.
	ChargeRequested struct {
		MerchantID    string            `json:"merchant_id"`
		OrderID       string            `json:"order_id"`
		Amount        int64             `json:"amount"`
		Currency      Currency          `json:"currency"`
		Fee           int64             `json:"fee"`
		PaymentMethod string            `json:"payment_method"`
		Items         []Item            `json:"items,omitempty"`
		Description   string            `json:"description,omitempty"`
		Metadata      map[string]string `json:"metadata,omitempty"`
		Notify        bool              `json:"notify"`
	}

	// InventoryReserved says that stock is held for the charge.
	InventoryReserved struct {
		Items []Item `json:"items"`
	}

	// InventoryRejected says that stock refused; the charge fails with it.
	InventoryRejected struct {
		Code FailureCode `json:"code"`
	}

	// InventoryReleased gives the held stock back: the compensation.
	InventoryReleased struct {
		Items []Item `json:"items"`
	}

	// PaymentStarted names the provider's object on which the payment stands.
	PaymentStarted struct {
		Provider      string `json:"provider"`
		PaymentIntent string `json:"payment_intent"`
	}

	// PaymentAttemptFailed says that the provider answered a call with an error
	// of its own (5xx). The provider may have saved that answer under the key of
	// the call, so the next call needs the new key that this event's id is.
	PaymentAttemptFailed struct {
		Stage      Stage  `json:"stage"`
		StatusCode int    `json:"status_code"`
		RequestID  string `json:"request_id,omitempty"`
	}

	// PaymentCaptured says that the money was taken.
	PaymentCaptured struct {
		Provider      string   `json:"provider"`
		PaymentIntent string   `json:"payment_intent"`
		Amount        int64    `json:"amount"`
		Currency      Currency `json:"currency"`
		Fee           int64    `json:"fee"`
	}

	// PaymentDeclined says that the money was not taken and never will be: at
	// the provider the payment intent, if there is one, is canceled.
	PaymentDeclined struct {
		Failure
	}

	// ChargeSucceeded ends the charge well.
	ChargeSucceeded struct{}

	// ChargeFailed ends the charge without money taken.
	ChargeFailed struct {
		Failure
	}

	// ChargeCancelRequested says that the merchant wants the charge canceled. A
	// capture that is faster wins.
	ChargeCancelRequested struct{}

	// RefundRequested says that part of a captured charge is to go back.
	RefundRequested struct {
		RefundID string `json:"refund_id"`
		Amount   int64  `json:"amount"`
		Reason   string `json:"reason,omitempty"`
		Notify   bool   `json:"notify"`
	}

	// RefundAttemptFailed is to a refund what PaymentAttemptFailed is to a
	// payment: its id is the key of the next call.
	RefundAttemptFailed struct {
		RefundID   string `json:"refund_id"`
		StatusCode int    `json:"status_code"`
		RequestID  string `json:"request_id,omitempty"`
	}

	// RefundSucceeded says that the provider gave the money back.
	RefundSucceeded struct {
		RefundID       string `json:"refund_id"`
		Provider       string `json:"provider"`
		ProviderRefund string `json:"provider_refund"`
		Amount         int64  `json:"amount"`
	}

	// RefundFailed says that the provider did not, and will not under this refund.
	RefundFailed struct {
		RefundID       string      `json:"refund_id"`
		ProviderRefund string      `json:"provider_refund,omitempty"`
		Code           FailureCode `json:"code"`
		Message        string      `json:"message"`
	}

	// RefundReversed says that a refund failed at the provider after it had
	// succeeded there.
	RefundReversed struct {
		RefundID       string `json:"refund_id"`
		ProviderRefund string `json:"provider_refund"`
		Amount         int64  `json:"amount"`
		Message        string `json:"message,omitempty"`
	}

	// MerchantNotified says that the merchant's endpoint took the webhook about
	// the event EventID, which is at Version of this stream. Before there were
	// refunds the version was not written: it was the charge's outcome.
	MerchantNotified struct {
		EventID string `json:"event_id"`
		Type    string `json:"type"`
		Version int    `json:"version,omitempty"`
	}
)

// about is the version of the outcome that the merchant was told of.
func (n MerchantNotified) about(c Charge) int {
	if n.Version == 0 {
		return c.OutcomeVersion
	}
	return n.Version
}

// Stage is the provider call that a payment attempt was at.
type Stage string

// The stages of a payment.
const (
	StageCreate  Stage = "create"
	StageConfirm Stage = "confirm"
)

// Item is a quantity of one article.
type Item struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}

// Failure is why a charge failed.
type Failure struct {
	Code        FailureCode `json:"code"`
	Message     string      `json:"message"`
	DeclineCode string      `json:"decline_code,omitempty"`
}

// FailureCode is the reason in one word.
type FailureCode string

// The reasons for which a charge fails.
const (
	OutOfStock             FailureCode = "out_of_stock"
	UnknownSKU             FailureCode = "unknown_sku"
	CardDeclined           FailureCode = "card_declined"
	AuthenticationRequired FailureCode = "authentication_required"
	ProviderRefused        FailureCode = "provider_refused"
	Canceled               FailureCode = "canceled"
)

func (ChargeRequested) event()       {}
func (ChargeCancelRequested) event() {}
func (InventoryReserved) event()     {}
func (InventoryRejected) event()     {}
func (InventoryReleased) event()     {}
func (PaymentStarted) event()        {}
func (PaymentAttemptFailed) event()  {}
func (PaymentCaptured) event()       {}
func (PaymentDeclined) event()       {}
func (ChargeSucceeded) event()       {}
func (ChargeFailed) event()          {}
func (MerchantNotified) event()      {}
func (RefundRequested) event()       {}
func (RefundAttemptFailed) event()   {}
func (RefundSucceeded) event()       {}
func (RefundFailed) event()          {}
func (RefundReversed) event()        {}
