package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// TestAppend_storesItsCause stores the cause, the merchant of the first event, and a time
// of its own for an event whose cause has none.
func TestAppend_storesItsCause(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	appended(t, db, ledger.New("ch_1"), cause("msg_7"), paid("acme", "pi_1")...)
	got := testdb.All[map[string]string](t, db, `select distinct metadata || jsonb_build_object('merchant', merchant_id) from ledger_events`)
	want := []map[string]string{{"correlation_id": "req_1", "causation_id": "msg_7", "actor": "test", "merchant": "acme"}}
	testrun.Same(t, "events", want, got)
	testrun.Same(t, "merchants of the postings", []string{"acme"}, testdb.All[string](t, db, `select distinct merchant_id from ledger_postings`))
	e := load(t, db).Head()
	if e.OccurredAt.IsZero() || e.RecordedAt.Sub(e.OccurredAt).Abs() > time.Minute {
		t.Errorf("it occurred at %v and was recorded at %v", e.OccurredAt, e.RecordedAt)
	}
}

// TestAppend_refusesAStaleVersion: a refused decision loses everything in its commit.
func TestAppend_refusesAStaleVersion(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	stale := appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")[:2]...)
	appended(t, db, stale, cause("b"), attempt(500))
	appended(t, db, ledger.New("ch_2"), cause("a"), paid("acme", "pi_2")[:1]...)
	before := testdb.All[string](t, db, `select e::text from ledger_events e union all select p::text from ledger_postings p order by 1`)
	for name, test := range map[string]struct {
		s        ledger.Stream
		cause    string
		events   []domain.Event
		refused  string
		conflict bool
	}{
		"a decision on an older state": {stale, "c", paid("acme", "pi_1")[2:], "ledger_events_version_once", true},
		"the same decision made twice": {ledger.New("ch_2"), "a", paid("acme", "pi_2")[:1], "ledger_events_event_once", true},
		"a payment of another charge":  {ledger.New("ch_3"), "b", paid("acme", "pi_1"), "ledger_events_by_payment_intent", false},
	} {
		_, err := commit(t.Context(), db, test.s, cause(test.cause), test.events...)
		if ledger.IsConflict(err) != test.conflict || groupcommit.Constraint(err) != test.refused {
			t.Errorf("%s: %v, want it refused by %s", name, err, test.refused)
		}
	}
	testrun.Same(t, "what is stored", before,
		testdb.All[string](t, db, `select e::text from ledger_events e union all select p::text from ledger_postings p order by 1`))
	for _, err := range []error{nil, errors.New("something"), groupcommit.ErrUnknown, ledger.ErrNotFound} {
		if ledger.IsConflict(err) {
			t.Errorf("%v is taken for a conflict", err)
		}
	}
}

func TestEventIDs(t *testing.T) {
	t.Parallel()
	idOf := func(stream, by string, events ...domain.Event) string {
		s, err := ledger.Append(&pgx.Batch{}, ledger.New(stream), cause(by), events...)
		testdb.Must(t, err)
		return s.Head().ID.String()
	}
	first := requested("acme")

	// Another implementation of UUIDv5 made this one, but for the version, 8 for a request. It is
	// stored data and never changes.
	t.Run("the same decision has the same id", func(t *testing.T) {
		t.Parallel()
		testrun.Same(t, "the id", "0bf48e73-0551-8bd9-9b19-f82820c14f87", idOf("ch_1", "a", first))
	})

	t.Run("another stream, cause, type or occurrence has another id", func(t *testing.T) {
		t.Parallel()
		ids := []string{
			idOf("ch_1", "a", first), idOf("ch_2", "a", first), idOf("ch_1", "b", first), idOf("ch_1a", "", first),
			idOf("ch_1", "a", first, attempt(500)), idOf("ch_1", "a", first, attempt(500), attempt(500)),
			idOf("ch_1", "a", first, attempt(500), attempt(500), attempt(500)),
		}
		if slices.Sort(ids); len(slices.Compact(slices.Clone(ids))) != len(ids) {
			t.Errorf("two of %v are alike", ids)
		}
	})
}

// TestAppend_continuesItsStream: an event follows the event before it, of the same merchant.
func TestAppend_continuesItsStream(t *testing.T) {
	t.Parallel()
	const previousExists = "ledger_events_previous_exists"

	t.Run("refuses a decision on events that the database does not have", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		for left := range 2 { // of two events, as after a failover that lost the others
			id := fmt.Sprint("ch_", left)
			lost, err := ledger.Append(&pgx.Batch{}, ledger.New(id), cause("a"), paid("acme", "pi_1")[:2]...)
			testdb.Must(t, err)
			if left > 0 {
				appended(t, db, ledger.New(id), cause("a"), requested("acme"))
			}
			if _, err := commit(t.Context(), db, lost, cause("b"), paid("acme", "pi_1")[2:]...); !ledger.IsConflict(err) ||
				groupcommit.Constraint(err) != previousExists {
				t.Errorf("of two there are %d: %v, want a conflict by %s", left, err, previousExists)
			}
		}
	})

	// The events of several charges share a statement, so each commit here has several
	// streams, each with several events.
	t.Run("accepts streams that share their commits", func(t *testing.T) {
		t.Parallel()
		db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{
			Application: t.Name(), Writes: groupcommit.NewStatements(ledger.Writes()...),
		})
		const streams = 64
		var writers errgroup.Group
		for i := range streams {
			writers.Go(func() error {
				_, err := commit(t.Context(), db, ledger.New(fmt.Sprint("ch_", i)), cause("a"), paid("acme", fmt.Sprint("pi_", i))...)
				return err
			})
		}
		if err := writers.Wait(); err != nil {
			t.Error(err)
		}
		var commits, events int
		err := db.QueryRow(t.Context(), `select count(distinct txid), count(*) from ledger_events`).Scan(&commits, &events)
		if err != nil || events != streams*4 || commits >= streams {
			t.Errorf("%d events in %d commits, want %d in fewer than %d: %v", events, commits, streams*4, streams, err)
		}
	})
}

// TestAppend_freesNoOrderOfAnother: a failure ends the hold of its own charge alone.
func TestAppend_freesNoOrderOfAnother(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	first := requested("acme")
	first.OneChargePerOrder = true
	declined := domain.Failure{Code: domain.CardDeclined}
	s := appended(t, db, ledger.New("ch_1"), cause("a"), first, paid("acme", "pi_1")[1])
	exec(t, db, `update held_orders set stream_id = 'ch_other'`)
	appended(t, db, s, cause("b"), domain.PaymentDeclined{Failure: declined}, domain.ChargeFailed{Failure: declined})
	testrun.Same(t, "the order is held by", []string{"ch_other"}, testdb.All[string](t, db, `select stream_id from held_orders`))
}

func TestEnvelope(t *testing.T) {
	t.Parallel()
	s, err := ledger.Append(&pgx.Batch{}, ledger.New("ch_1"), cause("a"), requested("acme"))
	testdb.Must(t, err)
	want := ledger.Envelope{ID: s.Head().ID.String(), Type: "charge.requested.v1", ChargeID: "ch_1", Version: 1}
	if got, err := ledger.DecodeEnvelope(s.EncodeEnvelope(s.Head())); got != want || err != nil {
		t.Errorf("it opens as %+v, %v", got, err)
	}
	for _, payload := range []string{
		``, `x`, `[]`, `{}`, `null`, `{"charge_id":"ch_1"}`, `{"charge_id":"ch_1","version":0}`, `{"version":1}`, `{"charge_id":"ch_1","version":1.5}`,
	} {
		if e, err := ledger.DecodeEnvelope([]byte(payload)); err == nil {
			t.Errorf("%q was opened as %+v", payload, e)
		}
	}
}
