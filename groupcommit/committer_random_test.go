package groupcommit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// work is what a unit writes: a line in a merchant's diary, rows of effects, and the ends of deliveries.
type work struct {
	Tenant   string // as which it writes; "" for none
	Merchant string // whose diary it is; "" for none
	Rows     []row
	Poison   string // the SQLSTATE of a statement that the server refuses
	Messages []touched
}

// poison are statements that the server refuses, by SQLSTATE.
var poison = map[string]func(b *pgx.Batch){
	"22012": func(b *pgx.Batch) { b.Queue(insertPoison, 0) },
	"23502": func(b *pgx.Batch) { b.Queue(insert, nil, 1000) },
	"23514": func(b *pgx.Batch) { b.Queue(insert, -1, 1000) },
	"42P01": func(b *pgx.Batch) { b.Queue(insertNowhere, 1) }, // it cannot be prepared
}

// row is one of effects: the id and the twin are each there once.
type row struct{ ID, Twin int }

// touched is a message that a unit ends under a fence.
type touched struct{ ID, Fence int64 }

// books are what the database has.
type books struct {
	IDs, Twins map[int]bool
	Fences     []int64
	Done       map[int64]bool
	Lines      int
}

func (w work) batch() *pgx.Batch {
	b := &pgx.Batch{}
	if w.Merchant != "" {
		b.Queue(insertDiary, w.Merchant, 1)
	}
	for _, r := range w.Rows {
		b.Queue(insert, r.ID, r.Twin)
	}
	if w.Poison != "" {
		poison[w.Poison](b)
	}
	for _, m := range w.Messages {
		end(b, m.ID, m.Fence)
	}
	return b
}

// apply is the effect of a unit, or the SQLSTATE with which it is refused.
func (w work) apply(b books) (after books, refusal string) {
	b.IDs, b.Twins, b.Done = maps.Clone(b.IDs), maps.Clone(b.Twins), maps.Clone(b.Done)
	late := ""
	switch {
	case w.Poison == "42P01": // before anything is sent
		return b, w.Poison
	case w.Merchant == "":
	case w.Merchant == w.Tenant:
		b.Lines++
	default:
		return b, "42501"
	}
	for _, r := range w.Rows {
		if b.IDs[r.ID] {
			return b, "23505"
		}
		if b.Twins[r.Twin] {
			late = "23505" // at the commit
		}
		b.IDs[r.ID], b.Twins[r.Twin] = true, true
	}
	if w.Poison != "" {
		return b, w.Poison
	}
	for _, m := range w.Messages {
		if m.ID > int64(len(b.Fences)) || b.Fences[m.ID-1] != m.Fence || b.Done[m.ID] {
			return b, "23514"
		}
		b.Done[m.ID] = true
	}
	return b, late
}

func drawWork(fences []int64) *rapid.Generator[work] {
	small, few := rapid.IntRange(1, 25), rapid.Int64Range(1, 3)
	drawRow := rapid.Custom(func(r *rapid.T) row {
		return row{small.Draw(r, "id"), small.Draw(r, "twin")}
	})
	drawMessage := rapid.Custom(func(r *rapid.T) touched {
		m := touched{rapid.Int64Range(1, 7).Draw(r, "id"), few.Draw(r, "fence")}
		if m.ID <= int64(len(fences)) && rapid.IntRange(0, 3).Draw(r, "holds") > 0 {
			m.Fence = fences[m.ID-1]
		}
		return m
	})
	return rapid.Custom(func(r *rapid.T) work {
		w := work{
			Rows:     rapid.SliceOfN(drawRow, 0, 3).Draw(r, "rows"),
			Messages: rapid.SliceOfN(drawMessage, 0, 2).Draw(r, "messages"),
		}
		merchants := rapid.SampledFrom([]string{"", "acme", "globex"})
		w.Tenant, w.Merchant = merchants.Draw(r, "tenant"), merchants.Draw(r, "merchant")
		if rapid.IntRange(0, 9).Draw(r, "its own") > 0 {
			w.Merchant = w.Tenant
		}
		if rapid.IntRange(0, 14).Draw(r, "poisons") == 0 {
			w.Poison = rapid.SampledFrom(slices.Sorted(maps.Keys(poison))).Draw(r, "poison")
		}
		if len(w.Rows)+len(w.Messages)+len(w.Merchant) == 0 {
			w.Rows = []row{drawRow.Draw(r, "row")}
		}
		slices.SortFunc(w.Rows, func(a, b row) int { return a.ID - b.ID })
		slices.SortStableFunc(w.Messages, func(a, b touched) int { return int(a.ID - b.ID) })
		return w
	})
}

// Whatever units come at once, each is committed as a whole or refused as a whole, and
// there is an order in which individual commits would have had the same results.
func TestGroupCommit_equalsIndividualCommits(t *testing.T) {
	testrun.Long(t, "it compares many random batches")
	t.Parallel()
	owner, db := diaries(t, postgres.Options{})
	testdb.Exec(t, owner.Pool(), createEffects)
	testdb.Exec(t, owner.Pool(), `grant select, insert on effects to payonce_worker`)
	rapid.Check(t, func(r *rapid.T) {
		if _, err := owner.Pool().Exec(context.WithoutCancel(t.Context()), `delete from effects; delete from inbox; delete from diaries`); err != nil {
			r.Fatal(err)
		}
		fences := rapid.SliceOfN(rapid.Int64Range(1, 3), 6, 6).Draw(r, "fences")
		claimedUnder(t, owner, fences...)
		all := rapid.SliceOfN(drawWork(fences), 2, 16).Draw(r, "units")
		if rapid.IntRange(0, 2).Draw(r, "lines alone") == 0 { // each passes, and those of a tenant are merged
			for i, w := range all {
				if w.Tenant == "" {
					w.Tenant = "acme"
				}
				all[i] = work{Tenant: w.Tenant, Merchant: w.Tenant}
			}
		}
		var units []func(context.Context) error
		for _, w := range all {
			units = append(units, func(ctx context.Context) error {
				err := db.Tenant(w.Tenant).Commit(ctx, w.batch())
				for groupcommit.OutcomeOf(err).Retryable() { // individual commits may deadlock
					err = db.Tenant(w.Tenant).Commit(ctx, w.batch())
				}
				return err
			})
		}
		refusals := db.Committer().Stats().Refusals
		errs := together(t, db.Committer(), units...)
		if errors.Join(errs...) == nil && db.Committer().Stats().Refusals > refusals {
			r.Error("a group is refused of which each batch passes")
		}

		b := books{IDs: map[int]bool{}, Twins: map[int]bool{}, Fences: fences, Done: map[int64]bool{}}
		for i, w := range all {
			if errs[i] != nil {
				continue
			}
			after, refusal := w.apply(b)
			if refusal != "" {
				r.Errorf("unit %d is committed beside one that excludes it", i)
			}
			b = after
		}
		for i, w := range all {
			// Refused after all others, it would have been refused at its turn or later.
			if _, refusal := w.apply(b); errs[i] != nil &&
				(refusal == "" || testdb.Code(errs[i]) != refusal && len(w.Rows) == 0 || errors.Is(errs[i], groupcommit.ErrUnknown)) {
				r.Errorf("unit %d has the error %v, want %q", i, errs[i], refusal)
			}
		}
		if diff := cmp.Diff(append([]int{}, slices.Sorted(maps.Keys(b.IDs))...), stored(t, owner)); diff != "" {
			r.Errorf("stored (-want +got):\n%s", diff)
		}
		var messages []string
		for i := range fences {
			messages = append(messages, fmt.Sprint(i+1, " ", b.Done[int64(i+1)]))
		}
		want(t, owner, `select count(*)::text from diaries`, strconv.Itoa(b.Lines))
		want(t, owner, `select format('%s %s', id, (status = 'done' and done_fence = fence)::text) from inbox order by id`, messages...)
	})
	if db.Committer().Stats().Commits == 0 {
		t.Error("no commit was shared")
	}
}

// faults go on while units are committed. The number in cutSession chooses the session.
var faults = []string{cutSession, `alter table effects add column if not exists more text`, cutSession, `alter table effects drop column if exists more`}

const cutSession = `
select pg_terminate_backend(pid)
  from (select pid,
               row_number() over (order by backend_start, pid) - 1 as turn,
               count(*) over () as sessions
          from pg_stat_activity
         where datname = current_database()
           and application_name = 'faults') as candidates
 where turn = %d %% sessions`

// While sessions are ended, the table is altered, and some units exclude others at once or
// at commit: of a unit that is committed all is there, of one that is refused nothing is,
// and a unit that nothing is wrong with is not refused.
func TestGroupCommit_reportsOutcomesThatAreTrueUnderFaults(t *testing.T) {
	testrun.Long(t, "it races many against each other")
	t.Parallel()
	owner, address := effects(t, postgres.Options{LockTimeout: time.Hour, StatementTimeout: time.Hour})
	var pools [2]*postgres.DB
	for i := range pools {
		pools[i] = testdb.OpenAt(t, address, postgres.Options{
			Writes: declared(), MaxConns: 4, Application: "faults", LockTimeout: time.Hour, StatementTimeout: time.Hour,
		})
	}
	const sessions, units, unitsPerFault = 64, 10, 16
	seed := testrun.Seed(t)
	var working sync.WaitGroup
	var ids atomic.Int64
	results := make([]error, sessions*units+1)
	for i := range sessions {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		working.Go(func() {
			for range units {
				n := int(ids.Add(1))
				if n%unitsPerFault == 0 { // beside the others
					sql := faults[n/unitsPerFault%len(faults)]
					if sql == cutSession {
						sql = fmt.Sprintf(sql, random.IntN(1000))
					}
					if _, err := owner.Pool().Exec(t.Context(), sql); err != nil {
						t.Error(err)
					}
				}
				id := 10 * n
				b := batch(id)
				fault := true
				switch random.IntN(20) {
				case 0:
					b.Queue(insert, id, id)
				case 1:
					b.Queue(insert, id+2, 5) // checked at commit
				case 2:
					b.Queue(insert, 1+random.IntN(4), -id)
				default:
					fault = false
				}
				b.Queue(insert, id+1, id+1)
				err := pools[i%2].Commit(t.Context(), b)
				if outcome := groupcommit.OutcomeOf(err); !fault && outcome != groupcommit.Committed &&
					outcome != groupcommit.Unknown && outcome != groupcommit.NotCommitted {
					t.Errorf("a unit has the error %v", err)
				}
				results[n] = err
			}
		})
	}
	working.Wait()

	there := map[int]bool{}
	for _, id := range stored(t, owner) {
		there[id] = true
	}
	for n, err := range results[1:] {
		id := 10 * (n + 1)
		switch first, last := there[id], there[id+1]; {
		case first != last:
			t.Errorf("of unit %d a half is stored, with the error %v", id, err)
		case errors.Is(err, groupcommit.ErrUnknown):
		case first != (err == nil):
			t.Errorf("unit %d is stored: %v, with the error %v", id, first, err)
		}
	}
	if pools[0].Committer().Stats().Commits+pools[1].Committer().Stats().Commits == 0 {
		t.Error("no commit was shared")
	}
}
