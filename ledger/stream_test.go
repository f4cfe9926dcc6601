package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// The charges of these tests, and how they are stored.
var (
	requested, paid, attempt, cause = testdb.Requested, testdb.Paid, testdb.Attempt, testdb.Cause
	commit, appended, exec          = testdb.Append, testdb.Appended, testdb.Exec
)

// load loads the one stream of most tests.
func load(t *testing.T, q postgres.Querier) ledger.Stream {
	t.Helper()
	s, err := ledger.Load(t.Context(), q, "ch_1")
	testdb.Must(t, err)
	return s
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
	testrun.Same(t, "the id of the same decision", "0bf48e73-0551-8bd9-9b19-f82820c14f87", idOf("ch_1", "a", first))

	ids := []string{ // of another stream, cause, type or occurrence
		idOf("ch_1", "a", first), idOf("ch_2", "a", first), idOf("ch_1", "b", first), idOf("ch_1a", "", first),
		idOf("ch_1", "a", first, attempt(500)), idOf("ch_1", "a", first, attempt(500), attempt(500)),
		idOf("ch_1", "a", first, attempt(500), attempt(500), attempt(500)),
	}
	if slices.Sort(ids); len(slices.Compact(slices.Clone(ids))) != len(ids) {
		t.Errorf("two of %v are alike", ids)
	}
}

// TestAppend_continuesItsStream: a decision on events that the database does not have is refused.
func TestAppend_continuesItsStream(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for left := range 2 { // of two events, as after a failover that lost the others
		id := fmt.Sprint("ch_", left)
		lost, err := ledger.Append(&pgx.Batch{}, ledger.New(id), cause("a"), paid("acme", "pi_1")[:2]...)
		testdb.Must(t, err)
		if left > 0 {
			appended(t, db, ledger.New(id), cause("a"), requested("acme"))
		}
		_, err = commit(t.Context(), db, lost, cause("b"), paid("acme", "pi_1")[2:]...)
		if !ledger.IsConflict(err) || groupcommit.Constraint(err) != "ledger_events_previous_exists" {
			t.Errorf("of two there are %d: %v, want a conflict", left, err)
		}
	}
}

// TestAppend_freesNoOrderOfAnother: a failure ends the hold of its own charge alone.
func TestAppend_freesNoOrderOfAnother(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	first := requested("acme")
	first.OneChargePerOrder = true
	declined := domain.Failure{Code: domain.CardDeclined}
	s := appended(t, db, ledger.New("ch_1"), cause("a"), first, paid("acme", "pi_1")[1])
	exec(t, db.Pool(), `update held_orders set stream_id = 'ch_other'`)
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

// sameJSON compares stored data by its meaning: jsonb keeps neither white space nor the
// order of members.
func sameJSON() cmp.Option {
	isData := func(p cmp.Path) bool { return p.Last().String() == ".Data" }
	return cmp.FilterPath(isData, cmp.Transformer("json", func(data []byte) (value any) {
		if err := json.Unmarshal(data, &value); err != nil {
			return err.Error()
		}
		return value
	}))
}

// TestLoad: a stream is loaded as it was appended, and its rows have the cause and the merchant of the first event. An
// event whose cause has no time has one of its own.
func TestLoad(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	c := cause("msg_1")
	c.At = time.Date(2026, 3, 1, 12, 0, 0, 123_000_000, time.UTC)
	events := paid("acme", "pi_1")
	appended(t, db, ledger.New("ch_1"), c, events[0])
	s := appended(t, db, load(t, db), cause("msg_1"), events[1:]...)
	got := load(t, db)
	if diff := cmp.Diff(s, got, sameJSON(), cmpopts.IgnoreFields(ledger.StoredEvent{}, "OccurredAt", "RecordedAt")); diff != "" {
		t.Errorf("stream (-appended +loaded):\n%s", diff)
	}
	for i, e := range got.Events {
		if e.Version != i+1 || e.RecordedAt.IsZero() || i > 0 && e.RecordedAt.Sub(e.OccurredAt).Abs() > time.Minute {
			t.Errorf("event %d has version %d, occurred at %v and was recorded at %v", i+1, e.Version, e.OccurredAt, e.RecordedAt)
		}
	}
	if v := got.View(); !v.CreatedAt.Equal(c.At) || v.Status != domain.Succeeded || v.ID != "ch_1" {
		t.Errorf("the view is %+v", v)
	}
	rows := testdb.All[map[string]string](t, db, `select distinct metadata || jsonb_build_object('merchant', merchant_id) from ledger_events`)
	testrun.Same(t, "rows", []map[string]string{{"correlation_id": "req_1", "causation_id": "msg_1", "actor": "test", "merchant": "acme"}}, rows)
	testrun.Same(t, "merchants of the postings", []string{"acme"}, testdb.All[string](t, db, `select distinct merchant_id from ledger_postings`))
}

// TestStream: a stream is not changed by what is appended to it or to its past. Append grows the
// events one by one, so the last array has room behind its end.
func TestStream(t *testing.T) {
	t.Parallel()
	s, err := ledger.Append(&pgx.Batch{}, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	testdb.Must(t, err)

	grown := ledger.New("ch_1")
	for _, e := range append(paid("acme", "pi_1")[:2], attempt(429)) {
		grown, err = ledger.Append(&pgx.Batch{}, grown, cause("a"), e)
		testdb.Must(t, err)
	}
	for _, past := range []ledger.Stream{grown, s.Until(2)} {
		n := len(past.Events)
		left, errLeft := ledger.Append(&pgx.Batch{}, past, cause("b"), attempt(500))
		right, errRight := ledger.Append(&pgx.Batch{}, past, cause("c"), attempt(502))
		if err := errors.Join(errLeft, errRight); err != nil || len(past.Events) != n || left.Head().Event != attempt(500) || right.Head().Event != attempt(502) {
			t.Errorf("%d events, it has %d, its futures end with %v and %v: %v", n, len(past.Events), left.Head().Event, right.Head().Event, err)
		}
	}
	if s.At(3).Type != "payment.captured.v1" || s.Head().Version != 4 {
		t.Errorf("the third event is %s, the head %d", s.At(3).Type, s.Head().Version)
	}
}

// TestLoader loads known, missing and unreadable streams at the same moment.
func TestLoader(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	appended(t, db, ledger.New("ch_2"), cause("a"), requested("acme"))
	exec(t, db.Pool(), testdb.UnreadableRequests)
	loader := ledger.NewLoader(db, 0)
	var all sync.WaitGroup
	for id, want := range map[string]error{"ch_1": nil, "ch_2": nil, "ch_none": ledger.ErrNotFound, "ch_05x": domain.ErrUnknownType} {
		alone, _ := ledger.Load(t.Context(), db, id)
		for range 30 {
			all.Go(func() {
				if got, err := loader(t.Context(), id); !errors.Is(err, want) || !cmp.Equal(alone, got) {
					t.Errorf("%s: %+v, %v", id, got, err)
				}
			})
		}
	}
	all.Wait()
}

func TestFindByPaymentIntent(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	appended(t, db, ledger.New("ch_2"), cause("a"), paid("globex", "pi_2")...)
	appended(t, db, ledger.New("ch_3"), cause("a"), paid("acme", "pi_3")[:2]...)

	// The collation of the index is that of the comparison in the function, else it reads every event. An index that
	// fits is used, however few events there are.
	tx := testdb.Begin(t, db.Pool(), `set local enable_seqscan = off`)
	_, err := ledger.FindByPaymentIntent(t.Context(), tx, "stripe", "pi_2")
	if n := testdb.One[int](t, tx, `select pg_stat_get_xact_tuples_returned('ledger_events_by_payment_intent'::regclass)`); n != 1 || err != nil {
		t.Errorf("it read %d entries of the index, want 1: %v", n, err)
	}

	for intent, want := range map[[2]string]ledger.Owner{
		{"stripe", "pi_1"}: {"ch_1", "acme"}, {"stripe", "pi_2"}: {"ch_2", "globex"}, {"stripe", "pi_3"}: {"ch_3", "acme"}, // is not captured yet
		{"stripe", "pi_4"}: {}, {"other", "pi_1"}: {}, {"stripe", ""}: {},
	} {
		got, err := ledger.FindByPaymentIntent(t.Context(), db, intent[0], intent[1])
		if got != want || (err == nil) != (got != ledger.Owner{}) || err != nil && !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%q: found %+v, %v", intent, got, err)
		}
	}
}

// TestEach_passesOverWhatItCannotRead: a charge that cannot be read is named, and holds up no other. A program
// that read a charge whole that is as long as the disk permits would run out of memory.
func TestEach_passesOverWhatItCannotRead(t *testing.T) {
	testrun.Long(t, "its charge is long")
	t.Parallel()
	db := testdb.Reused(t)
	appended(t, db, ledger.New("ch_1"), cause("a"), requested("acme"), attempt(500))
	exec(t, db.Pool(), testdb.UnreadableOutcomes)
	appended(t, db, ledger.New("ch_4"), cause("a"), requested("acme"))
	var got []string
	testdb.Must(t, ledger.Each(t.Context(), db, []string{"ch_4", "ch_newer", "ch_long", "ch_none", "ch_1", "ch_4"}, func(s ledger.Stream, unreadable error) bool {
		got = append(got, fmt.Sprintf("%s %d events %v", s.ID, len(s.Events), unreadable))
		return s.ID != "ch_1"
	}))
	testrun.Same(t, "streams", []string{
		"ch_4 1 events <nil>",
		`ch_newer 1 events load stream ch_newer at version 2: decode "charge.exploded.v1": ` + domain.ErrUnknownType.Error(),
		"ch_long 0 events the events have more than 16777216 bytes",
		"ch_none 0 events load stream ch_none: no such charge",
		"ch_1 2 events <nil>",
	}, got)
	if _, err := ledger.Load(t.Context(), db, "ch_long"); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("the long one is loaded: %v", err)
	}
}
