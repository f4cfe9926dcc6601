package fulfillment_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
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

// TestInventory_underContention processes many charges at once, in pairs over the same articles, of which one
// names them the other way round. A deadlock would have its loser wait. The first charge holds its stock while it is paid
// for. A charge that fails returns it, and each outcome has its message.
func TestInventory_underContention(t *testing.T) {
	testrun.Long(t, "it races many against each other")
	t.Parallel()
	for name, writes := range map[string]*groupcommit.Statements{
		"in commits of their own": nil,
		"in group commits":        groupcommit.NewStatements(slices.Concat(ledger.Writes(), outbox.Writes(), fulfillment.Writes(), inbox.Writes())...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const pairs = 50
			f := newFixture(t, writes)
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
					f.send(ledger.New(fmt.Sprintf("ch_%d_%d", i, n)), first)
					slices.Reverse(items)
				}
			}
			f.provider.expect(fault{at: 1, happens: func(*http.Request) (cut bool) {
				if testdb.One[int](t, f.db, `select count(*) from reservations where status = 'open'`) == 0 {
					t.Error("no stock is held while a charge is paid for")
				}
				return false
			}})
			f.work()
			if writes != nil && f.worker.Committer().Stats().Batches == 0 {
				t.Error("no commit was shared")
			}
			testrun.Same(t, "reserved, and sold beside what was captured", "cap 0 0, sock 0 0", testdb.One[string](t, f.db, `
select string_agg(format('%s %s %s', sku, reserved, sold - n * case sku when 'cap' then 1 else 2 end), ', ' order by sku)
  from stock,
       (select count(*) as n from ledger_events where type = 'payment.captured.v1') captures`))
			testrun.Same(t, "reservations", []string{
				"card_declined cap 1 released, sock 2 released", "out_of_stock none", "succeeded cap 1 sold, sock 2 sold",
			}, testdb.All[string](t, f.db, `
select distinct concat_ws(' ', coalesce(data ->> 'code', 'succeeded'), coalesce((
         select string_agg(sku || ' ' || quantity || ' ' || status, ', ' order by sku)
           from reservations
          where charge_id = e.stream_id), 'none'))
  from ledger_events e
 where e.type in ('charge.succeeded.v1', 'charge.failed.v1')
 order by 1`))
			testrun.Same(t, "messages of outcomes", 2*pairs, testdb.One[int](t, f.db, `
select count(*)
  from inbox i
  join ledger_events e on e.event_id::text = i.message_id and e.type = i.type and e.type in ('charge.succeeded.v1', 'charge.failed.v1')
 where receiver = 'notification'`))
			testrun.Same(t, "captures", len(f.provider.records().Captures), testdb.One[int](t, f.db, `
select count(*) from ledger_events where type = 'payment.captured.v1'`))
			testrun.Same(t, "messages that failed or waited", 0, testdb.One[int](t, f.db, `
select count(*) from inbox where receiver = 'fulfillment' and attempts + waits <> 1`))
		})
	}
}

// fixture is a database with one merchant, a worker in its role, and a provider.
type fixture struct {
	t          *testing.T
	db, worker *postgres.DB
	provider   *provider
}

func newFixture(t *testing.T, writes *groupcommit.Statements) *fixture {
	t.Helper()
	f := &fixture{t: t, db: testdb.Reused(t), provider: newProvider(t)}
	f.worker = testdb.OpenAt(t, f.db.Pool().Config().ConnString(), postgres.Options{Role: postgres.RoleWorker, Writes: writes})
	testdb.Exec(t, f.db.Pool(), `insert into merchants (merchant_id) values ('acme')`)
	return f
}

func (f *fixture) supply(sku string, quantity int64) {
	f.t.Helper()
	b := &pgx.Batch{}
	operate.Supply(b, "acme", sku, quantity)
	testdb.Must(f.t, f.db.Commit(f.t.Context(), b))
}

// send appends an event to a stream, and puts the message about it into the inbox.
func (f *fixture) send(s ledger.Stream, e domain.Event) {
	f.t.Helper()
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, ledger.Cause{CorrelationID: "req_1", CausationID: "request", Actor: "test"}, opened(f.t, []domain.Event{e})...)
	testdb.Must(f.t, err)
	about := next.Head()
	inbox.Append(b, fulfillment.ChargeReceiver, inbox.Message{
		ID: about.ID.String(), Type: about.Type, OrderingKey: domain.OrderingKey(s.ID, about.Event), Payload: next.EncodeEnvelope(about),
	})
	testdb.Must(f.t, f.db.Commit(f.t.Context(), b))
}

// work handles messages about charges until none is open.
func (f *fixture) work() {
	f.t.Helper()
	services := fulfillment.Services{Provider: newClient(f.t, f.provider.URL)}
	p, err := inbox.New(inbox.Options{
		DB: f.worker, Receiver: fulfillment.ChargeReceiver, Concurrency: 16, Drain: testrun.Stall, Log: slog.New(slog.DiscardHandler),
		Handle: handlerOf(fulfillment.New(f.worker, services, slog.New(slog.DiscardHandler)), fulfillment.ChargeReceiver),
		Policy: inbox.Policy{Lease: time.Hour, MaxAttempts: 12, GiveUpAfter: time.Hour, BackoffBase: time.Second, BackoffCap: time.Second},
	})
	testdb.Must(f.t, err)
	ctx, stop := context.WithCancel(f.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	testrun.Row(f.t, f.db, `select bool_and(status = 'done') from inbox where receiver = 'fulfillment'`)
	stop()
	testdb.Must(f.t, testrun.Receive(f.t, "the processor's end", ended))
}
