package restore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

const topic = "letters"

// fixture is a database with charges, their messages and their projections.
type fixture struct {
	t  *testing.T
	db *postgres.DB
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	f := fixture{t, testdb.Open(t)}
	f.exec(`insert into merchants (merchant_id) values ('acme')`)
	return f
}

func (f fixture) exec(sql string) {
	f.t.Helper()
	testdb.Exec(f.t, f.db.Pool(), sql)
}

// commit appends events of one charge with a message about each.
func (f fixture) commit(s ledger.Stream, events ...domain.Event) ledger.Stream {
	f.t.Helper()
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, ledger.Cause{Actor: "test"}, events...)
	testdb.Must(f.t, err)
	for _, e := range next.Events[s.Charge.Version:] {
		testdb.Must(f.t, outbox.Append(b, outbox.Message{Topic: topic, ID: e.ID.String(), Type: e.Type, OrderingKey: next.ID}))
	}
	err = f.db.Commit(f.t.Context(), b)
	for groupcommit.OutcomeOf(err).Retryable() { // beside a repair
		err = f.db.Commit(f.t.Context(), b)
	}
	testdb.Must(f.t, err)
	return next
}

// open commits the first two events of a charge.
func (f fixture) open(id string) ledger.Stream {
	f.t.Helper()
	return f.commit(ledger.New(id),
		domain.ChargeRequested{MerchantID: "acme", OrderID: id, Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa", Steps: []string{domain.Payment}},
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_" + id})
}

// follow reads the feed of acme until it has so many entries, or an error.
func (f fixture) follow(after string, want error, entries int) (next string) {
	f.t.Helper()
	await.Progress(f.t, "the feed is read", func() (string, bool) {
		page, err := ledger.ReadFeed(f.t.Context(), f.db, "acme", after, 100)
		if !errors.Is(err, want) {
			f.t.Fatalf("the feed: %v, want %v", err, want)
		}
		next = page.Next
		return fmt.Sprintf("%s", page.Data), len(page.Data) == entries
	})
	return next
}

// capture commits two more.
func (f fixture) capture(s ledger.Stream) ledger.Stream {
	f.t.Helper()
	return f.commit(s, domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_" + s.ID, Amount: 1000, Currency: "USD", Fee: 30}, domain.ChargeSucceeded{})
}

// restore makes all stored transactions those of a server that counts so much higher, or of
// one that counts lower: then the rows only are written by other transactions.
func (f fixture) restore(higher string) {
	f.t.Helper()
	f.exec(`update numbering_mark set written_in = written_in`)
	if higher == "" {
		return
	}
	for table, columns := range map[string][]string{
		"ledger_events": {"txid"}, "followers": {"txid"},
	} {
		var set []string
		for _, c := range columns {
			set = append(set, fmt.Sprintf("%[1]s = (%[1]s::text::bigint + %[2]s)::text::xid8", c, higher))
		}
		f.exec(fmt.Sprintf(`alter table %[1]s disable trigger user; update %[1]s set %[2]s; alter table %[1]s enable trigger user`, table, strings.Join(set, ", ")))
	}
}

// muchHigher is a count that the server does not reach.
const muchHigher = "1000000000"

func (f fixture) foreign() bool {
	f.t.Helper()
	n, err := restore.ReadNumbering(f.t.Context(), f.db)
	testdb.Must(f.t, err)
	return n.Foreign()
}

func (f fixture) repair() restore.Repaired {
	f.t.Helper()
	done, err := restore.Repair(f.t.Context(), f.db)
	if err != nil || f.foreign() {
		f.t.Fatalf("repair: %v, foreign still: %t", err, f.foreign())
	}
	return done
}

// project folds so many events. Other tests' transactions on the same server hold the fold
// back for a moment.
func (f fixture) project(want int) {
	f.t.Helper()
	folded := 0
	await.True(f.t, fmt.Sprintf("%d events are folded", want), func() bool {
		n, err := ledger.AddUp(f.t.Context(), f.db)
		testdb.Must(f.t, err)
		folded += n
		return folded >= want
	})
	if folded != want {
		f.t.Errorf("%d events were folded, want %d", folded, want)
	}
}

// wantProjected wants what is left to be folded, and then the live projections to be those
// that a rebuild makes.
func (f fixture) wantProjected(left int) {
	f.t.Helper()
	f.project(left)
	if n, err := ledger.AddUp(f.t.Context(), f.db); n != 0 || err != nil {
		f.t.Errorf("%d more events were folded: %v", n, err)
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), await.Stall)
	defer cancel()
	if found, err := ledger.Recount(ctx, f.db); err != nil || found.Different != 0 {
		f.t.Errorf("a rebuild found %+v: %v", found, err)
	}
}

// wantGuarded wants the ledger to refuse changes.
func (f fixture) wantGuarded() {
	f.t.Helper()
	if _, err := f.db.Pool().Exec(f.t.Context(), `update ledger_events set txid = '1'`); err == nil || !strings.Contains(err.Error(), "append-only") {
		f.t.Errorf("the ledger was changed: %v", err)
	}
}

// reader is a subscriber whose messages are acknowledged and collected.
type reader struct {
	db   *postgres.DB
	stop func()

	mu    sync.Mutex
	taken []string
}

func (f fixture) read() *reader {
	f.t.Helper()
	r := &reader{db: f.db}
	subscriber := outbox.NewSubscriber(f.db.Pool(), outbox.Options{})
	messages, err := subscriber.Subscribe(f.t.Context(), topic)
	testdb.Must(f.t, err)
	var reading sync.WaitGroup
	reading.Go(func() {
		for m := range messages {
			r.mu.Lock()
			r.taken = append(r.taken, m.UUID)
			r.mu.Unlock()
			m.Ack()
		}
	})
	r.stop = sync.OnceFunc(func() {
		if err := subscriber.Close(); err != nil {
			f.t.Error(err)
		}
		reading.Wait()
	})
	f.t.Cleanup(r.stop)
	return r
}

// take waits for n messages and returns all that have come.
func (r *reader) take(t *testing.T, n int) (taken []string) {
	t.Helper()
	await.True(t, fmt.Sprintf("%d messages are read", n), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.taken) < n {
			return false
		}
		taken, r.taken = r.taken, nil
		return true
	})
	return taken
}

func (r *reader) wantNext(t *testing.T, want ...string) {
	t.Helper()
	testrun.Same(t, "messages", want, r.take(t, len(want)))
}

// wantNone wants that nothing waits for the reader, and that no message came.
func (r *reader) wantNone(t *testing.T) {
	t.Helper()
	await.Row(t, r.db, `select not exists (select from outbox)`)
	if taken := r.take(t, 0); len(taken) > 0 {
		t.Errorf("messages %v came", taken)
	}
}

// ids are those of all events of the streams.
func ids(streams ...ledger.Stream) (all []string) {
	for _, s := range streams {
		for _, e := range s.Events {
			all = append(all, e.ID.String())
		}
	}
	return all
}
