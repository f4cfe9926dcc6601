package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// row is one of effects: the id and the twin are each there once. Rows of one text
// may be inserted by one statement.
type row struct {
	ID, Twin int
	Other    bool // text
}

// planned is what a unit inserts.
type planned struct {
	Rows   []row
	Poison bool // a last statement that the server refuses
}

func (p planned) batch() *pgx.Batch {
	b := &pgx.Batch{}
	for _, r := range p.Rows {
		if r.Other {
			b.Queue(insertTwin, r.Twin, r.ID)
		} else {
			b.Queue(insert, r.ID, r.Twin)
		}
	}
	if p.Poison {
		b.Queue(insertPoison, 0)
	}
	return b
}

// refused is why a unit cannot be committed after what is there: the SQLSTATE, ""
// if it can.
func (p planned) refused(ids, twins map[int]bool) string {
	ids, twins = maps.Clone(ids), maps.Clone(twins)
	late := ""
	for _, r := range p.Rows {
		if ids[r.ID] {
			return "23505"
		}
		if twins[r.Twin] {
			late = "23505"
		}
		ids[r.ID], twins[r.Twin] = true, true
	}
	if p.Poison {
		return "22012"
	}
	return late
}

// settling are units that are sent again when a deadlock was lost: who goes by itself
// may meet others who do.
func settling(db *postgres.DB, batches []*pgx.Batch) []func(context.Context) error {
	units := committing(db, batches...)
	for i, unit := range units {
		units[i] = func(ctx context.Context) error {
			err := unit(ctx)
			for postgres.OutcomeOf(err).MayPass() {
				b := &pgx.Batch{}
				for _, q := range batches[i].QueuedQueries {
					b.Queue(q.SQL, q.Arguments...)
				}
				err = db.Commit(ctx, b)
			}
			return err
		}
	}
	return units
}

// TestJoinedIsLikeEachForItself: whatever units come at once, each is committed as a
// whole or refused as a whole, and there is an order in which each for itself would
// have come to the same.
func TestJoinedIsLikeEachForItself(t *testing.T) {
	testdb.Long(t, "it compares many random batches")
	t.Parallel()
	db := slot(t)
	rapid.Check(t, func(r *rapid.T) {
		if _, err := db.Pool().Exec(context.WithoutCancel(t.Context()), `delete from effects`); err != nil {
			r.Fatal(err)
		}
		small := rapid.IntRange(1, 25)
		units := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) planned {
			return planned{
				Rows: slices.SortedFunc(slices.Values(rapid.SliceOfN(rapid.Custom(func(r *rapid.T) row {
					return row{small.Draw(r, "id"), small.Draw(r, "twin"), rapid.Bool().Draw(r, "other text")}
				}), 1, 3).Draw(r, "rows")), func(a, b row) int { return a.ID - b.ID }),
				Poison: rapid.IntRange(0, 9).Draw(r, "poison") == 0,
			}
		}), 2, 12).Draw(r, "units")

		batches := make([]*pgx.Batch, len(units))
		for i, u := range units {
			batches[i] = u.batch()
		}
		answers := gathered(t, db, settling(db, batches)...)

		ids, twins := map[int]bool{}, map[int]bool{}
		var want []int
		for i, u := range units {
			if answers[i] != nil {
				continue
			}
			if code := u.refused(ids, twins); code != "" {
				r.Errorf("unit %d is committed beside one that excludes it", i)
			}
			for _, w := range u.Rows {
				ids[w.ID], twins[w.Twin] = true, true
				want = append(want, w.ID)
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(append([]int{}, want...), stored(t, db)); diff != "" {
			r.Errorf("stored (-answered +stored):\n%s", diff)
		}
		for i, u := range units {
			if answers[i] == nil {
				continue
			}
			// Refused at the end, it would have been refused at its turn or later.
			if got, want := code(answers[i]), u.refused(ids, twins); want == "" || got != want && !u.Poison || errors.Is(answers[i], postgres.ErrUnknown) {
				r.Errorf("unit %d was told %v, want %q", i, answers[i], want)
			}
		}
	})
}

// TestManyAtOnce: units in two slots of a small pool, some of which exclude each
// other. Of each id one is stored, and one was told so. Had each of them a rival, hardly
// any transaction of many would be without two of them.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{Writes: declared(), MaxConns: 4})
	const ids, units = 800, 900
	told := make(chan error, units)
	for i := range units {
		go func() {
			err := db.Commit(t.Context(), batch(i%ids))
			for errors.Is(err, postgres.ErrNotCommitted) { // no connection in time
				err = db.Commit(t.Context(), batch(i%ids))
			}
			if err != nil {
				err = fmt.Errorf("%d: %w", i%ids, err)
			}
			told <- err
		}()
	}
	committed := 0
	for range units {
		err := <-told
		if err == nil {
			committed++
		} else if c := postgres.Constraint(err); c != "effects_once" && c != "effects_twin_once" {
			t.Error(err)
		}
	}
	if n := len(stored(t, db)); committed != ids || n != ids {
		t.Errorf("%d were told that they are stored, and %d are", committed, n)
	}
	if shared := db.Shared(); shared.Units == 0 {
		t.Error("nobody had company")
	}
	await.True(t, "the slots are free", func() bool { return db.FreeSlots() == 2 })
}
