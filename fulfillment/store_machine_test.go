package fulfillment_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// machine is one sequence: the system under test on the one hand, the model on
// the other.
type machine struct {
	*store
	intake   *intake.Intake
	handle   inbox.Handler
	merchant string
	receiver string

	shelves  map[string]*shelf
	charges  []*modelCharge
	uses     []*use
	parcels  []*parcel
	got      int // first deliveries
	outcomes int // of charges and refunds
	steps    int
	requests int
}

const modelFee = 7

func newMachine(t *rapid.T, s *store) *machine {
	s.next++
	m := &machine{
		store: s, merchant: "m" + strconv.Itoa(s.next), receiver: "r" + strconv.Itoa(s.next),
		intake:  &intake.Intake{DB: s.db, Keys: idempotency.Receiver{Retention: time.Hour}},
		shelves: map[string]*shelf{"mug": {Available: 3}, "tshirt": {Available: 1000}},
	}
	m.bank.forget()
	m.handle = handlerFor(fulfillment.New(s.db, fulfillment.Services{Provider: s.client}, slog.New(slog.DiscardHandler)), fulfillment.ChargeReceiver)
	b := &pgx.Batch{}
	b.Queue(`insert into merchants (merchant_id) values ($1)`, m.merchant)
	for sku, on := range m.shelves {
		fulfillment.Supply(b, m.merchant, sku, on.Available)
	}
	m.commit(t, b)
	m.collect(t)
	m.parcels = nil // another sequence's
	return m
}

// run drives the machine, then lets everything come to rest and looks at all of
// it once more.
func (m *machine) run(t *rapid.T) {
	t.Repeat(map[string]func(*rapid.T){
		"accept":             m.accept,
		"accept another":     m.accept,
		"repeat":             m.repeat,
		"other body":         m.otherBody,
		"cancel":             m.cancel,
		"refund again":       m.refund,
		"refund":             m.refund,
		"expire":             m.expire,
		"receive":            m.receive,
		"receive more":       m.receive,
		"receive forged":     m.receiveForged,
		"work":               func(t *rapid.T) { m.work(t, trouble{}) },
		"work on":            func(t *rapid.T) { m.work(t, trouble{}) },
		"work disturbed":     m.workDisturbed,
		"die with it":        m.die,
		"wake as zombie":     m.zombie,
		"keys are forgotten": func(*rapid.T) { m.bank.forgetKeys() },
		"leases end":         m.lapse,
		"":                   m.check,
	})
	m.rest(t)
	m.tally.sequences.Add(1)
	m.tally.steps.Add(int64(m.steps))
	m.tally.charges.Add(int64(len(m.charges)))
}

func (m *machine) commit(t *rapid.T, b *pgx.Batch) {
	if err := m.db.Commit(m.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) exec(t *rapid.T, sql string, args ...any) {
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	m.commit(t, b)
}

func (m *machine) load(t *rapid.T, id string) ledger.Stream {
	s, err := ledger.Load(m.Context(), m.db, id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (m *machine) stored(t *rapid.T) map[string]*shelf {
	rows, err := m.db.Query(m.Context(), `
select sku,
       available,
       reserved,
       sold
  from stock
 where merchant_id = $1`, m.merchant)
	if err != nil {
		t.Fatal(err)
	}
	shelves := map[string]*shelf{}
	var sku string
	var on shelf
	if _, err := pgx.ForEachRow(rows, []any{&sku, &on.Available, &on.Reserved, &on.Sold}, func() error {
		found := on
		shelves[sku] = &found
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return shelves
}

// collect reads what the outbox got since it was last asked.
func (m *machine) collect(t *rapid.T) {
	rows, err := m.db.Query(m.Context(), `
select o.transaction_id::text as xid,
       o."offset",
       o.message_id,
       o.payload,
       o.metadata
  from outbox o
 where o.topic = any($1)
   and (o.transaction_id, o."offset") > ($2::text::xid8, $3)
 order by o.transaction_id, o."offset"`, []string{ledger.Topic, ledger.Outcomes}, m.afterTx, m.afterRow)
	if err != nil {
		t.Fatal(err)
	}
	var p parcel
	var metadata []byte
	if _, err := pgx.ForEachRow(rows, []any{&m.afterTx, &m.afterRow, &p.id, &p.payload, &metadata}, func() error {
		found := p
		found.metadata = map[string]string{}
		if err := json.Unmarshal(metadata, &found.metadata); err != nil {
			return err
		}
		found.kind, found.charge = found.metadata[outbox.MetadataType], found.metadata[outbox.MetadataOrderingKey]
		m.parcels = append(m.parcels, &found)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// rest delivers and carries whatever is left, undisturbed, and compares all that
// the model knows of.
func (m *machine) rest(t *rapid.T) {
	m.collect(t)
	for _, p := range m.parcels {
		if p.standing == undelivered && p.isWork() {
			m.deliver(t, p)
		}
	}
	m.lapse(t)
	for m.workable() {
		m.work(t, trouble{})
		m.check(t)
	}
	m.collect(t)
	outcomes, asked := 0, 0
	for _, p := range m.parcels {
		if p.isWork() {
			asked++
		} else {
			outcomes++
		}
	}
	if want := m.requests; asked != want || outcomes != m.outcomes {
		t.Fatalf("the outbox has %d messages about requests and %d about outcomes, by the model %d and %d", asked, outcomes, want, m.outcomes)
	}
	for _, c := range m.charges {
		if c.status == domain.Pending {
			t.Fatalf("%s has no outcome in the end", c.id)
		}
		var events []domain.Event
		for _, e := range m.load(t, c.id).Events {
			events = append(events, e.Event)
		}
		if _, err := domain.Replay(events); err != nil {
			t.Fatalf("%s has a stream that Replay refuses: %v", c.id, err)
		}
	}
	for _, u := range m.uses {
		u.repeat(t, u.content)
	}
	m.checkInbox(t)
	if diff := cmp.Diff(m.books(), m.ledgerBooks(t)); diff != "" {
		t.Fatalf("the books by the model (-) and of the ledger (+):\n%s", diff)
	}
}

func (m *machine) checkInbox(t *rapid.T) {
	var done, duplicates, other int64
	if err := m.db.QueryRow(m.Context(), `
select count(*) filter (where status = 'done'),
       coalesce(sum(duplicates), 0)::bigint,
       count(*) filter (where status <> 'done')
  from inbox
 where receiver = $1`, m.receiver).Scan(&done, &duplicates, &other); err != nil {
		t.Fatal(err)
	}
	var wantDone, wantDuplicates int64
	for _, p := range m.parcels {
		if p.standing != undelivered {
			wantDone++
			wantDuplicates += int64(p.deliveries - 1)
		}
	}
	if done != wantDone || duplicates != wantDuplicates || other != 0 {
		t.Fatalf("the inbox has %d done, %d duplicates and %d open; by the model %d, %d and none", done, duplicates, other, wantDone, wantDuplicates)
	}
}

func (m *machine) ledgerBooks(t *rapid.T) map[string]int64 {
	ids := []string{} // the merchant's: an index leads to them
	for _, c := range m.charges {
		ids = append(ids, c.id)
	}
	rows, err := m.db.Query(m.Context(), `
select account,
       sum(amount)::bigint
  from (
        select debit as account, amount
          from ledger_postings
         where stream_id = any($1)
         union all
        select credit, -amount
          from ledger_postings
         where stream_id = any($1)) legs
 group by account
having sum(amount) <> 0`, ids)
	if err != nil {
		t.Fatal(err)
	}
	books := map[string]int64{}
	var account string
	var balance int64
	if _, err := pgx.ForEachRow(rows, []any{&account, &balance}, func() error { books[account] = balance; return nil }); err != nil {
		t.Fatal(err)
	}
	return books
}

// request is one of the merchant's under a key.
func (m *machine) request(operation, key, content string) (intake.Account, intake.Request) {
	account := intake.Account{MerchantID: m.merchant, FeeFixed: map[string]int64{"EUR": modelFee}, Notify: true}
	r := intake.Request{
		Key:     idempotency.Key{Scope: m.merchant, Operation: operation, Value: key},
		Request: idempotency.Request{Fingerprint: []byte(content)},
		ID:      "req_1",
	}
	for _, err := range []error{
		ledger.ErrNotFound, domain.ErrFinished, domain.ErrNotCaptured, domain.ErrExceedsCaptured, domain.ErrTooManyRefunds,
	} {
		r.Refusals = append(r.Refusals, intake.Refusal{Err: err, Answer: idempotency.Answer{
			StatusCode: http.StatusConflict, ContentType: "text/plain", Body: fmt.Appendf(nil, "refused: %v", err),
		}})
	}
	return account, r
}
