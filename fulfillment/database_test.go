package fulfillment_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/fulfillment/operate"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// The histories of charges in the database.
const (
	toStarted = "charge.requested inventory.reserved payment.started"
	paid      = toStarted + " payment.captured charge.succeeded"
	refunded  = paid + " refund.requested refund.succeeded"
	creates   = "create/0:requires_confirmation "
)

// TestCharge is what one commit stores beside the events: the stock, and the message about the outcome.
func TestCharge(t *testing.T) {
	t.Parallel()
	t.Run("that is paid and refunded", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.accept("ch_1", order())
		f.deliver(creates+"confirm/3:cut", "waits")
		f.expect(toStarted, held, "", "pending")
		f.deliver("retrieve:succeeded", "done")
		f.expect(paid, sold, "charge.succeeded", "done")
		f.request()
		f.deliver("refunds: refund/0:succeeded", "done")
		f.expect(refunded, sold, "charge.succeeded refund.succeeded", "done done")
	})
	t.Run("that is declined", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.accept("ch_1", order())
		f.deliver(creates+"confirm/3:declined cancel:canceled", "done")
		f.expect(toStarted+" payment.declined inventory.released charge.failed", returned, "charge.failed", "done")
	})
	t.Run("whose key has made another charge, which has the payment", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.append(f.accept("ch_2", bare()), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"})
		f.exec(`delete from inbox`)
		f.accept("ch_1", bare())
		f.deliver("create/0:succeeded", "done")
		f.expect("charge.requested payment.declined charge.failed", "mug 5 0 0, tshirt 10 0 0", "charge.failed", "done")
	})
}

// TestInventory_underContention processes many charges at once, in pairs over the same articles, of which one
// names them the other way round. A deadlock would have its loser wait.
func TestInventory_underContention(t *testing.T) {
	testdb.Long(t, "it races many against each other")
	t.Parallel()
	for name, share := range map[string]bool{"in commits of their own": false, "in group commits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const pairs = 50
			f, p := newFixture(t), newProvider(t)
			services := fulfillment.Services{Provider: newClient(t, p.URL)}
			f.charge = f.handler(services)
			f.supply("cap", 70) // less than the charges want
			f.supply("sock", 1000)
			for i := range pairs {
				items := []domain.Item{{SKU: "cap", Quantity: 1}, {SKU: "sock", Quantity: 2}}
				for n := range 2 {
					first := order()
					first.Items, first.Reference = slices.Clone(items), fmt.Sprintf("ref_%d_%d", i, n)
					if i%4 == 1 {
						first.PaymentMethod = "pm_card_chargeDeclined"
					}
					f.accept(fmt.Sprintf("ch_%d_%d", i, n), first)
					slices.Reverse(items)
				}
			}
			if share {
				declared := slices.Concat(ledger.Writes(), outbox.Writes(), fulfillment.Writes(), inbox.Writes())
				db := testdb.OpenAt(t, f.db.Pool().Config().ConnString(), postgres.Options{
					Role: postgres.RoleWorker, Writes: groupcommit.NewStatements(declared...),
				})
				f.charge = handlerOf(fulfillment.New(db, services, slog.New(slog.DiscardHandler)), fulfillment.ChargeReceiver)
				defer func() {
					if db.Committer().Stats().Batches == 0 {
						t.Error("no commit was shared")
					}
				}()
			}
			for _, err := range f.deliverAll(2 * pairs) {
				if err != nil {
					t.Errorf("a handler returned %v", err)
				}
			}
			f.expectText("cap 0 0, sock 0 0", `
select string_agg(format('%s %s %s', sku, reserved, sold - n * case sku when 'cap' then 1 else 2 end), ', ' order by sku)
  from stock,
       (select count(*) as n from ledger_events where type = 'payment.captured.v1') captures
 where sku in ('cap', 'sock')`)
			f.expectText("100 100", `
select format('%s %s', (select count(*) from ledger_events where type in ('charge.succeeded.v1', 'charge.failed.v1')),
                       (select count(*) from inbox where status = 'done'))`)
			f.expectText(strconv.Itoa(len(p.records().Captures)), `select count(*)::text from ledger_events where type = 'payment.captured.v1'`)
		})
	}
}

// fixture is a database with one merchant and its stock, and a provider that is a script.
type fixture struct {
	t      *testing.T
	db     *postgres.DB
	worker *postgres.DB // the same, with the rights of the worker
	script *script
	charge inbox.Handler
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, db: testdb.Reused(t), script: &script{t: t}}
	f.worker = testdb.As(t, f.db, postgres.RoleWorker)
	f.script.stream = func() ledger.Stream { return f.load() }
	f.charge = f.handler(fulfillment.Services{Provider: f.script, ActionTimeout: time.Hour})
	f.exec(`insert into merchants (merchant_id) values ('acme')`)
	f.supply("mug", 5)
	f.supply("tshirt", 10)
	return f
}

// handler is that of charges, of a worker with these services.
func (f *fixture) handler(services fulfillment.Services) inbox.Handler {
	return handlerOf(fulfillment.New(f.worker, services, slog.New(slog.DiscardHandler)), fulfillment.ChargeReceiver)
}

func (f *fixture) exec(sql string) {
	f.t.Helper()
	testdb.Exec(f.t, f.db.Pool(), sql)
}

func (f *fixture) commit(b *pgx.Batch) {
	f.t.Helper()
	testdb.Must(f.t, f.db.Commit(f.t.Context(), b))
}

func (f *fixture) supply(sku string, quantity int64) {
	f.t.Helper()
	b := &pgx.Batch{}
	operate.Supply(b, "acme", sku, quantity)
	f.commit(b)
}

// append commits events of a stream, as another writer would.
func (f *fixture) append(s ledger.Stream, events ...domain.Event) ledger.Stream {
	f.t.Helper()
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, ledger.Cause{CorrelationID: "req_1", CausationID: "rival", Actor: "test"}, opened(f.t, events)...)
	testdb.Must(f.t, err)
	f.commit(b)
	return next
}

func (f *fixture) load() ledger.Stream {
	f.t.Helper()
	s, err := ledger.Load(f.t.Context(), f.db, "ch_1")
	testdb.Must(f.t, err)
	return s
}

// accept opens a charge, and puts the message about it into the inbox.
func (f *fixture) accept(id string, first domain.ChargeRequested) ledger.Stream {
	f.t.Helper()
	s := f.append(ledger.New(id), first)
	f.put(s)
	return s
}

// request requests the refund re_1, and puts the message about it into the inbox.
func (f *fixture) request() {
	f.t.Helper()
	f.put(f.append(f.load(), requested()))
}

// put puts the message about the newest event into the inbox.
func (f *fixture) put(s ledger.Stream) {
	f.t.Helper()
	b := &pgx.Batch{}
	inbox.Append(b, fulfillment.ChargeReceiver, inbox.Message{
		ID: s.Head().ID.String(), Type: s.Head().Type, OrderingKey: domain.OrderingKey(s.ID, s.Head().Event), Partition: s.Charge.MerchantID,
		Payload: s.EncodeEnvelope(s.Head()), Metadata: map[string]string{outbox.MetadataCorrelationID: "req_1"},
	})
	f.commit(b)
}

// deliver hands the message about the charge to its handler, with the calls that the provider expects,
// whatever it was to wait for, and ends the claim as the handler's result wants.
func (f *fixture) deliver(calls, end string) {
	f.t.Helper()
	f.script.expect(calls)
	if err := f.deliverAll(1)[0]; endOf(err) != end {
		f.t.Errorf("the handler returned %v, want %s", err, end)
	}
	f.script.checkAllCalled()
}

// deliverAll hands n messages, which must be all open ones, to the handler, many of them at a time. What
// waits does not become due meanwhile.
func (f *fixture) deliverAll(n int) []error {
	f.t.Helper()
	f.exec(`
update inbox
   set due_at = now() - interval '2 days',
       status = 'pending'
 where receiver = 'fulfillment'
   and status in ('pending', 'running')`)
	ctx, cancel := context.WithCancel(f.t.Context())
	returned := make(chan error, n)
	var handled atomic.Int64
	p, err := inbox.New(inbox.Options{
		DB: f.db, Receiver: fulfillment.ChargeReceiver, Holder: "test", Concurrency: min(n, 16),
		Handle: func(ctx context.Context, d *inbox.Delivery) error {
			err := f.charge(ctx, d)
			if handled.Add(1) == int64(n) {
				cancel() // no message that arrived meanwhile is claimed
			}
			returned <- err
			return err
		},
		Policy: inbox.Policy{
			Lease: time.Hour, MaxAttempts: 12, GiveUpAfter: time.Hour,
			BackoffBase: time.Hour, BackoffCap: 24 * time.Hour, DeadLetters: inbox.Pass,
		},
		Drain: testrun.Stall, Log: slog.New(slog.DiscardHandler),
	})
	testdb.Must(f.t, err)
	ended := make(chan struct{})
	go func() { _ = p.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	errs := make([]error, n)
	for i := range errs {
		errs[i] = testrun.Receive(f.t, fmt.Sprintf("delivery %d of %d", i+1, n), returned)
	}
	return errs
}

// What a charge over two tshirts and a mug leaves.
const (
	sold     = "mug 4 0 1, tshirt 8 0 2; sold sold"
	held     = "mug 4 1 0, tshirt 8 2 0; open open"
	returned = "mug 5 0 0, tshirt 10 0 0; released released"
)

// expect compares the events of ch_1 without their versions, the stock with the reservations, the events that the
// merchant is notified of, and the states of the other messages.
func (f *fixture) expect(events, stock, announced, messages string) {
	f.t.Helper()
	f.expectText(events, `select string_agg(split_part(type, '.v', 1), ' ' order by version) from ledger_events where stream_id = 'ch_1'`)
	f.expectText(stock, `
select string_agg(format('%s %s %s %s', sku, available, reserved, sold), ', ' order by sku) || coalesce('; ' || (
       select string_agg(status, ' ' order by sku) from reservations where charge_id = 'ch_1'), '')
  from stock`)
	f.expectText(announced,
		`select string_agg(split_part(type, '.v', 1), ' ' order by id) from inbox where receiver = 'notification' and metadata ? 'causation_id'`)
	f.expectText(messages, `select string_agg(status, ' ' order by id) from inbox where not metadata ? 'causation_id'`)
}

func (f *fixture) expectText(want, sql string) {
	f.t.Helper()
	if got := testdb.One[*string](f.t, f.db, sql); got == nil && want != "" || got != nil && *got != want {
		f.t.Errorf("%s: %q, want %q", sql, *cmp.Or(got, new(string)), want)
	}
}
