package fulfillment_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// fixture is a database with one merchant, its stock, and a provider.
type fixture struct {
	t        *testing.T
	db       *postgres.DB
	worker   *postgres.DB // the same, with the rights of the worker
	provider *provider
	client   *stripe.Client
	charge   inbox.Handler
	log      *await.Log
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, db: testdb.Reused(t), provider: newProvider(t), log: &await.Log{}}
	f.worker = testdb.As(t, f.db, postgres.RoleWorker)
	f.client = newClient(t, f.provider.URL)
	f.charge = f.handler(fulfillment.Services{Provider: f.client, ActionTimeout: time.Hour}, fulfillment.ChargeReceiver)
	f.exec(`insert into merchants (merchant_id) values ('acme')`)
	f.supply("mug", 5)
	f.supply("tshirt", 10)
	return f
}

// newClient waits so long for an answer of the provider, or longer than in production: a busy
// machine is late.
func newClient(t *testing.T, base string) *stripe.Client {
	t.Helper()
	client, err := stripe.New(stripe.Config{SecretKey: "sk_test_1", Base: base, Timeout: time.Minute})
	testdb.Must(t, err)
	t.Cleanup(client.Close)
	return client
}

// handler is that of a receiver of a worker with these services.
func (f *fixture) handler(services fulfillment.Services, receiver string) inbox.Handler {
	return handlerOf(fulfillment.New(f.worker, services, slog.New(slog.NewTextHandler(f.log, nil))), receiver)
}

func handlerOf(f *fulfillment.Fulfillment, receiver string) inbox.Handler {
	for _, r := range f.Receivers() {
		if r.Name == receiver {
			return r.Handle
		}
	}
	return nil
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	testdb.Exec(f.t, f.db.Pool(), sql, args...)
}

func (f *fixture) commit(b *pgx.Batch) {
	f.t.Helper()
	testdb.Must(f.t, f.db.Commit(f.t.Context(), b))
}

// text is the one text that a query finds, "" for null.
func (f *fixture) text(sql string) string {
	f.t.Helper()
	if found := testdb.One[*string](f.t, f.db, sql); found != nil {
		return *found
	}
	return ""
}

func (f *fixture) supply(sku string, quantity int64) {
	f.t.Helper()
	b := &pgx.Batch{}
	fulfillment.Supply(b, "acme", sku, quantity)
	f.commit(b)
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
func (f *fixture) accept(id string, first domain.ChargeRequested) ledger.Stream {
	f.t.Helper()
	s := f.append(ledger.New(id), first)
	f.put(fulfillment.ChargeReceiver, s, 1, s.Head().ID.String())
	return s
}

// start opens ch_1, holds its stock and starts its payment by the payment intent pi_1.
func (f *fixture) start() ledger.Stream {
	f.t.Helper()
	return f.startOf(order())
}

func (f *fixture) startOf(first domain.ChargeRequested) ledger.Stream {
	f.t.Helper()
	s := f.accept("ch_1", first)
	f.exec(`
insert into reservations (charge_id, merchant_id, sku, quantity)
values ('ch_1', 'acme', 'tshirt', 2),
       ('ch_1', 'acme', 'mug', 1)`)
	f.exec(`
update stock
   set available = available - r.quantity,
       reserved  = reserved + r.quantity
  from reservations r
 where r.sku = stock.sku`)
	return f.append(s,
		domain.InventoryReserved{Items: order().Items},
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"})
}

// capture makes ch_1 a charge whose 1999 were captured. It has no items, so the stock stays
// untouched.
func (f *fixture) capture(first domain.ChargeRequested) ledger.Stream {
	f.t.Helper()
	first.Items = nil
	return f.append(ledger.New("ch_1"), first,
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_1", Amount: 1999, Currency: "EUR", Fee: 90},
		domain.ChargeSucceeded{})
}

// append commits events of a stream, as another writer would. A first event gets the steps of this
// program, and a reference where it has none.
func (f *fixture) append(s ledger.Stream, events ...domain.Event) ledger.Stream {
	f.t.Helper()
	if first, opens := events[0].(domain.ChargeRequested); opens {
		first.Reference = cmp.Or(first.Reference, "ref_"+s.ID)
		opened, err := domain.Open(first)
		testdb.Must(f.t, err)
		events = append(opened, events[1:]...)
	}
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, ledger.Cause{CorrelationID: "req_1", CausationID: "rival", Actor: "test"}, events...)
	if errors.Is(err, domain.ErrIllegal) {
		for i, e := range events {
			data, err := domain.Encode(e)
			testdb.Must(f.t, err)
			f.store(s, i+1, domain.TypeOf(e), string(data))
		}
		return f.load(s.ID)
	}
	testdb.Must(f.t, err)
	f.commit(b)
	return next
}

// store stores an event behind the head of a stream as the owner of the tables: no policy and no trigger
// applies, and the charge need not allow it.
func (f *fixture) store(s ledger.Stream, behind int, name, data string) (id string) {
	f.t.Helper()
	id = uuid.NewString()
	f.exec(`
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values ($1, $2, $3, $4, 1, 'acme', $5, '{"actor":"api"}', now())`, id, s.ID, s.Charge.Version+behind, name, data)
	return id
}

// forge stores a request that no api would have accepted, and puts the message about it into the inbox.
func (f *fixture) forge(s ledger.Stream, name, data string) {
	f.t.Helper()
	id, version := f.store(s, 1, name, data), s.Charge.Version+1
	b := &pgx.Batch{}
	inbox.Append(b, fulfillment.ChargeReceiver, inbox.Message{
		ID: id, Type: name, OrderingKey: s.ID, Partition: "acme",
		Payload: ledger.Envelope{ID: id, Type: name, ChargeID: s.ID, Version: version}.Encode(),
	})
	f.commit(b)
}

func (f *fixture) load(id string) ledger.Stream {
	f.t.Helper()
	s, err := ledger.Load(f.t.Context(), f.db, id)
	testdb.Must(f.t, err)
	return s
}

// put puts a message about an event into the inbox of a receiver.
func (f *fixture) put(receiver string, s ledger.Stream, version int, id string) {
	f.t.Helper()
	payload := s.EncodeEnvelope(s.At(version))
	b := &pgx.Batch{}
	inbox.Append(b, receiver, inbox.Message{
		ID: id, Type: s.At(version).Type, OrderingKey: domain.OrderingKey(s.ID, s.At(version).Event), Partition: s.Charge.MerchantID, Payload: payload,
		Metadata: map[string]string{outbox.MetadataCorrelationID: "req_1"},
	})
	f.commit(b)
}

// event puts an event of the provider's about ch_1 into the inbox.
func (f *fixture) event(id, name string) {
	f.t.Helper()
	b := &pgx.Batch{}
	inbox.Append(b, fulfillment.ChargeReceiver, inbox.Message{
		ID: id, Type: "stripe." + name, OrderingKey: "ch_1",
		Payload: []byte(`{"id":"` + id + `","type":"` + name + `","charge_id":"ch_1","object":"pi_1"}`),
	})
	f.commit(b)
}

// deliver hands the message about the charge to its handler, whatever it was to wait for,
// and ends the claim as the handler's result wants.
func (f *fixture) deliver() error {
	f.t.Helper()
	return f.deliverAll(fulfillment.ChargeReceiver, f.charge, 1)[0]
}

// deliverAll hands n messages, which must be all open ones, to the handler of their
// receiver, many of them at a time.
func (f *fixture) deliverAll(receiver string, handle inbox.Handler, n int) []error {
	f.t.Helper()
	f.exec(`
update inbox
   set due_at = now() - interval '2 days',
       status = 'pending'
 where receiver = $1
   and status in ('pending', 'running')`, receiver)
	ctx, cancel := context.WithCancel(f.t.Context())
	returned := make(chan error, n)
	var handled atomic.Int64
	p := processor(f.db, receiver, func(ctx context.Context, d *inbox.Delivery) error {
		err := handle(ctx, d)
		if handled.Add(1) == int64(n) {
			cancel() // no message that arrived meanwhile is claimed
		}
		returned <- err
		return err
	}, func(o *inbox.Options) { o.Concurrency = min(n, 16) })
	ended := make(chan struct{})
	go func() { _ = p.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	errs := make([]error, n)
	for i := range errs {
		errs[i] = await.Receive(f.t, fmt.Sprintf("delivery %d of %d to %s", i+1, n, receiver), returned)
	}
	return errs
}

// processor has the worker's policy for dead letters. What waits does not become due during a test.
func processor(db *postgres.DB, receiver string, handle inbox.Handler, change func(*inbox.Options)) *inbox.Processor {
	deadLetters := inbox.Block
	if receiver == fulfillment.ChargeReceiver {
		deadLetters = inbox.Pass
	}
	o := inbox.Options{
		DB: db, Receiver: receiver, Holder: "test", Concurrency: 1, Handle: handle,
		Policy: inbox.Policy{
			Lease: time.Hour, MaxAttempts: 12, GiveUpAfter: time.Hour,
			BackoffBase: time.Hour, BackoffCap: 24 * time.Hour, DeadLetters: deadLetters,
		},
		Drain: await.Stall, Log: slog.New(slog.DiscardHandler),
	}
	change(&o)
	p, err := inbox.New(o)
	if err != nil {
		panic(err)
	}
	return p
}

// deliverUntilDone delivers the message for as long as it waits.
func (f *fixture) deliverUntilDone() {
	f.t.Helper()
	await.True(f.t, "the message is done", func() bool {
		err := f.deliver()
		if err != nil {
			f.expectEnd(err, "waits")
		}
		return err == nil
	})
}

// takeOver gives the running delivery to another holder.
func (f *fixture) takeOver(answer http.HandlerFunc) http.HandlerFunc {
	return meanwhile(func() { f.exec(`update inbox set fence = fence + 1 where status = 'running'`) }, answer)
}
