package fulfillment_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

const defaultRounds = 40

var rounds = flag.Int("rounds", defaultRounds, "how often cancel races capture")

// TestCancelAgainstCapture lets a merchant cancel at some moment of a charge's
// life, many times. Exactly one of the two wins each time, and the provider's
// books agree with the ledger on which.
func TestCancelAgainstCapture(t *testing.T) {
	testdb.Long(t, "it races many times")
	t.Parallel()
	n := *rounds
	if testing.Short() {
		n = min(n, 20)
	}
	w := newWorld(t)
	w.supply("pen", int64(n))
	w.provider.behind = newSandbox(t)
	stop := w.carryAlways()
	defer stop()

	moments := &moments{span: 20 * time.Millisecond}
	t.Run("rounds", func(t *testing.T) {
		const lanes = 4
		for lane := range lanes {
			t.Run(fmt.Sprint("lane ", lane), func(t *testing.T) {
				t.Parallel()
				own := *w
				own.T = t
				for i := lane; i < n; i += lanes {
					own.race(fmt.Sprintf("ch_race_%d", i), moments)
				}
			})
		}
	})

	captured, canceled := 0, 0
	b := booksOf(t, w.provider.behind)
	states := map[string]string{}
	for _, i := range b.Intents {
		states[i.ID] = i.Status
	}
	for i := range n {
		id := fmt.Sprintf("ch_race_%d", i)
		c := w.loadOf(id).Charge
		captures, settled := 0, false
		for _, m := range b.Captures {
			if m.Reference == id {
				captures++
			}
		}
		switch c.Status {
		case domain.Succeeded:
			captured++
			settled = captures == 1
		case domain.Failed:
			canceled++
			settled = captures == 0 && c.Failure.Code == domain.Canceled &&
				(!c.Started() || states[c.PaymentIntent] == "canceled")
		default: // no charge ends a round like that
		}
		if !settled {
			t.Errorf("%s is %s (%+v); the provider captured it %d times and has its intent as %q",
				id, c.Status, c.Failure, captures, states[c.PaymentIntent])
		}
	}
	pens := w.text(`select format('%s %s %s', available, reserved, sold) from stock where sku = 'pen'`)
	if want := fmt.Sprintf("%d 0 %d", n-captured, captured); pens != want {
		t.Errorf("of the pens are available, reserved and sold %s, want %s", pens, want)
	}
	t.Logf("%d rounds: %d captured, %d canceled, %d asked too late", n, captured, canceled, moments.late)
	if n >= defaultRounds && (captured == 0 || canceled == 0) {
		t.Error("one of them won every time: the moments show no race")
	}
}

// moments draws when to cancel, and comes closer to the capture with each round:
// earlier when it was too late, later when it was not.
type moments struct {
	mu   sync.Mutex
	span time.Duration
	late int
}

func (m *moments) draw() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return rand.N(m.span) //nolint:gosec // the moments need not be secret
}

func (m *moments) learn(accepted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if accepted {
		m.span += m.span / 2
		return
	}
	m.late++
	m.span -= m.span / 3
}

// race opens a charge, and has its merchant cancel it while it is carried.
func (w *world) race(id string, moments *moments) {
	w.accept(id, pen())
	select {
	case <-time.After(moments.draw()):
	case <-w.Context().Done():
	}
	moments.learn(w.cancelNow(id))
	w.awaitOutcome(id)
}

func pen() domain.ChargeRequested {
	first := order()
	first.Items = []domain.Item{{SKU: "pen", Quantity: 1}}
	return first
}

// cancelNow asks to cancel the charge as the api does, and tells whether it was
// early enough to be accepted.
func (w *world) cancelNow(id string) bool {
	for {
		s := w.loadOf(id)
		events, err := domain.Decide(s.Charge, domain.CancelCharge{})
		if errors.Is(err, domain.ErrFinished) {
			return false
		}
		b := &pgx.Batch{}
		next, err := ledger.Append(b, s, ledger.Cause{CorrelationID: "req_1", CausationID: "cancel " + id, Actor: "test"}, events...)
		if err != nil {
			w.Fatal(err)
		}
		payload, err := next.Seal(next.Head())
		if err != nil {
			w.Fatal(err)
		}
		m := inbox.Message{ID: next.Head().ID.String(), Type: next.Head().Type, OrderingKey: id, Payload: payload}
		if err := inbox.Accept(b, fulfillment.ChargeReceiver, m); err != nil {
			w.Fatal(err)
		}
		err = w.db.Commit(w.Context(), b)
		if err == nil {
			return true
		}
		if !ledger.IsConflict(err) {
			w.Fatal(err)
		}
	}
}

// carryAlways runs the receiver of charges until it is stopped.
func (w *world) carryAlways() (stop func()) {
	p := &inbox.Processor{
		DB: w.db, Receiver: fulfillment.ChargeReceiver, Holder: "test", Concurrency: 8, Handle: w.charge,
		Policy: inbox.Policy{
			Lease: time.Hour, MaxAttempts: 12, GiveUpAfter: time.Hour,
			BackoffBase: time.Millisecond, BackoffCap: 20 * time.Millisecond,
		},
		Poll: 2 * time.Millisecond, Drain: await.Stall, Log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	return func() { cancel(); <-ended }
}

// awaitOutcome waits until the charge has an outcome and no open message.
func (w *world) awaitOutcome(id string) {
	await.Progress(w, id+" has an outcome and no open message", func() (string, bool) {
		c := w.loadOf(id).Charge
		open := w.text(`select count(*)::text from inbox where status <> 'done' and ordering_key = '` + id + `'`)
		return fmt.Sprintf("version %d, %s, %s open messages", c.Version, c.Status, open), c.Complete() && open == "0"
	})
}
