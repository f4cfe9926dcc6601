package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

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

func TestLoad(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	c := cause("msg_1")
	c.At = time.Date(2026, 3, 1, 12, 0, 0, 123_000_000, time.UTC)
	events := paid("acme", "pi_1")
	appended(t, db, ledger.New("ch_1"), c, events[0])
	s := appended(t, db, load(t, db), c, events[1:]...)
	got := load(t, db)
	if diff := cmp.Diff(s, got, sameJSON(), cmpopts.IgnoreFields(ledger.StoredEvent{}, "RecordedAt"), cmpopts.EquateApproxTime(0)); diff != "" {
		t.Errorf("stream (-appended +loaded):\n%s", diff)
	}
	for i, e := range got.Events {
		if e.Version != i+1 || e.RecordedAt.IsZero() {
			t.Errorf("event %d has version %d and was recorded at %v", i+1, e.Version, e.RecordedAt)
		}
	}
	if v := got.View(); !v.CreatedAt.Equal(c.At) || v.Status != domain.Succeeded || v.ID != "ch_1" {
		t.Errorf("the view is %+v", v)
	}
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

// counted counts the statements that read.
type counted struct {
	postgres.Querier

	statements atomic.Int32
}

func (c *counted) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	c.statements.Add(1)
	return c.Querier.Query(ctx, sql, args...)
}

// TestLoader loads known, missing and unreadable streams at the same moment.
func TestLoader(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	appended(t, db, ledger.New("ch_2"), cause("a"), requested("acme"))
	exec(t, db, testdb.UnreadableRequests)
	reads := &counted{Querier: db}
	loader := ledger.NewLoader(reads, 0)
	const each = 30
	var all sync.WaitGroup
	for id, want := range map[string]error{"ch_1": nil, "ch_2": nil, "ch_none": ledger.ErrNotFound, "ch_05x": domain.ErrUnknownType} {
		alone, _ := ledger.Load(t.Context(), db, id)
		for range each {
			all.Go(func() {
				if got, err := loader(t.Context(), id); !errors.Is(err, want) || !cmp.Equal(alone, got) {
					t.Errorf("%s: %+v, %v", id, got, err)
				}
			})
		}
	}
	all.Wait()
	if n := reads.statements.Load(); n >= 4*each {
		t.Errorf("%d statements: none was shared", n)
	}
}

func TestFindByPaymentIntent(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	appended(t, db, ledger.New("ch_2"), cause("a"), paid("globex", "pi_2")...)
	appended(t, db, ledger.New("ch_3"), cause("a"), paid("acme", "pi_3")[:2]...)
	for _, test := range []struct {
		name, provider, intent string
		want                   ledger.Owner
	}{
		{name: "an intent", provider: "stripe", intent: "pi_1", want: ledger.Owner{"ch_1", "acme"}},
		{name: "an intent of another merchant", provider: "stripe", intent: "pi_2", want: ledger.Owner{"ch_2", "globex"}},
		{name: "an intent that is not captured yet", provider: "stripe", intent: "pi_3", want: ledger.Owner{"ch_3", "acme"}},
		{name: "an unknown intent", provider: "stripe", intent: "pi_4"},
		{name: "an intent of another provider", provider: "other", intent: "pi_1"},
		{name: "no intent", provider: "stripe"},
	} {
		got, err := ledger.FindByPaymentIntent(t.Context(), db, test.provider, test.intent)
		if got != test.want || (err == nil) != (got != ledger.Owner{}) || err != nil && !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%s: found %+v, %v", test.name, got, err)
		}
	}
}

// TestFindByPaymentIntent_readsOneIndexEntry: the collation of the index is that of the
// comparison in the function, else it reads every event.
func TestFindByPaymentIntent_readsOneIndexEntry(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for i := range 50 {
		appended(t, db, ledger.New(fmt.Sprintf("ch_%d", i)), cause("a"), paid("acme", fmt.Sprintf("pi_%d", i))...)
	}
	tx, err := db.Pool().Begin(t.Context())
	testdb.Must(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	// An index that fits is used, however few events there are.
	testdb.Exec(t, tx, `set local enable_seqscan = off`)
	owner, err := ledger.FindByPaymentIntent(t.Context(), tx, "stripe", "pi_7")
	if err != nil || owner.StreamID != "ch_7" {
		t.Fatalf("%v: %v", owner, err)
	}
	if n := testdb.One[int](t, tx, `select pg_stat_get_xact_tuples_returned('ledger_events_by_payment_intent'::regclass)`); n != 1 {
		t.Errorf("it read %d entries of the index, want 1", n)
	}
}

// TestReads_failWithTheDatabase: no read takes an error for an empty answer.
func TestReads_failWithTheDatabase(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for name, read := range map[string]func(context.Context) error{
		"Load": func(ctx context.Context) error { _, err := ledger.Load(ctx, db, "ch_1"); return err },
		"Each": func(ctx context.Context) error {
			return ledger.Each(ctx, db, []string{"ch_1"}, func(ledger.Stream, error) bool { return true })
		},
		"FindByPaymentIntent": func(ctx context.Context) error {
			_, err := ledger.FindByPaymentIntent(ctx, db, "stripe", "pi_1")
			return err
		},
		"LoadHolder": func(ctx context.Context) error { _, err := ledger.LoadHolder(ctx, db, "acme", "1"); return err },
	} {
		ended, end := context.WithCancel(t.Context())
		end()
		if err := read(ended); !errors.Is(err, context.Canceled) || errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEach_passesOverWhatItCannotRead: a charge that cannot be read is named, and holds up no other. A program
// that read a charge whole that is as long as the disk permits would run out of memory.
func TestEach_passesOverWhatItCannotRead(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	appended(t, db, ledger.New("ch_1"), cause("a"), requested("acme"), attempt(500))
	exec(t, db, testdb.UnreadableOutcomes)
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
