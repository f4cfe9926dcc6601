package ledger_test

import (
	"errors"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

func TestConflict(t *testing.T) {
	t.Parallel()

	t.Run("who decided on an older state loses all of it", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		s := appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")[:2]...)
		appended(t, db, s, because("b"), attempt(500))
		_, err := try(t, db, s, because("c"), paid("acme", "pi_1")[2:]...)
		if !ledger.IsConflict(err) || postgres.Constraint(err) != "ledger_events_version_once" {
			t.Errorf("the error is %v, want a conflict of the version", err)
		}
		now := load(t, db)
		if diff := cmp.Diff(attempt(500), now.Head().Event); diff != "" || now.Head().Version != 3 {
			t.Errorf("the head is %d (-want +got):\n%s", now.Head().Version, diff)
		}
		if legs := collect[int](t, db, `select version from ledger_postings`); !cmp.Equal(legs, []int{1}) {
			t.Errorf("postings at versions %v, want those of the first alone", legs)
		}
	})

	t.Run("of sixteen who append at one version one wins", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		s := appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")[:2]...)
		var won, lost atomic.Int32
		var rivals errgroup.Group
		for i := range 16 {
			rivals.Go(func() error {
				_, err := try(t, db, s, because(strconv.Itoa(i)), attempt(500+i))
				switch {
				case err == nil:
					won.Add(1)
				case ledger.IsConflict(err):
					lost.Add(1)
				default:
					return err
				}
				return nil
			})
		}
		if err := rivals.Wait(); err != nil {
			t.Error(err)
		}
		if won.Load() != 1 || lost.Load() != 15 || load(t, db).Head().Version != 3 {
			t.Errorf("%d won, %d lost", won.Load(), lost.Load())
		}
	})

	t.Run("the same decision made twice is a conflict, not a second event", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		s := appended(t, db, ledger.New("ch_1"), because("a"), opened("acme", 1000, "EUR"))
		appended(t, db, s, because("b"), attempt(500))
		if _, err := try(t, db, s, because("b"), attempt(500)); !ledger.IsConflict(err) {
			t.Errorf("the error is %v, want a conflict", err)
		}
	})

	t.Run("a second capture or outcome is a conflict at any version", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		events := paid("acme", "pi_1")
		s := appended(t, db, ledger.New("ch_1"), because("a"), events...)
		second := domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_2", Amount: 1000, Currency: "EUR", Fee: 30}
		for guard, e := range map[string]domain.Event{
			"ledger_events_one_capture": second,
			"ledger_events_one_outcome": domain.ChargeFailed{},
		} {
			_, err := try(t, db, s, because("b"), e)
			if !ledger.IsConflict(err) || postgres.Constraint(err) != guard {
				t.Errorf("the error is %v, want a conflict of %s", err, guard)
			}
		}
	})

	t.Run("money taken for another charge is no conflict but an error", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")...)
		_, err := try(t, db, ledger.New("ch_2"), because("b"), paid("acme", "pi_1")...)
		if ledger.IsConflict(err) || postgres.Constraint(err) != "ledger_events_one_capture_per_reference" {
			t.Errorf("the error is %v, want one of ledger_events_one_capture_per_reference", err)
		}
	})

	t.Run("nothing else is a conflict", func(t *testing.T) {
		t.Parallel()
		for _, err := range []error{nil, errors.New("something"), postgres.ErrUnknown, ledger.ErrNotFound} {
			if ledger.IsConflict(err) {
				t.Errorf("%v is taken for a conflict", err)
			}
		}
	})
}

func TestEventIDs(t *testing.T) {
	t.Parallel()
	idOf := func(t *testing.T, stream, cause string, events ...domain.Event) string {
		t.Helper()
		s, err := ledger.Append(&pgx.Batch{}, ledger.New(stream), because(cause), events...)
		if err != nil {
			t.Fatal(err)
		}
		return s.Head().ID.String()
	}
	first := opened("acme", 1000, "EUR")

	t.Run("the same decision has the same id", func(t *testing.T) {
		t.Parallel()
		if a, b := idOf(t, "ch_1", "a", first), idOf(t, "ch_1", "a", first); a != b {
			t.Errorf("%s and %s", a, b)
		}
	})

	t.Run("the id is stored data: it never changes between versions of this program", func(t *testing.T) {
		t.Parallel()
		const golden = "0bf48e73-0551-5bd9-9b19-f82820c14f87" // by another implementation of UUIDv5
		if got := idOf(t, "ch_1", "a", first); got != golden {
			t.Errorf("the id is %s, was %s", got, golden)
		}
	})

	t.Run("another stream, cause, type or occurrence has another id", func(t *testing.T) {
		t.Parallel()
		ids := map[string]string{}
		for name, id := range map[string]string{
			"first":          idOf(t, "ch_1", "a", first),
			"stream":         idOf(t, "ch_2", "a", first),
			"cause":          idOf(t, "ch_1", "b", first),
			"type":           idOf(t, "ch_1", "a", first, attempt(500)),
			"occurrence":     idOf(t, "ch_1", "a", first, attempt(500), attempt(500)),
			"one more":       idOf(t, "ch_1", "a", first, attempt(500), attempt(500), attempt(500)),
			"moved boundary": idOf(t, "ch_1a", "", first),
		} {
			if other, taken := ids[id]; taken {
				t.Errorf("%s and %s are both %s", name, other, id)
			}
			ids[id] = name
		}
	})

	t.Run("a second failed attempt is a second event", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		s := appended(t, db, ledger.New("ch_1"), because("a"), first)
		s = appended(t, db, s, because("msg_1"), attempt(500))
		s = appended(t, db, s, because("msg_1"), attempt(500))
		if s.At(2).ID == s.At(3).ID || load(t, db).Head().Version != 3 {
			t.Errorf("%s and %s", s.At(2).ID, s.At(3).ID)
		}
	})
}
