package fulfillment_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// world is a database with one merchant, its stock, and a provider.
type world struct {
	*testing.T
	db       *postgres.DB
	provider *provider
	client   *stripe.Client
	charge   inbox.Handler
	log      *transcript
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, db: testdb.Reused(t), provider: newProvider(t), log: &transcript{}}
	w.client = w.clientWithin(0)
	w.charge = w.handlerOf(w.client)
	w.exec(`insert into merchants (merchant_id) values ('acme')`)
	w.supply("mug", 5)
	w.supply("tshirt", 10)
	return w
}

// clientWithin waits so long for an answer of the provider; as long as in
// production where that is zero.
func (w *world) clientWithin(timeout time.Duration) *stripe.Client {
	w.Helper()
	client, err := stripe.New(stripe.Config{SecretKey: "sk_test_1", Base: w.provider.URL, Timeout: timeout})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(client.Close)
	return client
}

// handlerOf handles charges through the client.
func (w *world) handlerOf(client *stripe.Client) inbox.Handler {
	return handlerFor(fulfillment.New(w.db, fulfillment.Services{Provider: client}, slog.New(slog.NewTextHandler(w.log, nil))), fulfillment.ChargeReceiver)
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	w.commit(b)
}

func (w *world) commit(b *pgx.Batch) {
	w.Helper()
	if err := w.db.Commit(w.Context(), b); err != nil {
		w.Fatal(err)
	}
}

func (w *world) supply(sku string, quantity int64) {
	w.Helper()
	b := &pgx.Batch{}
	fulfillment.Supply(b, "acme", sku, quantity)
	w.commit(b)
}

// order is the first event of a charge over two tshirts and a mug.
func order() domain.ChargeRequested {
	return domain.ChargeRequested{
		MerchantID: "acme", OrderID: "order 1", Amount: 1999, Currency: "EUR", Fee: 90, PaymentMethod: "pm_card_visa",
		Items:    []domain.Item{{SKU: "tshirt", Quantity: 2}, {SKU: "mug", Quantity: 1}},
		Metadata: map[string]string{"basket": "7"}, Notify: true,
	}
}

// accept opens a charge, and puts the message about it into the inbox.
func (w *world) accept(id string, first domain.ChargeRequested) ledger.Stream {
	w.Helper()
	s := w.append(ledger.New(id), first)
	w.put(fulfillment.ChargeReceiver, s, 1, s.Head().ID.String())
	return s
}

// start opens ch_1 and brings it to where its stock is held and its payment
// stands on the payment intent pi_1.
func (w *world) start() ledger.Stream {
	w.Helper()
	s := w.accept("ch_1", order())
	w.exec(`
insert into reservations (charge_id, merchant_id, sku, quantity)
values ('ch_1', 'acme', 'tshirt', 2),
       ('ch_1', 'acme', 'mug', 1)`)
	w.exec(`
update stock
   set available = available - r.quantity,
       reserved  = reserved + r.quantity
  from reservations r
 where r.sku = stock.sku`)
	return w.append(s,
		domain.InventoryReserved{Items: order().Items},
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"})
}

// append commits events of a stream, as another holder would.
func (w *world) append(s ledger.Stream, events ...domain.Event) ledger.Stream {
	w.Helper()
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, ledger.Cause{CorrelationID: "req_1", CausationID: "rival", Actor: "test"}, events...)
	if err != nil {
		w.Fatal(err)
	}
	w.commit(b)
	return next
}

func (w *world) load() ledger.Stream {
	w.Helper()
	return w.loadOf("ch_1")
}

func (w *world) loadOf(id string) ledger.Stream {
	w.Helper()
	s, err := ledger.Load(w.Context(), w.db, id)
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// put puts a message about an event into the inbox of a receiver.
func (w *world) put(receiver string, s ledger.Stream, version int, id string) {
	w.Helper()
	payload, err := s.Seal(s.At(version))
	if err != nil {
		w.Fatal(err)
	}
	w.exec(`
insert into inbox
       (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash)
values ($1, $2, $3, $7, $4, $5, $6, sha256($5))`,
		receiver, id, s.ID, s.At(version).Type, payload, map[string]string{outbox.MetadataCorrelationID: "req_1"}, s.Charge.MerchantID)
}

// deliver hands the message about the charge to its handler, whatever it was to
// wait for, and ends the claim as the answer wants.
func (w *world) deliver() error {
	w.Helper()
	return w.deliverAll(fulfillment.ChargeReceiver, w.charge, 1)[0]
}

// deliverAll hands n messages, which must be all that are open, to the handler
// of their receiver, many of them at a time.
func (w *world) deliverAll(receiver string, handle inbox.Handler, n int) []error {
	w.Helper()
	w.exec(`
update inbox
   set due_at = clock_timestamp() - interval '2 days'
 where receiver = $1
   and status in ('pending', 'running')`, receiver)
	ctx, cancel := context.WithCancel(w.Context())
	parked := inbox.Block
	if receiver == fulfillment.ChargeReceiver {
		parked = inbox.Pass // as the worker has it
	}
	returned := make(chan error, n)
	var handled atomic.Int64
	p := &inbox.Processor{
		DB: w.db, Receiver: receiver, Holder: "test", Concurrency: min(n, 16),
		Handle: func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			result, err := handle(ctx, d)
			if handled.Add(1) == int64(n) {
				cancel() // none that came meanwhile is claimed
			}
			returned <- err
			return result, err
		},
		Policy: inbox.Policy{
			Lease: time.Hour, MaxAttempts: 12, GiveUpAfter: time.Hour,
			BackoffBase: time.Hour, BackoffCap: 24 * time.Hour, Parked: parked,
		},
		Poll: 5 * time.Millisecond, Drain: await.Stall, Log: slog.New(slog.DiscardHandler),
	}
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	errs := make([]error, n)
	for i := range errs {
		errs[i] = await.Receive(w, fmt.Sprintf("delivery %d of %d to %s", i+1, n, receiver), returned)
	}
	return errs
}

// kind is what an answer of a handler means to the inbox.
func kind(err error) string {
	var waiting *inbox.WaitError
	var parking *inbox.ParkError
	switch {
	case err == nil:
		return "done"
	case inbox.IsLost(err):
		return "lost"
	case errors.As(err, &parking):
		return "parked"
	case errors.As(err, &waiting):
		return "waits"
	default:
		return err.Error()
	}
}

// handlerFor is the handler of one of the receivers.
func handlerFor(f *fulfillment.Fulfillment, receiver string) inbox.Handler {
	for _, r := range f.Receivers() {
		if r.Name == receiver {
			return r.Handle
		}
	}
	return nil
}
