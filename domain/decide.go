package domain

import (
	"errors"
	"fmt"
)

// Refusals of Decide. Each is final for the command as it stands.
var (
	// ErrNoCharge refuses a command for a stream that has no event yet.
	ErrNoCharge = errors.New("the charge does not exist")
	// ErrFinished refuses a command that came after the charge's outcome and
	// contradicts it.
	ErrFinished = errors.New("the charge has come to its outcome")
	// ErrOutOfOrder refuses a command whose turn has not come or is over.
	ErrOutOfOrder = errors.New("the step is not due")
	// ErrMismatch refuses a capture of another amount, currency or payment
	// intent than the charge's own.
	ErrMismatch = errors.New("the provider's object is not the charge's")
	// ErrInvalid refuses a request whose values no charge can have.
	ErrInvalid = errors.New("the request is not valid")
)

// Command is something that somebody wants done to a charge.
//
//sumtype:decl
type Command interface{ command() }

type (
	// RequestCharge opens a charge.
	RequestCharge struct {
		MerchantID    string
		OrderID       string
		Amount        Money
		Fees          FeeSchedule
		PaymentMethod string
		Items         []Item
		Description   string
		Metadata      map[string]string
		Notify        bool
	}

	// ReserveInventory holds stock for the charge's items.
	ReserveInventory struct{}

	// RejectInventory fails the charge because stock refused.
	RejectInventory struct{ Code FailureCode }

	// StartPayment records the provider's object before any money moves.
	StartPayment struct {
		Provider      string
		PaymentIntent string
	}

	// FailAttempt records that the provider answered with an error of its own.
	FailAttempt struct {
		Stage      Stage
		StatusCode int
		RequestID  string
	}

	// CapturePayment records that the provider took the money.
	CapturePayment struct {
		Provider      string
		PaymentIntent string
		Amount        Money
	}

	// DeclinePayment records that the provider did not take the money, and
	// compensates. The payment intent, if there is one, must be canceled at the
	// provider before.
	DeclinePayment struct{ Failure Failure }

	// CancelCharge asks to cancel a charge that has no outcome yet.
	CancelCharge struct{}

	// FailCanceled ends a charge that was asked to be canceled, and compensates.
	// The payment intent, if there is one, must be canceled at the provider
	// before.
	FailCanceled struct{}

	// NotifyMerchant records that the merchant took the webhook about the
	// outcome at Version, 0 for the charge's own.
	NotifyMerchant struct {
		EventID string
		Type    string
		Version int
	}
)

func (RequestCharge) command()    {}
func (ReserveInventory) command() {}
func (RejectInventory) command()  {}
func (StartPayment) command()     {}
func (FailAttempt) command()      {}
func (CapturePayment) command()   {}
func (DeclinePayment) command()   {}
func (CancelCharge) command()     {}
func (FailCanceled) command()     {}
func (NotifyMerchant) command()   {}

// Decide returns the events that cmd causes to c: none if it has happened
// already, or a refusal that wraps one of the sentinels. It changes nothing.
func Decide(c Charge, cmd Command) ([]Event, error) {
	if _, opens := cmd.(RequestCharge); !opens && !c.Exists() {
		return nil, ErrNoCharge
	}
	switch cmd := cmd.(type) {
	case RequestCharge:
		return cmd.decide(c)
	case ReserveInventory:
		return cmd.decide(c)
	case RejectInventory:
		return cmd.decide(c)
	case StartPayment:
		return cmd.decide(c)
	case FailAttempt:
		return cmd.decide(c)
	case CapturePayment:
		return cmd.decide(c)
	case DeclinePayment:
		return cmd.decide(c)
	case CancelCharge:
		return cmd.decide(c)
	case FailCanceled:
		return cmd.decide(c)
	case RequestRefund:
		return cmd.decide(c)
	case FailRefundAttempt:
		return cmd.decide(c)
	case SucceedRefund:
		return cmd.decide(c)
	case FailRefund:
		return cmd.decide(c)
	case ReverseRefund:
		return cmd.decide(c)
	case NotifyMerchant:
		return cmd.decide(c)
	default:
		return nil, fmt.Errorf("command %T: %w", cmd, ErrInvalid)
	}
}

func (r RequestCharge) decide(c Charge) ([]Event, error) {
	if c.Exists() {
		return nil, nil
	}
	if r.Amount.Amount < MinAmount || r.Amount.Amount > MaxAmount {
		return nil, fmt.Errorf("amount %d: %w", r.Amount.Amount, ErrInvalid)
	}
	seen := make(map[string]bool, len(r.Items))
	for _, item := range r.Items {
		if item.Quantity < 1 || seen[item.SKU] {
			return nil, fmt.Errorf("item %q: %w", item.SKU, ErrInvalid)
		}
		seen[item.SKU] = true
	}
	return []Event{ChargeRequested{
		MerchantID:    r.MerchantID,
		OrderID:       r.OrderID,
		Amount:        r.Amount.Amount,
		Currency:      r.Amount.Currency,
		Fee:           r.Fees.Of(r.Amount),
		PaymentMethod: r.PaymentMethod,
		Items:         r.Items,
		Description:   r.Description,
		Metadata:      r.Metadata,
		Notify:        r.Notify,
	}}, nil
}

func (ReserveInventory) decide(c Charge) ([]Event, error) {
	if c.Inventory != StepPending {
		return nil, nil // reserved, rejected, released or nothing to reserve
	}
	return []Event{InventoryReserved{Items: c.Items}}, nil
}

func (r RejectInventory) decide(c Charge) ([]Event, error) {
	switch c.Inventory {
	case StepFailed:
		return nil, nil
	case StepPending:
		if r.Code == Canceled {
			return nil, fmt.Errorf("reject inventory as %s: %w", r.Code, ErrInvalid)
		}
		return []Event{
			InventoryRejected(r),
			ChargeFailed{Failure{Code: r.Code, Message: r.message()}},
		}, nil
	default:
		return nil, fmt.Errorf("reject inventory that is %s: %w", c.Inventory, ErrOutOfOrder)
	}
}

func (r RejectInventory) message() string {
	if r.Code == UnknownSKU {
		return "an item of the order is not an article of the merchant"
	}
	return "an item of the order is out of stock"
}

func (s StartPayment) decide(c Charge) ([]Event, error) {
	switch {
	case c.Started():
		return nil, nil // another holder was first: its intent is the charge's, ours is an orphan
	case c.Payment != StepPending:
		return nil, fmt.Errorf("start a payment that is %s: %w", c.Payment, ErrFinished)
	case c.Inventory == StepPending:
		return nil, fmt.Errorf("start a payment before stock is held: %w", ErrOutOfOrder)
	case s.PaymentIntent == "":
		return nil, fmt.Errorf("start a payment without a payment intent: %w", ErrInvalid)
	}
	return []Event{PaymentStarted(s)}, nil
}

func (f FailAttempt) decide(c Charge) ([]Event, error) {
	if c.Payment != StepPending {
		return nil, nil // the attempt was decided otherwise: its failure no longer matters
	}
	if c.Inventory == StepPending {
		return nil, fmt.Errorf("fail an attempt before stock is held: %w", ErrOutOfOrder)
	}
	return []Event{PaymentAttemptFailed(f)}, nil
}

func (p CapturePayment) decide(c Charge) ([]Event, error) {
	if !c.Started() || p.PaymentIntent != c.PaymentIntent || p.Amount != c.Amount {
		return nil, fmt.Errorf("captured %d %s by %s: %w",
			p.Amount.Amount, p.Amount.Currency, p.PaymentIntent, ErrMismatch)
	}
	switch c.Payment {
	case StepDone:
		return nil, nil
	case StepPending:
		return []Event{
			PaymentCaptured{
				Provider:      p.Provider,
				PaymentIntent: p.PaymentIntent,
				Amount:        p.Amount.Amount,
				Currency:      p.Amount.Currency,
				Fee:           c.Fee,
			},
			ChargeSucceeded{},
		}, nil
	default:
		return nil, fmt.Errorf("capture a payment that is %s: %w", c.Payment, ErrFinished)
	}
}

func (d DeclinePayment) decide(c Charge) ([]Event, error) {
	switch {
	case c.Payment == StepFailed:
		return nil, nil
	case c.Inventory == StepPending:
		return nil, fmt.Errorf("decline a payment before stock is held: %w", ErrOutOfOrder)
	case c.Payment == StepPending && !c.mayFailFor(d.Failure.Code):
		return nil, fmt.Errorf("decline a payment as %s that nobody asked to cancel: %w", d.Failure.Code, ErrInvalid)
	case c.Payment == StepPending:
		events := []Event{PaymentDeclined{d.Failure}}
		if c.Inventory == StepDone {
			events = append(events, InventoryReleased{Items: c.Items})
		}
		return append(events, ChargeFailed{d.Failure}), nil
	default:
		return nil, fmt.Errorf("decline a payment that is %s: %w", c.Payment, ErrFinished)
	}
}

// mayFailFor tells whether a charge may fail for a reason: as canceled only if
// the merchant asked for it.
func (c Charge) mayFailFor(code FailureCode) bool { return code != Canceled || c.CancelRequested }

func (CancelCharge) decide(c Charge) ([]Event, error) {
	switch {
	case c.Terminal():
		return nil, fmt.Errorf("cancel a charge that is %s: %w", c.Status, ErrFinished)
	case c.CancelRequested:
		return nil, nil
	}
	return []Event{ChargeCancelRequested{}}, nil
}

func (FailCanceled) decide(c Charge) ([]Event, error) {
	switch {
	case c.Status == Failed:
		return nil, nil
	case c.Payment == StepDone:
		return nil, fmt.Errorf("cancel a charge that is captured: %w", ErrFinished)
	case !c.CancelRequested:
		return nil, fmt.Errorf("cancel a charge that nobody asked to cancel: %w", ErrOutOfOrder)
	}
	why := Failure{Code: Canceled, Message: "the charge was canceled"}
	var events []Event
	if c.Started() {
		events = append(events, PaymentDeclined{why})
	}
	if c.Inventory == StepDone {
		events = append(events, InventoryReleased{Items: c.Items})
	}
	return append(events, ChargeFailed{why}), nil
}

func (n NotifyMerchant) decide(c Charge) ([]Event, error) {
	event := MerchantNotified(n)
	switch version := event.about(c); {
	case c.Tells(version):
		return []Event{event}, nil
	case c.outcomeAt(version):
		return nil, nil
	default:
		return nil, fmt.Errorf("notify before the outcome: %w", ErrOutOfOrder)
	}
}
