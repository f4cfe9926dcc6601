package postgres_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// held are messages of the inbox, numbered from 1, each with its holder's fence. They
// lie in the table from the last to the first. Who ends one has an effect beside it.
// There is one slot, and statements that change messages are counted.
func held(t *testing.T, o postgres.Options, fences ...int64) *postgres.DB {
	t.Helper()
	o.Writes, o.SharedCommits = declared(), 1
	db, _ := effects(t, o)
	if _, err := db.Pool().Exec(t.Context(), countStatements+`
create trigger counted after update on inbox for each statement execute function count_statement();`); err != nil {
		t.Fatal(err)
	}
	claimedUnder(t, db, fences...)
	return db
}

func claimedUnder(t *testing.T, db *postgres.DB, fences ...int64) {
	t.Helper()
	if _, err := db.Pool().Exec(context.WithoutCancel(t.Context()), `
insert into inbox
       (id, receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence)
overriding system value
select n, 'r', n, n, 't', '', '{}', '', 'running', fence
  from unnest($1::bigint[]) with ordinality as f (fence, n)
 order by n desc`, fences); err != nil {
		t.Fatal(err)
	}
}

// end queues the end of a delivery as inbox.Done does, whose delivery nobody but the
// inbox can make.
func end(b *pgx.Batch, id, fence int64) {
	inbox.Done(b, inbox.Delivery{})
	q := b.QueuedQueries[b.Len()-1]
	q.Arguments = []any{id, fence}
}

// ending has an effect and ends a delivery.
func ending(effect int, id, fence int64) *pgx.Batch {
	b := batch(effect)
	end(b, id, fence)
	return b
}

const (
	doneOf  = `select string_agg(id::text, ' ' order by id) from inbox where status = 'done' and done_fence = fence and finished_at is not null`
	stillOf = `select string_agg(id::text, ' ' order by id) from inbox where status = 'running' and done_fence is null and finished_at is null`
)

// TestDeliveriesThatEndTogether: one statement ends those of many, and what becomes of
// each is what would have become of it alone.
func TestDeliveriesThatEndTogether(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()

	t.Run("go by few statements, whoever came first", func(t *testing.T) {
		t.Parallel()
		db := held(t, postgres.Options{}, slices.Repeat([]int64{3}, 31)...)
		var batches []*pgx.Batch
		for _, i := range rand.Perm(30) {
			batches = append(batches, ending(i, int64(i+1), 3))
		}
		wantNoErrors(t, gathered(t, db, committing(db, batches...)...))
		want(t, db, statementsOf, "inbox 4") // of 16, 8, 4 and 2
		want(t, db, doneOf, "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30")
		want(t, db, stillOf, "31")
		want(t, db, `select count(distinct xmin::text)::text from inbox where status = 'done'`, "1")
	})

	t.Run("go past nothing that stands between them", func(t *testing.T) {
		t.Parallel()
		db := held(t, postgres.Options{}, 1, 1, 1, 1, 1)
		waiting := &pgx.Batch{}
		waiting.Queue(endMessage, int64(3), int64(1))
		wantNoErrors(t, gathered(t, db, committing(db, ending(5, 5, 1), ending(2, 2, 1), waiting, ending(4, 4, 1), ending(1, 1, 1))...))
		want(t, db, statementsOf, "inbox 3")
		want(t, db, doneOf, "1 2 4 5")
	})

	t.Run("are a tenant's own", func(t *testing.T) {
		t.Parallel()
		db := held(t, postgres.Options{}, 1, 1, 1, 1)
		units := append(
			committing(db.Tenant("acme"), ending(1, 1, 1), ending(2, 2, 1)),
			committing(db.Tenant("globex"), ending(3, 3, 1), ending(4, 4, 1))...)
		wantNoErrors(t, gathered(t, db, units...))
		want(t, db, statementsOf, "inbox 2")
		want(t, db, doneOf, "1 2 3 4")
	})

	t.Run("may be one delivery twice", func(t *testing.T) {
		t.Parallel()
		db := held(t, postgres.Options{}, 2, 2)
		wantNoErrors(t, gathered(t, db, committing(db, ending(1, 1, 2), ending(2, 1, 2), ending(3, 2, 2))...))
		want(t, db, doneOf, "1 2")
		wantStored(t, db, 1, 2, 3)
		if got := db.Shared(); got.Commits != 1 || got.Refusals != 0 {
			t.Errorf("shared are %+v", got)
		}
	})

	for name, c := range map[string]struct {
		id, fence int64
	}{
		"whose message was taken over":                {6, 1},
		"whose message was swept":                     {7, 1},
		"with a fence that nobody has":                {6, 3},
		"of a message that its heir ends beside him":  {3, 1},
		"with a greater fence than the holder beside": {3, 3},
	} {
		t.Run("are refused for him alone "+name, func(t *testing.T) {
			t.Parallel()
			db := held(t, postgres.Options{})
			for position := range 6 {
				if _, err := db.Pool().Exec(t.Context(), `delete from effects; delete from inbox`); err != nil {
					t.Fatal(err)
				}
				claimedUnder(t, db, 2, 2, 2, 2, 2, 2)
				before := db.Shared()
				var batches []*pgx.Batch
				for i := range 5 {
					batches = append(batches, ending(i, int64(i+1), 2))
				}
				batches = slices.Insert(batches, position, ending(99, c.id, c.fence))
				answers := gathered(t, db, committing(db, batches...)...)
				if err := answers[position]; postgres.Constraint(err) != "inbox_done_by_holder" || !inbox.IsLost(err) {
					t.Errorf("at position %d he was told %v", position+1, err)
				}
				wantNoErrors(t, slices.Delete(answers, position, position+1))
				wantStored(t, db, 0, 1, 2, 3, 4)
				want(t, db, doneOf, "1 2 3 4 5")
				want(t, db, stillOf, "6")
				if got := db.Shared(); got.Commits-before.Commits != 1 || got.Units-before.Units != 5 || got.Refusals-before.Refusals != 1 {
					t.Errorf("at position %d shared are %+v, before %+v", position+1, got, before)
				}
			}
		})
	}
}

// TestDeliveriesThatEndTogetherAndChange: a message that somebody holds is ended, or
// refused, as it is when he lets it go.
func TestDeliveriesThatEndTogetherAndChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql    string
		passes bool
	}{
		"its lease is renewed":     {`update inbox set due_at = due_at + interval '1 hour' where id = 2`, true},
		"it was locked only":       {`select from inbox where id = 2 for no key update`, true},
		"it is claimed by an heir": {`update inbox set fence = fence + 1 where id = 2`, false},
		"it is swept":              {`delete from inbox where id = 2`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := held(t, postgres.Options{}, 1, 1, 1)
			tx, err := db.Pool().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), c.sql); err != nil {
				t.Fatal(err)
			}
			committed := make(chan error, 1)
			go func() {
				await.Blocked(t, db, 1)
				committed <- tx.Commit(t.Context())
			}()
			answers := gathered(t, db, committing(db, ending(1, 1, 1), ending(2, 2, 1), ending(3, 3, 1))...)
			if err := await.Receive(t, "the end of the other transaction", committed); err != nil {
				t.Error(err)
			}
			if err := answers[1]; c.passes && err != nil || !c.passes && !inbox.IsLost(err) {
				t.Errorf("its holder was told %v", err)
			}
			wantNoErrors(t, []error{answers[0], answers[2]})
			if c.passes {
				want(t, db, doneOf, "1 2 3")
				wantStored(t, db, 1, 2, 3)
			} else {
				want(t, db, doneOf, "1 3")
				wantStored(t, db, 1, 3)
			}
		})
	}
}

// TestADeliveryThatSomebodyHoldsUp: the others that would end with it go on without it.
func TestADeliveryThatSomebodyHoldsUp(t *testing.T) {
	testdb.Long(t, "it waits for locks")
	t.Parallel()
	db := held(t, postgres.Options{}, 1, 1, 1)
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from inbox where id = 2 for no key update`); err != nil {
		t.Fatal(err)
	}
	units := committing(db, ending(1, 1, 1), ending(2, 2, 1), ending(3, 3, 1))
	var others sync.WaitGroup
	for _, i := range []int{0, 2} {
		others.Add(1)
		commit := units[i]
		units[i] = func(ctx context.Context) error {
			defer others.Done()
			return commit(ctx)
		}
	}
	committed := make(chan error, 1)
	go func() {
		others.Wait()
		committed <- tx.Commit(t.Context())
	}()
	wantNoErrors(t, gathered(t, db, units...))
	if err := await.Receive(t, "the end of the other transaction", committed); err != nil {
		t.Error(err)
	}
	want(t, db, doneOf, "1 2 3")
	if got := db.Shared(); got.Commits != 1 || got.Units != 2 || got.Refusals != 1 {
		t.Errorf("shared are %+v", got)
	}
}

// TestDeliveriesThatEndTogetherLockInOrder: as they would one after the other, also
// where the table is read as it lies, which is from the last to the first.
func TestDeliveriesThatEndTogetherLockInOrder(t *testing.T) {
	testdb.Long(t, "it commits for seconds")
	t.Parallel()
	db := held(t, postgres.Options{
		Settings: map[string]string{"enable_indexscan": "off"}, LockTimeout: -1, StatementTimeout: time.Hour,
	}, 1, 1, 1, 1, 1, 1, 1, 1)
	db.WaitForLocks()
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from inbox where id = 4 for no key update`); err != nil {
		t.Fatal(err)
	}
	free := make(chan string, 1)
	go func() {
		defer close(free)
		await.Blocked(t, db, 1)
		var ids string
		if err := db.Pool().QueryRow(t.Context(), `
select string_agg(id::text, ' ')
  from (select id from inbox order by id for no key update skip locked) as unlocked`).Scan(&ids); err != nil {
			t.Error(err)
		}
		free <- ids
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	var batches []*pgx.Batch
	for i := range 8 {
		batches = append(batches, ending(i, int64(i+1), 1))
	}
	wantNoErrors(t, gathered(t, db, committing(db, batches...)...))
	if got := <-free; got != "5 6 7 8" {
		t.Errorf("while the fourth was waited for, %q were free", got)
	}
	want(t, db, statementsOf, "inbox 1")
}

// TestDeliveriesThatEndTogetherOfACutConnection dies before and after their one
// statement: they end with their effects, all or none, and each settles it by itself.
func TestDeliveriesThatEndTogetherOfACutConnection(t *testing.T) {
	t.Parallel()
	const units, statements = 16, 1 + 2 // the first, the effects and the ends
	for _, test := range []struct {
		name string
		side failpoint.Side
		done string
	}{
		{"cut before the server has them", failpoint.Before, "0 of 0"},
		{"cut after the server has committed them", failpoint.After, "16 of 16"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			const doneBeside = `
select (select count(*) from inbox where status = 'done' and done_fence = fence) || ' of ' || (select count(*) from effects)`
			direct, address := effects(t, postgres.Options{})
			claimedUnder(t, direct, slices.Repeat([]int64{2}, units)...)
			proxy := failpoint.StartCutter(t, address)
			db := open(t, proxy.URL(), postgres.Options{Writes: declared(), SharedCommits: 1})
			sending := make([]*pgx.Batch, units)
			for i := range sending {
				sending[i] = ending(i+1, int64(i+1), 2)
			}
			release := db.HoldSlot()
			told := make(chan error, units)
			for i, unit := range committing(db, sending...) {
				go func() { told <- unit(t.Context()) }()
				await.True(t, "it waits", func() bool { return db.Pending() == i+1 })
			}
			proxy.Arm(test.side, statements)
			release()
			for range units {
				if err := <-told; !errors.Is(err, postgres.ErrUnknown) {
					t.Errorf("one was told %v, want %v", err, postgres.ErrUnknown)
				}
			}
			if proxy.Cuts() != 1 {
				t.Fatalf("%d connections were cut", proxy.Cuts())
			}
			want(t, direct, doneBeside, test.done)
			for i := range sending {
				err := db.Commit(t.Context(), ending(i+1, int64(i+1), 2))
				if test.side == failpoint.After && postgres.Constraint(err) != "effects_once" || test.side == failpoint.Before && err != nil {
					t.Errorf("unit %d, once more: %v", i+1, err)
				}
			}
			want(t, direct, doneBeside, "16 of 16")
		})
	}
}
