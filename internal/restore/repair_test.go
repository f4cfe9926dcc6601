package restore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// books is a database with charges, their messages and their projections.
type books struct {
	*testing.T
	db *postgres.DB
}

// commit appends events of one charge with a message about each.
func (k books) commit(s ledger.Stream, events ...domain.Event) ledger.Stream {
	k.Helper()
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, ledger.Cause{Actor: "test"}, events...)
	if err != nil {
		k.Fatal(err)
	}
	for _, e := range next.Events[s.Charge.Version:] {
		if err := outbox.Append(b, outbox.Message{Topic: topic, ID: e.ID.String(), Type: e.Type, OrderingKey: next.ID}); err != nil {
			k.Fatal(err)
		}
	}
	if err := k.db.Commit(k.Context(), b); err != nil {
		k.Fatal(err)
	}
	return next
}

func (k books) open(id string) ledger.Stream {
	k.Helper()
	return k.commit(ledger.New(id),
		domain.ChargeRequested{MerchantID: "acme", OrderID: id, Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa"},
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_" + id})
}

func (k books) capture(s ledger.Stream) ledger.Stream {
	k.Helper()
	return k.commit(s, domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_" + s.ID, Amount: 1000, Currency: "USD", Fee: 30}, domain.ChargeSucceeded{})
}

// project folds so many events. Other tests' transactions on the same server hold
// the fold back for a moment.
func (k books) project(want int) {
	k.Helper()
	folded := 0
	await.True(k.T, fmt.Sprintf("%d events are folded", want), func() bool {
		n, err := ledger.Project(k.Context(), k.db)
		if err != nil {
			k.Fatal(err)
		}
		folded += n
		return folded >= want
	})
	if folded != want {
		k.Errorf("%d events were folded, want %d", folded, want)
	}
}

func (k books) exec(sql string) {
	k.Helper()
	if _, err := k.db.Pool().Exec(k.Context(), sql); err != nil {
		k.Fatal(err)
	}
}

// restore makes all stored transactions those of a server that counts higher.
func (k books) restore() {
	k.Helper()
	k.restoreBehind()
	const far = `(%[1]s::text::bigint + 1000000000)::text::xid8`
	for table, columns := range map[string][]string{
		"ledger_events": {"txid"}, "outbox": {"transaction_id"}, "outbox_offsets": {"transaction_id"}, "inbox": {"received_in"}, "projections": {"txid", "took_over_txid"},
	} {
		var set []string
		for _, c := range columns {
			set = append(set, c+" = "+fmt.Sprintf(far, c))
		}
		k.exec(fmt.Sprintf(`alter table %[1]s disable trigger user; update %[1]s set %[2]s; alter table %[1]s enable trigger user`, table, strings.Join(set, ", ")))
	}
	k.exec(`update projections set batch = batch + 1, after = batch`)
}

// restoreBehind is a restore into a server that has had more transactions than the
// one of the dump: each row is written by another transaction, and says what it
// said.
func (k books) restoreBehind() {
	k.Helper()
	k.exec(`update numbering_mark set written_in = written_in`)
}

func (k books) foreign() bool {
	k.Helper()
	n, err := restore.ReadNumbering(k.Context(), k.db)
	if err != nil {
		k.Fatal(err)
	}
	return n.Foreign()
}

func (k books) repair() restore.Repaired {
	k.Helper()
	done, err := restore.Repair(k.Context(), k.db)
	if err != nil {
		k.Fatal(err)
	}
	return done
}

// wantProjected wants what is left to be folded, and then the live projections to
// be those that the ledger gives when it is folded anew.
func (k books) wantProjected(left int) {
	k.Helper()
	k.project(left)
	if n, err := ledger.Project(k.Context(), k.db); n != 0 || err != nil {
		k.Errorf("%d more events were folded: %v", n, err)
	}
	found, err := ledger.Rebuild(k.Context(), k.db, nil)
	if err != nil || found.Different != 0 || found.Charges == 0 {
		k.Errorf("a rebuild found %+v: %v", found, err)
	}
}

// messages are those of the outbox in the order of readers, by charge and
// version.
func (k books) messages() []string {
	k.Helper()
	rows, err := k.db.Query(k.Context(), `
select e.stream_id || ' ' || e.version
  from outbox o
  join ledger_events e
    on e.event_id::text = o.message_id
 where e.txid = o.transaction_id
 order by o.transaction_id, o."offset"`)
	if err != nil {
		k.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		k.Fatal(err)
	}
	return found
}

func newBooks(t *testing.T) books {
	t.Helper()
	k := books{t, testdb.Open(t)}
	k.exec(`insert into merchants (merchant_id) values ('acme')`)
	return k
}

func TestRepair(t *testing.T) {
	t.Parallel()

	t.Run("what was restored and what came since is read and folded, once and in order", func(t *testing.T) {
		t.Parallel()
		k := newBooks(t)
		swept := k.capture(k.open("ch_swept"))
		k.exec(`delete from outbox`)
		half := k.open("ch_half")
		k.project(6)
		r := read(t, k.db)
		r.take(t, 2)
		half = k.capture(half) // neither read nor folded
		r.take(t, 1)
		r.stop()
		k.exec(`insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash) values ('r', 'm', 'k', 't', '', '{}', '')`)
		if k.foreign() {
			t.Fatal("a server's own transactions are foreign")
		}

		k.restore()
		if !k.foreign() {
			t.Fatal("the restore is not seen")
		}
		since := k.open("ch_since") // before anybody has looked
		r = read(t, k.db)
		r.wantNone(t)
		if n, err := ledger.Project(t.Context(), k.db); n != 0 || err != nil {
			t.Errorf("%d events were folded: %v", n, err)
		}

		// The reader goes on where it is.
		if diff := cmp.Diff(restore.Repaired{Events: 10, Messages: 6, Received: 1}, k.repair()); diff != "" || k.foreign() {
			t.Errorf("foreign still: %t, repaired (-want +got):\n%s", k.foreign(), diff)
		}
		want := []string{"ch_half 1", "ch_half 2", "ch_half 3", "ch_half 4", "ch_since 1", "ch_since 2"}
		if diff := cmp.Diff(want, k.messages()); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
		r.wantNext(t, ids(half, since)...)
		k.wantProjected(4)

		later := k.commit(since, domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_ch_since", Amount: 1000, Currency: "USD"})
		r.wantNext(t, later.Head().ID.String())
		k.wantProjected(1)
		r.wantNone(t)
		if s, err := ledger.Load(t.Context(), k.db, swept.ID); err != nil || s.Charge.Version != 4 {
			t.Errorf("%s is at version %d: %v", swept.ID, s.Charge.Version, err)
		}
	})

	t.Run("it may be done again, and where nothing is foreign", func(t *testing.T) {
		t.Parallel()
		k := newBooks(t)
		s := k.capture(k.open("ch_1"))
		k.project(4)
		for range 2 {
			k.repair()
			k.wantProjected(0)
		}
		s2 := k.open("ch_2")
		k.restore() // and once more into another server
		k.repair()
		r := read(t, k.db)
		r.wantNext(t, ids(s, s2)...)
		r.wantNone(t)
		k.wantProjected(2)
	})

	for name, charges := range map[string]int{"nothing": 0, "what has left the outbox": 2} {
		t.Run("projections of "+name+" are where a rebuild comes to", func(t *testing.T) {
			t.Parallel()
			k := newBooks(t)
			for i := range charges {
				k.open(fmt.Sprintf("ch_%d", i))
			}
			k.project(2 * charges)
			k.exec(`delete from outbox`)
			k.restore()
			k.repair()
			ctx, cancel := context.WithTimeout(t.Context(), await.Stall)
			defer cancel()
			if found, err := ledger.Rebuild(ctx, k.db, nil); err != nil || found.Different != 0 || found.Charges != int64(charges) {
				t.Errorf("a rebuild found %+v: %v", found, err)
			}
		})
	}

	t.Run("the ledger is guarded as before", func(t *testing.T) {
		t.Parallel()
		k := newBooks(t)
		k.open("ch_1")
		k.repair()
		if _, err := k.db.Pool().Exec(t.Context(), `update ledger_events set txid = '1'`); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("the ledger was changed: %v", err)
		}
	})

	t.Run("a repair that fails changes nothing", func(t *testing.T) {
		t.Parallel()
		k := newBooks(t)
		k.open("ch_1")
		k.restore()
		k.exec(`alter table inbox add constraint broken check (received_in <> '3')`)
		k.exec(`insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash) values ('r', 'm', 'k', 't', '', '{}', '')`)
		if _, err := restore.Repair(t.Context(), k.db); err == nil || !k.foreign() {
			t.Errorf("the error is %v, foreign still: %t", err, k.foreign())
		}
		if _, err := k.db.Pool().Exec(t.Context(), `delete from ledger_events`); err == nil {
			t.Error("the ledger is not guarded any more")
		}
	})

	t.Run("empty tables are nobody's", func(t *testing.T) {
		t.Parallel()
		k := newBooks(t)
		if k.foreign() {
			t.Error("nothing is foreign")
		}
	})

	t.Run("a mark that is gone is made again", func(t *testing.T) {
		t.Parallel()
		k := newBooks(t)
		k.exec(`truncate numbering_mark`)
		if !k.foreign() {
			t.Error("who does not know trusts")
		}
		k.repair()
		if k.foreign() {
			t.Error("it is foreign after the repair")
		}
	})
}

// ids are those of all events of the streams.
func ids(streams ...ledger.Stream) []string {
	var all []string
	for _, s := range streams {
		for _, e := range s.Events {
			all = append(all, e.ID.String())
		}
	}
	return all
}
