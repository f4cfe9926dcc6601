package postgres_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// ends is what a unit does to messages, and whether it has a statement that is refused.
type ends struct {
	Messages []touched
	Poison   bool
}

// touched is a message that a unit ends under a fence, or only counts.
type touched struct {
	ID, Fence int64
	Counts    bool
}

func (e ends) batch(effect int) *pgx.Batch {
	b := batch(effect)
	if e.Poison {
		b.Queue(insertPoison, 0)
	}
	for _, m := range e.Messages {
		if m.Counts {
			b.Queue(endMessage, m.ID, m.Fence)
		} else {
			end(b, m.ID, m.Fence)
		}
	}
	return b
}

// message is what is left of one.
type message struct {
	ID    int64
	Done  bool
	Waits int
}

// refused is how it ends under the fences that messages have.
func (e ends) refused(fences []int64) string {
	if e.Poison {
		return "22012"
	}
	for _, m := range e.Messages {
		if !m.Counts && !m.isHeld(fences) {
			return "23514"
		}
	}
	return ""
}

func (m touched) isHeld(fences []int64) bool {
	return m.ID <= int64(len(fences)) && fences[m.ID-1] == m.Fence
}

func messages(t *testing.T, db *postgres.DB) []message {
	t.Helper()
	rows, err := db.Query(t.Context(), `
select id,
       status = 'done' and done_fence = fence as done,
       waits
  from inbox
 where (status = 'done') = (done_fence is not null)
 order by id`)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[message])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestDeliveriesThatEndTogetherAreLikeEachForItself: holders, zombies and heirs, of
// messages that are there and that are not, some of them twice and some beside what
// else is done to messages. Nobody's end changes a fence, so what becomes of each does
// not depend on who was first.
func TestDeliveriesThatEndTogetherAreLikeEachForItself(t *testing.T) {
	testdb.Long(t, "it compares many random batches")
	t.Parallel()
	db := held(t, postgres.Options{})
	rapid.Check(t, func(r *rapid.T) {
		if _, err := db.Pool().Exec(context.WithoutCancel(t.Context()), `delete from effects; delete from inbox`); err != nil {
			r.Fatal(err)
		}
		few := rapid.Int64Range(1, 3)
		fences := rapid.SliceOfN(few, 6, 6).Draw(r, "fences")
		claimedUnder(t, db, fences...)
		units := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) ends {
			return ends{
				Messages: slices.SortedStableFunc(slices.Values(rapid.SliceOfN(rapid.Custom(func(r *rapid.T) touched {
					m := touched{ID: rapid.Int64Range(1, 7).Draw(r, "id"), Counts: rapid.IntRange(0, 5).Draw(r, "counts") == 0}
					m.Fence = few.Draw(r, "fence")
					if m.ID <= 6 && rapid.IntRange(0, 3).Draw(r, "holds") > 0 {
						m.Fence = fences[m.ID-1]
					}
					return m
				}), 1, 2).Draw(r, "messages")), func(a, b touched) int { return int(a.ID - b.ID) }),
				Poison: rapid.IntRange(0, 19).Draw(r, "poison") == 0,
			}
		}), 2, 20).Draw(r, "units")

		batches := make([]*pgx.Batch, len(units))
		for i, u := range units {
			batches[i] = u.batch(i + 1)
		}
		answers := gathered(t, db, settling(db, batches)...)

		want, effects := make([]message, len(fences)), []int{}
		for i := range want {
			want[i].ID = int64(i + 1)
		}
		for i, u := range units {
			refusal := u.refused(fences)
			if got := code(answers[i]); got != refusal {
				r.Errorf("unit %d was told %v, want %q", i, answers[i], refusal)
			}
			if refusal != "" {
				continue
			}
			effects = append(effects, i+1)
			for _, m := range u.Messages {
				switch {
				case !m.Counts:
					want[m.ID-1].Done = true
				case m.isHeld(fences):
					want[m.ID-1].Waits++
				}
			}
		}
		if diff := cmp.Diff(want, messages(t, db)); diff != "" {
			r.Errorf("messages (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(effects, append([]int{}, stored(t, db)...)); diff != "" {
			r.Errorf("effects (-want +got):\n%s", diff)
		}
	})
	if db.Shared().Commits == 0 {
		t.Error("nobody had company")
	}
}
