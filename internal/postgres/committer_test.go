package postgres_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// gathered commits units at once on a pool of one slot, and returns what each was
// told. They arrive in their order while the slot is held up, so that the first of
// them leads and the others are taken along.
func gathered(t *testing.T, db *postgres.DB, units ...func(context.Context) error) []error {
	t.Helper()
	release := db.HoldSlot()
	told := make([]chan error, len(units))
	for i, unit := range units {
		told[i] = make(chan error, 1)
		go func() { told[i] <- unit(t.Context()) }()
		for db.Pending() <= i { // soon
			runtime.Gosched()
		}
	}
	release()
	answers := make([]error, len(units))
	for i := range told {
		answers[i] = <-told[i]
	}
	if n := db.Pending(); n != 0 {
		t.Errorf("%d wait still", n)
	}
	await.True(t, "the slot is free", func() bool { return db.FreeSlots() == 1 })
	return answers
}

// committing are units of one batch each.
func committing(db *postgres.DB, batches ...*pgx.Batch) []func(context.Context) error {
	units := make([]func(context.Context) error, len(batches))
	for i, b := range batches {
		units[i] = func(ctx context.Context) error { return db.Commit(ctx, b) }
	}
	return units
}

// eight are batches of the ids 1 to 8.
func eight() []*pgx.Batch {
	batches := make([]*pgx.Batch, 8)
	for i := range batches {
		batches[i] = batch(i + 1)
	}
	return batches
}

// transactions are the ids by the transaction that wrote them.
func transactions(t *testing.T, db *postgres.DB) [][]int {
	t.Helper()
	rows, err := db.Query(t.Context(), `
select array_agg(id order by id)
  from effects
 group by xmin::text
 order by min(id)`)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[[]int])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func wantTransactions(t *testing.T, db *postgres.DB, want ...[]int) {
	t.Helper()
	if diff := cmp.Diff(want, transactions(t, db)); diff != "" {
		t.Errorf("transactions (-want +got):\n%s", diff)
	}
}

func wantNoErrors(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Errorf("unit %d was told %v", i+1, err)
		}
	}
}

// slot is effects in a pool of one slot.
func slot(t *testing.T) *postgres.DB {
	t.Helper()
	db, _ := effects(t, postgres.Options{Writes: declared(), SharedCommits: 1})
	return db
}

func TestUnitsThatWaitShareATransaction(t *testing.T) {
	t.Parallel()
	db := slot(t)
	wantNoErrors(t, gathered(t, db, committing(db, eight()...)...))
	wantTransactions(t, db, []int{1, 2, 3, 4, 5, 6, 7, 8})
	if diff := cmp.Diff(postgres.Shared{Commits: 1, Units: 8}, db.Shared()); diff != "" {
		t.Errorf("shared (-want +got):\n%s", diff)
	}
}

func TestMoreThanFitShareTwoTransactions(t *testing.T) {
	t.Parallel()
	db := slot(t)
	batches := make([]*pgx.Batch, 70)
	for i := range batches {
		batches[i] = batch(i + 1)
	}
	wantNoErrors(t, gathered(t, db, committing(db, batches...)...))
	if got := transactions(t, db); len(got) != 2 || len(got[0]) != 64 {
		t.Errorf("they are %v", got)
	}
}

func TestOneUnitIsSentAsItIs(t *testing.T) {
	t.Parallel()
	told := &batches{}
	db, _ := effects(t, postgres.Options{Writes: declared(), SharedCommits: 1, Tracer: told})
	b := batch(1)
	if err := db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if sent := told.sent(); len(sent) != 1 || sent[0] != b {
		t.Errorf("%d batches were sent, want that of the caller", len(sent))
	}
	if diff := cmp.Diff(postgres.Shared{}, db.Shared()); diff != "" {
		t.Errorf("shared (-want +got):\n%s", diff)
	}
}

// TestPoison: whoever is refused, alone has the refusal, as if it had been alone.
func TestPoison(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	taken := func(b *pgx.Batch) { b.Queue(insert, 100, 100) }
	for name, poison := range map[string]struct {
		queue  func(*pgx.Batch)
		refuse func(error) bool
		shared int64 // commits
	}{
		"a row that is there": {taken, func(err error) bool { return postgres.Constraint(err) == "effects_once" }, 1},
		"a row that is found out at commit": {
			func(b *pgx.Batch) { b.Queue(insert, 200, 100) },
			func(err error) bool { return postgres.Constraint(err) == "effects_twin_once" }, 0,
		},
		"a value that cannot be encoded": {
			func(b *pgx.Batch) { b.Queue(insert, struct{}{}, 1) },
			func(err error) bool { return errors.Is(err, postgres.ErrNotCommitted) }, 0,
		},
		"a statement that cannot be prepared": {
			func(b *pgx.Batch) { b.Queue(insertNowhere, 1) },
			func(err error) bool { return code(err) == "42P01" }, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := slot(t)
			for position := range 8 {
				if _, err := db.Pool().Exec(t.Context(), `delete from effects`); err != nil {
					t.Fatal(err)
				}
				if err := db.Commit(t.Context(), batch(100)); err != nil {
					t.Fatal(err)
				}
				before := db.Shared()
				batches := eight()
				poison.queue(batches[position])
				answers := gathered(t, db, committing(db, batches...)...)
				if err := answers[position]; !poison.refuse(err) || errors.Is(err, postgres.ErrUnknown) {
					t.Errorf("at position %d it was told %v", position+1, err)
				}
				wantNoErrors(t, slices.Delete(answers, position, position+1))
				want := []int{1, 2, 3, 4, 5, 6, 7, 8, 100}
				wantStored(t, db, slices.Delete(want, position, position+1)...)
				if got := db.Shared(); got.Commits-before.Commits != poison.shared || got.Refusals-before.Refusals != 1 {
					t.Errorf("at position %d shared are %+v, before %+v", position+1, got, before)
				}
			}
		})
	}

	t.Run("more of it than is sorted out", func(t *testing.T) {
		t.Parallel()
		db := slot(t)
		if err := db.Commit(t.Context(), batch(100)); err != nil {
			t.Fatal(err)
		}
		batches := eight()
		for i := range 5 {
			taken(batches[i+1])
		}
		answers := gathered(t, db, committing(db, batches...)...)
		for i, err := range answers {
			if poisoned := i >= 1 && i <= 5; poisoned != (postgres.Constraint(err) == "effects_once") || !poisoned && err != nil {
				t.Errorf("unit %d was told %v", i+1, err)
			}
		}
		wantStored(t, db, 1, 7, 8, 100)
	})

	t.Run("two that exclude each other", func(t *testing.T) {
		t.Parallel()
		db := slot(t)
		batches := eight()
		batches[2].Queue(insert, 50, 50)
		batches[5].Queue(insert, 50, 50)
		answers := gathered(t, db, committing(db, batches...)...)
		refused := 0
		for i, err := range answers {
			if err != nil {
				refused++
			}
			if err != nil && (i != 2 && i != 5 || postgres.Constraint(err) != "effects_once") {
				t.Errorf("unit %d was told %v", i+1, err)
			}
		}
		if n := len(stored(t, db)); refused != 1 || n != 8 {
			t.Errorf("%d are refused and %d rows stored", refused, n)
		}
	})
}

// TestOneThatWaitsForALock: it makes the others wait for less than PostgreSQL takes
// to look for a deadlock, and has all its own time then.
func TestOneThatWaitsForALock(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := slot(t)
	release := hold(t, db, 500)
	batches := eight()
	batches[3] = batch(500)
	var others []func(context.Context) error
	released := make(chan struct{})
	answered := make(chan int, 8)
	for i, unit := range committing(db, batches...) {
		others = append(others, func(ctx context.Context) error {
			defer func() { answered <- i }()
			return unit(ctx)
		})
	}
	go func() {
		defer close(released)
		for range 7 {
			if <-answered == 3 {
				t.Error("who waits for the lock is answered before the others")
			}
		}
		release()
	}()
	wantNoErrors(t, gathered(t, db, others...))
	<-released
	wantTransactions(t, db, []int{1, 2, 3, 5, 6, 7, 8}, []int{500})
}

// TestWhatIsHeldUpHoldsUpNobody: a slot is had back from a commit that waits for a
// lock, long before that ends.
func TestWhatIsHeldUpHoldsUpNobody(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db, _ := effects(t, postgres.Options{Writes: declared(), SharedCommits: 1, LockTimeout: -1})
	release := hold(t, db, 500)
	waits := commit(t.Context(), db, batch(500))
	await.Blocked(t, db, 1)
	for i := range 3 {
		if err := db.Commit(t.Context(), batch(i)); err != nil {
			t.Error(err)
		}
	}
	wantStored(t, db, 0, 1, 2)
	release()
	if err := <-waits; err != nil {
		t.Error(err)
	}
	await.True(t, "the slot is free", func() bool { return db.FreeSlots() == 1 })
}

// TestOneThatIsHeldUpHoldsOneSlot: a lone one takes the second, however long the first
// is in use, and need not be many to do so.
func TestOneThatIsHeldUpHoldsOneSlot(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{Writes: declared()})
	release := db.HoldSlot()
	for i := range 3 {
		if err := db.Commit(t.Context(), batch(i)); err != nil {
			t.Error(err)
		}
	}
	wantStored(t, db, 0, 1, 2)
	release()
	await.True(t, "the slots are free", func() bool { return db.FreeSlots() == 2 })
}

func TestJoinedUnitsOfACutConnection(t *testing.T) {
	t.Parallel()
	const units = 30
	const statements = 1 + 4 // the first, and inserts of 16, 8, 4 and 2 rows
	for _, test := range []struct {
		name     string
		side     failpoint.Side
		executes int
		told     error // to all
		stored   bool
	}{
		{"cut before the server has them", failpoint.Before, statements, postgres.ErrUnknown, false},
		{"cut after the server has committed them", failpoint.After, statements, postgres.ErrUnknown, true},
		{"cut before the first statement", failpoint.Before, 0, nil, true}, // by themselves, then
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			direct, address := effects(t, postgres.Options{})
			proxy := failpoint.StartCutter(t, address)
			db := open(t, proxy.URL(), postgres.Options{Writes: declared(), SharedCommits: 1})
			sending := func() (batches []*pgx.Batch) {
				for i := range units {
					batches = append(batches, batch(i+1))
				}
				return batches
			}
			if err := db.Commit(t.Context(), batch(1000)); err != nil { // its statement is prepared
				t.Fatal(err)
			}
			release := db.HoldSlot()
			told := make(chan error, units)
			for i, unit := range committing(db, sending()...) {
				go func() { told <- unit(t.Context()) }()
				await.True(t, "it waits", func() bool { return db.Pending() == i+1 })
			}
			proxy.Arm(test.side, test.executes)
			release()
			for range units {
				if err := <-told; !errors.Is(err, test.told) {
					t.Errorf("one was told %v, want %v", err, test.told)
				}
			}
			if proxy.Cuts() != 1 {
				t.Fatalf("%d connections were cut", proxy.Cuts())
			}
			if n := len(stored(t, direct)) - 1; n != 0 && n != units || (n == units) != test.stored {
				t.Errorf("%d are stored", n)
			}
			// Each settles it by its key, and none is there twice.
			for i, b := range sending() {
				err := db.Commit(t.Context(), b)
				if test.stored && postgres.Constraint(err) != "effects_once" || !test.stored && err != nil {
					t.Errorf("unit %d, once more: %v", i+1, err)
				}
			}
			if n := len(stored(t, direct)) - 1; n != units {
				t.Errorf("%d are stored in the end", n)
			}
		})
	}
}

func TestOneThatWaitsForASlot(t *testing.T) {
	t.Parallel()

	t.Run("withdraws at its deadline, and certainly", func(t *testing.T) {
		t.Parallel()
		db := slot(t)
		release := db.HoldSlot()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := db.CommitWithin(ctx, batch(1)); !errors.Is(err, postgres.ErrNotCommitted) || !postgres.OutcomeOf(err).MayPass() {
			t.Errorf("it was told %v", err)
		}
		if db.Pending() != 0 {
			t.Error("it waits still")
		}
		release()
		wantStored(t, db)
	})

	t.Run("is not sent when its pool is closed", func(t *testing.T) {
		t.Parallel()
		other, address := effects(t, postgres.Options{})
		db := open(t, address, postgres.Options{Writes: declared(), SharedCommits: 1})
		release := db.HoldSlot()
		waits := commit(t.Context(), db, batch(1))
		await.True(t, "it waits", func() bool { return db.Pending() == 1 })
		closed := make(chan struct{})
		go func() { db.Close(); close(closed) }()
		await.True(t, "the pool is closed", func() bool {
			conn, err := db.Pool().Acquire(t.Context())
			if err == nil {
				conn.Release()
			}
			return err != nil
		})
		release()
		if err := <-waits; !errors.Is(err, postgres.ErrNotCommitted) {
			t.Errorf("it was told %v", err)
		}
		<-closed
		wantStored(t, other)
	})
}

// panics is an argument that nobody can send.
type panics struct{}

func (panics) Value() (driver.Value, error) { panic("planted") }

// A panic while a group commit is sent is an unknown outcome for all of its batches, and
// leaves the slot free.
func TestAPanic(t *testing.T) {
	t.Parallel()
	db := slot(t)
	batches := eight()
	batches[4].Queue(insert, panics{}, 1)
	for i, err := range gathered(t, db, committing(db, batches...)...) {
		if !errors.Is(err, postgres.ErrUnknown) {
			t.Errorf("batch %d has the outcome %v", i+1, err)
		}
	}
	if err := db.Commit(t.Context(), batch(1)); err != nil {
		t.Error(err)
	}
	wantStored(t, db, 1)
}

// panicsAt is a tracer that does not survive the end of one caller's batch.
type panicsAt struct{ batches }

func (p *panicsAt) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchEndData) {
	if ctx.Value(caller{}) == "planted" {
		panic("planted")
	}
	p.batches.TraceBatchEnd(ctx, conn, data)
}

// TestAPanicOfATracer: it is that of the caller whose trace ends.
func TestAPanicOfATracer(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{Writes: declared(), SharedCommits: 1, Tracer: &panicsAt{}})
	units := committing(db, eight()...)
	traced := units[3]
	units[3] = func(ctx context.Context) (err error) {
		defer func() {
			if cause := recover(); cause == nil {
				err = errors.New("nobody panicked")
			}
		}()
		return traced(context.WithValue(ctx, caller{}, "planted"))
	}
	for i, err := range gathered(t, db, units...) {
		if err != nil {
			t.Errorf("unit %d was told %v", i+1, err)
		}
	}
	wantStored(t, db, 1, 2, 3, 4, 5, 6, 7, 8)
}
