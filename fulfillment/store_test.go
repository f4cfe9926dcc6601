package fulfillment_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// TestStore drives the real store, handlers and inbox by any sequence of requests,
// deliveries, provider faults, deaths and lost leases, and compares the streams after every step
// with the stock and with the provider's records (store_check_test.go).
//
// The long form takes hours, and rapid ends it early when the time of the test binary ends:
//
//	go test ./fulfillment -run TestStore -rapid.checks=5000 -rapid.steps=100 -timeout 2h -v
func TestStore(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	const shards = 2 // a database each, in which the sequences run one after another
	bounds := map[string]string{"rapid.checks": "10", "rapid.steps": "30"}
	flag.Visit(func(given *flag.Flag) { delete(bounds, given.Name) })
	for name, value := range bounds {
		testdb.Must(t, flag.Set(name, value)) // as if they were given: rapid has no other way
	}
	var count tally
	for shard := range shards {
		t.Run(fmt.Sprint("in database ", shard), func(t *testing.T) {
			t.Parallel()
			s := &store{t: t, db: testdb.Reused(t), provider: newProvider(t), count: &count}
			services := fulfillment.Services{Provider: newClient(t, s.provider.URL)}
			s.handle = handlerOf(fulfillment.New(s.db, services, slog.New(slog.DiscardHandler)), fulfillment.ChargeReceiver)
			rapid.Check(t, func(r *rapid.T) { newMachine(r, s).run(r) })
		})
	}
	t.Cleanup(func() {
		n := count.sequences.Load()
		t.Logf("%d sequences, %d steps, %d charges, %d deliveries, %d of these with a fault of the provider, %d deaths, %d zombies",
			n, count.steps.Load(), count.charges.Load(), count.handled.Load(), count.disturbed.Load(), count.deaths.Load(), count.zombies.Load())
		if !t.Failed() {
			t.Logf("0 violations in %d sequences, a bound of 3/n = %.1e", n, 3/float64(cmp.Or(n, 1)))
		}
	})
}

type tally struct {
	sequences, steps, charges, handled, disturbed, deaths, zombies atomic.Int64
}

// store is what many sequences share. Each has a merchant and a receiver of its own.
type store struct {
	t        *testing.T
	db       *postgres.DB
	provider *provider
	handle   inbox.Handler
	count    *tally
	next     int // number of the next sequence
}

// machine is one sequence: the system under test, and the state of its messages.
type machine struct {
	*store

	merchant, receiver string
	charges            []string
	messages           []*message
}

// supplied is the stock of each merchant.
var supplied = map[string]int64{"mug": 3, "tshirt": 1000}

func newMachine(t *rapid.T, s *store) *machine {
	s.next++
	m := &machine{store: s, merchant: fmt.Sprint("m", s.next), receiver: fmt.Sprint("r", s.next)}
	b := &pgx.Batch{}
	b.Queue(`insert into merchants (merchant_id) values ($1)`, m.merchant)
	for sku, quantity := range supplied {
		fulfillment.Supply(b, m.merchant, sku, quantity)
	}
	m.commit(t, b)
	return m
}

// run drives the machine, and then processes everything that is left.
func (m *machine) run(t *rapid.T) {
	t.Repeat(map[string]func(*rapid.T){
		"accept":             m.accept,
		"accept another":     m.accept,
		"cancel":             m.cancel,
		"refund":             m.refund,
		"refund again":       m.refund,
		"work":               func(t *rapid.T) { m.work(t, fault{}) },
		"work on":            func(t *rapid.T) { m.work(t, fault{}) },
		"work disturbed":     m.workDisturbed,
		"die with it":        m.die,
		"wake as zombie":     m.zombie,
		"keys are forgotten": m.forgetKeys,
		"leases end":         m.endLeases,
		"":                   m.check,
	})
	m.endLeases(t)
	for m.workable() {
		m.work(t, fault{})
		m.check(t)
	}
	for _, id := range m.charges {
		for _, r := range m.load(t, id).Charge.Refunds {
			m.observe(t, &message{charge: id, key: r.ID}, false)
		}
		m.observe(t, &message{charge: id, key: id}, false)
		var events []domain.Event
		for _, e := range m.load(t, id).Events {
			events = append(events, e.Event)
		}
		if _, err := (domain.Charge{}).Append(events...); err != nil {
			t.Fatalf("%s has a stream that Append refuses: %v", id, err)
		}
	}
	m.count.sequences.Add(1)
	m.count.charges.Add(int64(len(m.charges)))
}

func (m *machine) commit(t *rapid.T, b *pgx.Batch) {
	testdb.Must(t, m.db.Commit(m.t.Context(), b))
}

func (m *machine) load(t *rapid.T, id string) ledger.Stream {
	s, err := ledger.Load(m.t.Context(), m.db, id)
	testdb.Must(t, err)
	return s
}

// request commits the event of a decision and the message about it, as the api does.
func (m *machine) request(t *rapid.T, s ledger.Stream, events []domain.Event, err error) {
	if errors.Is(err, domain.ErrFinished) || errors.Is(err, domain.ErrExceedsCaptured) || errors.Is(err, domain.ErrNotCaptured) {
		t.Skip(err)
	}
	testdb.Must(t, err)
	if len(events) == 0 {
		return
	}
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, ledger.Cause{CorrelationID: "req_1", CausationID: "req_1", Actor: "test"}, events...)
	testdb.Must(t, err)
	payload := next.EncodeEnvelope(next.Head())
	p := &message{id: next.Head().ID.String(), charge: s.ID, key: domain.OrderingKey(s.ID, next.Head().Event)}
	inbox.Append(b, m.receiver, inbox.Message{ID: p.id, Type: next.Head().Type, OrderingKey: p.key, Payload: payload})
	m.commit(t, b)
	m.messages = append(m.messages, p)
}

func (m *machine) accept(t *rapid.T) {
	id := fmt.Sprintf("ch_%s_%d", m.merchant, len(m.charges))
	request := domain.ChargeRequested{
		MerchantID: m.merchant, OrderID: "order", Reference: "ref_" + id, Amount: rapid.Int64Range(50, 1000).Draw(t, "amount"), Currency: "EUR", Notify: true,
		PaymentMethod: rapid.SampledFrom([]string{
			"pm_card_visa", "pm_card_visa", "pm_card_chargeDeclined", "pm_card_nobody", "pm_card_refundFail",
		}).Draw(t, "method"),
	}
	if sku := rapid.SampledFrom([]string{"", "mug", "tshirt"}).Draw(t, "sku"); sku != "" {
		request.Items = []domain.Item{{SKU: sku, Quantity: rapid.Int64Range(1, 2).Draw(t, "quantity")}}
	}
	events, err := domain.Open(request)
	m.request(t, ledger.New(id), events, err)
	m.charges = append(m.charges, id)
}

func (m *machine) cancel(t *rapid.T) {
	s := m.draw(t)
	events, err := s.Charge.RequestCancel()
	m.request(t, s, events, err)
}

func (m *machine) refund(t *rapid.T) {
	s := m.draw(t)
	events, err := s.Charge.RequestRefund(domain.RefundRequested{
		RefundID: fmt.Sprintf("re_%s_%d", s.ID, len(s.Charge.Refunds)), Notify: true,
		Amount: rapid.Int64Range(1, 1+s.Charge.Amount.Amount/2).Draw(t, "amount"),
	})
	m.request(t, s, events, err)
}

func (m *machine) draw(t *rapid.T) ledger.Stream {
	if len(m.charges) == 0 {
		t.Skip("no such charge")
	}
	return m.load(t, rapid.SampledFrom(m.charges).Draw(t, "charge"))
}

// forgetKeys is what a provider does after a day: it executes a repeated call again.
func (m *machine) forgetKeys(*rapid.T) {
	m.provider.forgetKeys()
}

// endLeases ends the leases of the dead.
func (m *machine) endLeases(t *rapid.T) {
	b := &pgx.Batch{}
	b.Queue(`
update inbox
   set status = 'pending',
       deaths = deaths + 1,
       due_at = clock_timestamp() - interval '1 day'
 where receiver = $1
   and status = 'running'`, m.receiver)
	m.commit(t, b)
	for _, p := range m.messages {
		if p.state == orphaned {
			p.state = waiting
		}
	}
}
