package fulfillment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

// ChargeReceiver is the receiver that carries charges and their refunds.
const ChargeReceiver = "fulfillment"

// Fulfillment handles the messages of ChargeReceiver.
type Fulfillment struct {
	DB       *postgres.DB
	Reader   *Reader
	Provider *stripe.Client
	Log      *slog.Logger

	// Stepping, where set, is called before a step, and what it returns after it,
	// with whether the step had something to do and why it did not come to its end.
	// The step runs in the context that it returns. It must return at once.
	Stepping func(ctx context.Context, step string) (within context.Context, stepped func(did bool, err error))
}

// Steps are the names that Stepping is called with.
func Steps() []string { return []string{"cancel", "inventory", "payment", "refund"} }

// step does what is missing of one part of a charge, and nothing if nothing is.
type step struct {
	name string
	run  func(*walk, context.Context) error
}

// chargeSteps is the way of a charge. A step that brings the outcome ends it.
func chargeSteps() []step {
	return []step{
		{"cancel", (*walk).honorCancel},
		{"inventory", (*walk).reserveInventory},
		{"payment", (*walk).startPayment},
		{"payment", (*walk).confirmPayment},
	}
}

// Charge is the inbox handler that walks one charge to its outcome, and then
// every refund of it that has none.
//
// The ordering key names the charge. Of the payload only the version of the event is
// read, of a provider's event only the type: when the provider speaks of refunds, one
// may have failed after it succeeded.
//
// The commit that leaves nothing to be carried also ends the delivery.
func (f *Fulfillment) Charge(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
	version := 0 // none is named by the provider's events
	if envelope, err := ledger.Open(d.Payload); err == nil && !fromProvider(d) {
		version = envelope.Version
	}
	result, err := again(ctx, f.Reader, d.OrderingKey, version, func(s ledger.Stream) (inbox.Result, error) {
		w := &walk{Fulfillment: f, d: d, s: s, aboutRefunds: aboutRefunds(d)}
		err := w.carry(ctx)
		return w.result, err
	})
	if errors.Is(err, ledger.ErrNotFound) && fromProvider(d) {
		f.Log.InfoContext(ctx, "provider event of an unknown charge", "message_id", d.ID, "charge_id", d.OrderingKey, "type", d.Type)
		return inbox.Complete, nil
	}
	return result, err
}

func (w *walk) carry(ctx context.Context) error {
	for _, step := range chargeSteps() {
		if w.s.Charge.Terminal() {
			break
		}
		if err := w.timed(ctx, step); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	if !w.s.Charge.Terminal() {
		return fmt.Errorf("charge %s has no outcome after its last step", w.s.ID)
	}
	return w.timed(ctx, step{"refund", (*walk).carryRefunds})
}

// timed runs a step under the eyes of Stepping.
func (w *walk) timed(ctx context.Context, s step) error {
	if w.Stepping == nil {
		return s.run(w, ctx)
	}
	ctx, stepped := w.Stepping(ctx, s.name)
	before := w.s.Charge.Version
	err := errPanicked
	defer func() { stepped(err != nil || w.s.Charge.Version != before, err) }()
	err = s.run(w, ctx)
	return err
}

// errPanicked is what Stepping is told of a step that did not return. The inbox
// tells of the panic itself.
var errPanicked = errors.New("the step panicked")

// providerEvent is how the types of messages begin that the provider's webhooks
// brought; its own name of the event follows.
const providerEvent = "stripe."

func fromProvider(d inbox.Delivery) bool { return strings.HasPrefix(d.Type, providerEvent) }

// aboutRefunds tells whether the provider speaks of a refund. The same news have
// had several names.
func aboutRefunds(d inbox.Delivery) bool {
	name, spoken := strings.CutPrefix(d.Type, providerEvent)
	if !spoken {
		return false
	}
	return strings.HasPrefix(name, "refund.") || name == "charge.refund.updated" || name == "charge.refunded"
}
