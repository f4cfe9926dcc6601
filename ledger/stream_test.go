package ledger_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// sameJSON compares stored data by what it says: jsonb keeps neither white space
// nor the order of members.
func sameJSON() cmp.Option {
	isData := func(p cmp.Path) bool { return p.Last().String() == ".Data" }
	return cmp.FilterPath(isData, cmp.Transformer("json", func(data []byte) (value any) {
		if err := json.Unmarshal(data, &value); err != nil {
			return err.Error()
		}
		return value
	}))
}

func TestAppend(t *testing.T) {
	t.Parallel()

	t.Run("what is appended is loaded", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		at := time.Date(2026, 3, 1, 12, 0, 0, 123_000_000, time.UTC)
		cause := ledger.Cause{CorrelationID: "req_1", CausationID: "msg_1", Actor: "worker", At: at}
		s := appended(t, db, ledger.New("ch_1"), cause, paid("acme", "pi_1")...)
		got := load(t, db)
		if diff := cmp.Diff(s, got, sameJSON(), cmpopts.IgnoreFields(ledger.Recorded{}, "RecordedAt"),
			cmpopts.EquateApproxTime(0)); diff != "" {
			t.Errorf("stream (-appended +loaded):\n%s", diff)
		}
		for i, e := range got.Events {
			if e.Version != i+1 || e.RecordedAt.IsZero() {
				t.Errorf("event %d has version %d and was recorded at %v", i+1, e.Version, e.RecordedAt)
			}
		}
		if got.Charge.Status != domain.Succeeded || got.Charge.ID != "ch_1" {
			t.Errorf("the charge is %+v", got.Charge)
		}
	})

	t.Run("a stream goes on where it was loaded", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		events := paid("acme", "pi_1")
		appended(t, db, ledger.New("ch_1"), because("a"), events[0])
		appended(t, db, load(t, db), because("b"), events[1])
		appended(t, db, load(t, db), because("c"), events[2:]...)
		var got []domain.Event
		for _, e := range load(t, db).Events {
			got = append(got, e.Event)
		}
		if diff := cmp.Diff(events, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})

	t.Run("the stream that it is given stays as it was", func(t *testing.T) {
		t.Parallel()
		s := ledger.New("ch_1")
		var err error
		for _, e := range paid("acme", "pi_1")[:3] { // one by one, so that the last leaves room behind it
			if s, err = ledger.Append(&pgx.Batch{}, s, because("a"), e); err != nil {
				t.Fatal(err)
			}
		}
		before := s.Until(3)
		left, err := ledger.Append(&pgx.Batch{}, s, because("b"), attempt(500))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ledger.Append(&pgx.Batch{}, s, because("c"), attempt(502)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, s); diff != "" {
			t.Errorf("stream (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(attempt(500), left.Head().Event); diff != "" {
			t.Errorf("one future changed the other (-want +got):\n%s", diff)
		}
	})

	t.Run("nothing appended queues nothing", func(t *testing.T) {
		t.Parallel()
		b := &pgx.Batch{}
		if _, err := ledger.Append(b, ledger.New("ch_1"), because("a")); err != nil || b.Len() != 0 {
			t.Errorf("%d statements: %v", b.Len(), err)
		}
	})

	t.Run("its cause is stored beside an event", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		appended(t, db, ledger.New("ch_1"), because("msg_7"), opened("acme", 1000, "EUR"))
		got := collect[map[string]string](t, db, `select metadata from ledger_events`)
		want := []map[string]string{{"correlation_id": "req_1", "causation_id": "msg_7", "actor": "test"}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("metadata (-want +got):\n%s", diff)
		}
	})

	t.Run("without a time of its own it occurred when it was recorded", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		appended(t, db, ledger.New("ch_1"), because("a"), opened("acme", 1000, "EUR"))
		e := load(t, db).Head()
		if e.OccurredAt.IsZero() || e.RecordedAt.Sub(e.OccurredAt).Abs() > time.Minute {
			t.Errorf("it occurred at %v and was recorded at %v", e.OccurredAt, e.RecordedAt)
		}
	})

	t.Run("every event carries the merchant of the first", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")...)
		got := collect[string](t, db, `select distinct merchant_id from ledger_events union all select distinct merchant_id from ledger_postings`)
		if diff := cmp.Diff([]string{"acme", "acme"}, got); diff != "" {
			t.Errorf("merchants (-want +got):\n%s", diff)
		}
	})
}

func TestLoad(t *testing.T) {
	t.Parallel()

	t.Run("a charge that nobody requested is not found", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		appended(t, db, ledger.New("ch_1"), because("a"), opened("acme", 1000, "EUR"))
		for _, id := range []string{"ch_2", "", "CH_1", "ch_"} {
			if s, err := ledger.Load(t.Context(), db, id); !errors.Is(err, ledger.ErrNotFound) {
				t.Errorf("%q: %v, %v", id, s, err)
			}
		}
	})

	t.Run("an event of a newer program is told apart", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		s := appended(t, db, ledger.New("ch_1"), because("a"), opened("acme", 1000, "EUR"))
		b := &pgx.Batch{}
		b.Queue(`
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), $1, 2, 'charge.renamed.v9', 9, 'acme', '{}', '{}', now())`, s.ID)
		if err := db.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if _, err := ledger.Load(t.Context(), db, s.ID); !errors.Is(err, domain.ErrUnknownType) {
			t.Errorf("the error is %v, want ErrUnknownType", err)
		}
	})
}

func TestStream(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	cause := because("a")
	cause.At = at
	s := appended(t, db, ledger.New("ch_1"), cause, paid("acme", "pi_1")...)

	t.Run("until a version it is what it was then", func(t *testing.T) {
		t.Parallel()
		for version := range len(s.Events) + 1 {
			past := s.Until(version)
			want := domain.Fold(domain.Charge{ID: "ch_1"}, paid("acme", "pi_1")[:version]...)
			if diff := cmp.Diff(want, past.Charge); diff != "" || len(past.Events) != version {
				t.Errorf("version %d: %d events (-want +got):\n%s", version, len(past.Events), diff)
			}
		}
	})

	t.Run("a past that goes on leaves the present alone", func(t *testing.T) {
		t.Parallel()
		if _, err := ledger.Append(&pgx.Batch{}, s.Until(2), because("b"), attempt(500)); err != nil {
			t.Fatal(err)
		}
		_ = append(s.Until(2).Events, ledger.Recorded{Type: "x"})
		if got := s.At(3).Type; got != "payment.captured.v1" {
			t.Errorf("the third event is now %s", got)
		}
	})

	t.Run("its events are found by version", func(t *testing.T) {
		t.Parallel()
		if s.At(1).Type != "charge.requested.v1" || s.At(4).Type != "charge.succeeded.v1" || s.Head().Version != 4 {
			t.Errorf("first %s, fourth %s, head %d", s.At(1).Type, s.At(4).Type, s.Head().Version)
		}
	})

	t.Run("it shows the charge since its first event", func(t *testing.T) {
		t.Parallel()
		loaded := load(t, db).View()
		if diff := cmp.Diff(s.View(), loaded); diff != "" {
			t.Errorf("view (-appended +loaded):\n%s", diff)
		}
		if !loaded.CreatedAt.Equal(at) || loaded.Status != domain.Succeeded || loaded.ID != "ch_1" {
			t.Errorf("the view is %+v", loaded)
		}
	})
}

func TestEnvelope(t *testing.T) {
	t.Parallel()
	s, err := ledger.Append(&pgx.Batch{}, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")...)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("what is sealed is opened", func(t *testing.T) {
		t.Parallel()
		for _, e := range s.Events {
			payload, err := s.Seal(e)
			if err != nil {
				t.Fatal(err)
			}
			got, err := ledger.Open(payload)
			want := ledger.Envelope{ID: e.ID.String(), Type: e.Type, ChargeID: "ch_1", Version: e.Version}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		}
	})

	t.Run("what names no event is refused", func(t *testing.T) {
		t.Parallel()
		for _, payload := range []string{``, `x`, `[]`, `{}`, `null`, `{"charge_id":"ch_1"}`, `{"charge_id":"ch_1","version":0}`, `{"version":1}`, `{"charge_id":"ch_1","version":1.5}`} {
			if e, err := ledger.Open([]byte(payload)); err == nil {
				t.Errorf("%q was opened as %+v", payload, e)
			}
		}
	})
}
