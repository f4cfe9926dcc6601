package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

type order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
	SentAt string `json:"sent_at,omitempty"`
}

type receipt struct {
	Number int64 `json:"number"`
	Paid   int64 `json:"paid"`
	Nonce  int   `json:"-"`
}

// ordering is a work with one effect; calls counts how often it was called.
func ordering(db *postgres.DB, calls *atomic.Int64) idempotency.Once[order, receipt] {
	return idempotency.Once[order, receipt]{
		Receiver:  idempotency.Receiver{DB: db, Retention: time.Hour},
		Scope:     "acme",
		Operation: "order.v1",
		Work: func(_ context.Context, b *pgx.Batch, o order) (receipt, error) {
			n := calls.Add(1)
			b.Queue(insertEffect)
			return receipt{Number: n, Paid: o.Amount, Nonce: 1}, nil
		},
	}
}

func byID(o order) (string, error) {
	k := idempotency.NaturalKey{Parts: []string{o.ID}, Operation: "order", Version: 1}
	return k.String(), k.Validate()
}

func do[In, Out any](t *testing.T, o idempotency.Once[In, Out], in In) idempotency.Result[Out] {
	t.Helper()
	result, err := o.Do(t.Context(), in)
	if err != nil || result.Err != nil {
		t.Fatalf("%v, %v", err, result.Err)
	}
	return result
}

func TestOnce(t *testing.T) {
	t.Parallel()

	t.Run("the work is done once, and its result is returned each time", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		var calls atomic.Int64
		once := ordering(db, &calls)
		first := do(t, once, order{ID: "o-1", Amount: math.MaxInt64})
		want := idempotency.Result[receipt]{Key: first.Key, Value: receipt{Number: 1, Paid: math.MaxInt64}}
		if diff := cmp.Diff(want, first); diff != "" {
			t.Errorf("first (-want +got):\n%s", diff)
		}
		want.Duplicate = true
		for range 3 {
			if diff := cmp.Diff(want, do(t, once, order{ID: "o-1", Amount: math.MaxInt64})); diff != "" {
				t.Errorf("again (-want +got):\n%s", diff)
			}
		}
		if calls.Load() != 1 {
			t.Errorf("%d calls", calls.Load())
		}
		wantEffects(t, db, 1)
	})

	for _, test := range []struct {
		name       string
		change     func(call int, once *idempotency.Once[order, receipt])
		inputs     []order
		duplicates int
	}{
		{
			"without a key function each input is work of its own", func(int, *idempotency.Once[order, receipt]) {},
			[]order{{ID: "o-1", Amount: 1}, {ID: "o-1", Amount: 2}, {ID: "o-2", Amount: 1}},
			0,
		},
		{"another operation has keys of its own", func(call int, once *idempotency.Once[order, receipt]) {
			once.Key, once.Operation = byID, fmt.Sprint("order.v", call)
		}, []order{{ID: "o-1"}, {ID: "o-1"}}, 0},
		{"another scope has keys of its own", func(call int, once *idempotency.Once[order, receipt]) {
			once.Key, once.Scope = byID, fmt.Sprint("merchant", call)
		}, []order{{ID: "o-1"}, {ID: "o-1"}}, 0},
		{"members outside Same may differ", func(_ int, once *idempotency.Once[order, receipt]) {
			once.Same = func(o order) any { return []any{o.ID, o.Amount} }
		}, []order{{ID: "o-1", Amount: 1, SentAt: "10:00"}, {ID: "o-1", Amount: 1, SentAt: "10:01"}}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db, duplicates := testdb.Reused(t), 0
			for call, in := range test.inputs {
				once := ordering(db, new(atomic.Int64))
				test.change(call, &once)
				if got := do(t, once, in); got.Duplicate {
					duplicates++
				}
			}
			if duplicates != test.duplicates {
				t.Errorf("%d of %d are duplicates, want %d", duplicates, len(test.inputs), test.duplicates)
			}
			wantEffects(t, db, len(test.inputs)-test.duplicates)
		})
	}

	t.Run("another input under the same key is refused with the members that differ", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		once := ordering(db, new(atomic.Int64))
		once.Key = byID
		do(t, once, order{ID: "o-1", Amount: 1})
		got, err := once.Do(t.Context(), order{ID: "o-1", Amount: 2})
		reused, ok := errors.AsType[*idempotency.ReusedError](err)
		if !ok || !cmp.Equal(reused.Pointers, []string{"/amount"}) || got.Duplicate || got.Value != (receipt{}) {
			t.Errorf("%+v, %v", got, err)
		}
		wantEffects(t, db, 1)
	})

	t.Run("a forgotten result is not returned, and the work is not done again", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		once := ordering(db, new(atomic.Int64))
		once.Forget = true
		if got := do(t, once, order{ID: "o-1", Amount: 5}); got.Duplicate || got.Value.Paid != 5 {
			t.Errorf("%+v", got)
		}
		if got := do(t, once, order{ID: "o-1", Amount: 5}); !got.Duplicate || got.Value != (receipt{}) {
			t.Errorf("again %+v", got)
		}
		wantEffects(t, db, 1)
		var kept int
		if err := db.QueryRow(t.Context(), `select coalesce(length(request), 0) + length(body) from idempotency_keys`).Scan(&kept); err != nil || kept != 0 {
			t.Errorf("%d bytes are kept: %v", kept, err)
		}
	})
}

func TestOnce_refusesWhatItCannotKeep(t *testing.T) {
	t.Parallel()
	type numbers = idempotency.Once[float64, float64]
	for name, test := range map[string]struct {
		change func(*numbers)
		in     float64
		want   string
	}{
		"an input that is not JSON": {func(*numbers) {}, math.NaN(), "encode an input of number.v1: not one JSON value with one meaning: json: unsupported value: NaN"},
		"a result that is not JSON": {func(o *numbers) {
			o.Work = func(context.Context, *pgx.Batch, float64) (float64, error) { return math.Inf(1), nil }
		}, 1, "encode a result of number.v1: json: unsupported value: +Inf"},
		"a key that is not valid": {func(o *numbers) {
			o.Key = func(float64) (string, error) { return strings.Repeat("k", 256), nil }
		}, 1, "derive a key of number.v1: the idempotency key is not a key"},
		"an input without a key": {func(o *numbers) {
			o.Key = func(float64) (string, error) { return "", idempotency.ErrUnstable }
		}, 1, "derive a key of number.v1: no key can be made of this"},
		"a further key that is not valid": {func(o *numbers) {
			o.Also = func(float64) ([]string, error) { return []string{"k", ""}, nil }
		}, 1, "derive a key of number.v1: the idempotency key is not a key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			once := numbers{
				Receiver: idempotency.Receiver{DB: db}, Operation: "number.v1",
				Work: func(_ context.Context, _ *pgx.Batch, in float64) (float64, error) { return in, nil },
			}
			test.change(&once)
			if _, err := once.Do(t.Context(), test.in); err == nil || err.Error() != test.want {
				t.Errorf("the error is %v, want %s", err, test.want)
			}
		})
	}

	t.Run("a result that another version wrote is an error, not an empty one", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		numbers := idempotency.Once[string, float64]{
			Receiver: idempotency.Receiver{DB: db}, Operation: "v1",
			Work: func(context.Context, *pgx.Batch, string) (float64, error) { return 1, nil },
		}
		texts := idempotency.Once[string, string]{Receiver: numbers.Receiver, Operation: "v1"}
		do(t, numbers, "a")
		got, err := texts.Do(t.Context(), "a")
		if err == nil || !strings.HasPrefix(err.Error(), "read the stored result of v1: ") || !got.Duplicate {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestOnce_refusesAWorkThatReadsFromItsOwnBatch(t *testing.T) {
	t.Parallel()
	for name, queue := range map[string]func(b *pgx.Batch, out *receipt){
		"insert returning": func(b *pgx.Batch, out *receipt) {
			b.Queue(insertEffect + ` returning 17`).QueryRow(func(row pgx.Row) error { return row.Scan(&out.Number) })
		},
		"the count of rows": func(b *pgx.Batch, out *receipt) {
			b.Queue(insertEffect).Exec(func(tag pgconn.CommandTag) error { out.Number = tag.RowsAffected(); return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			once := ordering(db, new(atomic.Int64))
			correct := once
			once.Work = func(_ context.Context, b *pgx.Batch, _ order) (out receipt, err error) {
				queue(b, &out)
				return out, nil
			}
			for _, once.Forget = range []bool{false, true} {
				if result, err := once.Do(t.Context(), order{ID: "o-1"}); !errors.Is(err, idempotency.ErrReadsBatch) {
					t.Errorf("the result is %+v with error %v, want ErrReadsBatch", result, err)
				}
			}
			if result := do(t, correct, order{ID: "o-1"}); result.Duplicate {
				t.Errorf("the key is not free afterwards: %+v", result)
			}
			wantEffects(t, db, 1)
		})
	}
}

// moody panics when it is read and bad.
type moody string

func (m *moody) UnmarshalJSON(text []byte) error {
	if string(text) == `"bad"` {
		panic("planted")
	}
	*m = moody(strings.Trim(string(text), `"`))
	return nil
}

func orders(n int) []order {
	orders := make([]order, n)
	for i := range orders {
		orders[i] = order{ID: fmt.Sprint("o-", i), Amount: int64(i)}
	}
	return orders
}

// tally counts the results of a call: done, known and failed.
func tally(results []idempotency.Result[receipt]) (done, known, failed int) {
	for _, r := range results {
		switch {
		case r.Err != nil:
			failed++
		case r.Duplicate:
			known++
		default:
			done++
		}
	}
	return done, known, failed
}

func TestDoAll(t *testing.T) {
	t.Parallel()

	t.Run("known inputs are skipped, and the others are done, in order", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		var calls atomic.Int64
		once := ordering(db, &calls)
		once.Key = byID
		all := orders(40)
		var want []idempotency.Result[receipt]
		for i, in := range all {
			if i%4 == 0 {
				do(t, once, in)
			}
			want = append(want, idempotency.Result[receipt]{
				Key: in.ID + ":order:v1", Value: receipt{Paid: in.Amount}, Duplicate: i%4 == 0,
			})
		}
		got := once.DoAll(t.Context(), all)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(receipt{}, "Number")); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if done, known, failed := tally(once.DoAll(t.Context(), all)); done != 0 || known != 40 || failed != 0 {
			t.Errorf("again: %d done, %d known, %d failed", done, known, failed)
		}
		if calls.Load() != 40 {
			t.Errorf("%d calls", calls.Load())
		}
		wantEffects(t, db, 40)
	})

	t.Run("one bad input fails alone", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		once := ordering(db, new(atomic.Int64))
		once.Key = byID
		work, planted := once.Work, errors.New("planted")
		once.Work = func(ctx context.Context, b *pgx.Batch, in order) (receipt, error) {
			out, err := work(ctx, b, in)
			switch in.ID {
			case "o-1":
				runtime.Goexit()
			case "o-2":
				return out, planted
			case "o-3":
				panic("planted too")
			case "o-4":
				b.Queue(`insert into merchants (merchant_id) values ('acme'), ('acme')`)
			}
			return out, err
		}
		do(t, once, order{ID: "o-5", Amount: 7})
		in := orders(8)
		in[6].ID = ""
		got := once.DoAll(t.Context(), in)
		for i, says := range map[int]string{
			1: "the work did not return", 2: "planted", 3: "panic in order.v1: planted too", 4: "merchants_pkey",
			5: idempotency.ErrReused.Error(), 6: "derive a key of order.v1: no key can be made of this",
		} {
			if err := got[i].Err; err == nil || !strings.Contains(err.Error(), says) || got[i].Duplicate || got[i].Value != (receipt{}) {
				t.Errorf("result %d is %+v, want %s", i, got[i], says)
			}
		}
		if done, known, failed := tally(got); done != 2 || known != 0 || failed != 6 {
			t.Errorf("%d done, %d known, %d failed", done, known, failed)
		}
		wantEffects(t, db, 3)
	})

	t.Run("a panic in Key, or in reading a result, fails one input", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		once := idempotency.Once[*order, moody]{
			Receiver: idempotency.Receiver{DB: db}, Operation: "moody.v1",
			Key: func(o *order) (string, error) { return o.ID, nil },
			Work: func(_ context.Context, b *pgx.Batch, o *order) (moody, error) {
				b.Queue(insertEffect)
				return moody(o.SentAt), nil
			},
		}
		good, bad := &order{ID: "o-1", SentAt: "noon"}, &order{ID: "o-2", SentAt: "bad"}
		for range 2 { // the second time they are known
			got := once.DoAll(t.Context(), []*order{good, nil, bad})
			if got[0].Err != nil || got[0].Value != "noon" {
				t.Errorf("the good one: %+v", got[0])
			}
			for i, says := range map[int]string{1: "nil pointer", 2: "planted"} {
				if err := got[i].Err; err == nil || !strings.HasPrefix(err.Error(), "panic in moody.v1: ") || !strings.Contains(err.Error(), says) {
					t.Errorf("result %d is %+v", i, got[i])
				}
			}
		}
		wantEffects(t, db, 2)
	})

	t.Run("an input that occurs twice in one call is done once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		once := ordering(db, new(atomic.Int64))
		in := make([]order, 20)
		for i := range in {
			in[i] = order{ID: fmt.Sprint("o-", i%2)}
		}
		if done, known, failed := tally(once.DoAll(t.Context(), in)); done != 2 || known != 18 || failed != 0 {
			t.Errorf("%d done, %d known, %d failed", done, known, failed)
		}
		wantEffects(t, db, 2)
	})

	t.Run("no more than eight inputs run at once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		once := ordering(db, new(atomic.Int64))
		var mu sync.Mutex
		now, most := 0, 0
		work := func(more int) {
			mu.Lock()
			defer mu.Unlock()
			now += more
			most = max(most, now)
		}
		once.Work = func(ctx context.Context, _ *pgx.Batch, _ order) (receipt, error) {
			work(+1)
			defer work(-1)
			var one int
			return receipt{}, db.QueryRow(ctx, `select 1`).Scan(&one) // long enough for others to begin
		}
		if done, _, _ := tally(once.DoAll(t.Context(), orders(60))); done != 60 || most > 8 || most < 2 {
			t.Errorf("%d done, at most %d at once", done, most)
		}
	})

	t.Run("inputs that a call left undone are done by the next", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		var calls atomic.Int64
		once := ordering(db, &calls)
		stopped, cancel := context.WithCancel(t.Context())
		work := once.Work
		once.Work = func(ctx context.Context, b *pgx.Batch, in order) (receipt, error) {
			switch {
			case in.ID == "o-10":
				cancel()
			case in.Amount > 10:
				<-stopped.Done() // it does not overtake the input that cancels
			}
			return work(ctx, b, in)
		}
		got := once.DoAll(stopped, orders(30))
		done, _, failed := tally(got)
		for _, r := range got {
			if r.Err != nil && (!errors.Is(r.Err, idempotency.ErrUnavailable) || !errors.Is(r.Err, context.Canceled) || r.Key == "") {
				t.Errorf("%+v", r)
			}
		}
		if done < 10 || done > 19 || done+failed != 30 {
			t.Errorf("%d done, %d failed", done, failed)
		}
		wantEffects(t, db, done)
		if rest, known, failed := tally(once.DoAll(t.Context(), orders(30))); rest != 30-done || known != done || failed != 0 {
			t.Errorf("then %d done, %d known, %d failed", rest, known, failed)
		}
		wantEffects(t, db, 30)
	})
}

// report is meant once an hour.
type report struct {
	Shop string    `json:"shop"`
	At   time.Time `json:"at"`
}

func (r report) key(window string) string {
	return idempotency.NaturalKey{Parts: []string{r.Shop, window}, Operation: "report", Version: 1}.String()
}

// reporting does a report once an hour, also beyond the full hour.
func reporting(db *postgres.DB, calls *atomic.Int64) idempotency.Once[report, receipt] {
	return idempotency.Once[report, receipt]{
		Receiver: idempotency.Receiver{DB: db}, Scope: "acme", Operation: "report.v1",
		Same: func(r report) any { return r.Shop },
		Key: func(r report) (string, error) {
			this, _ := idempotency.Window(r.At, time.Hour)
			return r.key(this), nil
		},
		Also: func(r report) ([]string, error) {
			_, previous := idempotency.Window(r.At, time.Hour)
			return []string{r.key(previous)}, nil
		},
		Work: func(_ context.Context, b *pgx.Batch, _ report) (receipt, error) {
			b.Queue(insertEffect)
			return receipt{Number: calls.Add(1)}, nil
		},
	}
}

func reportAt(hour, minute, second int) report {
	return report{Shop: "acme", At: time.Date(2026, 1, 31, hour, minute, second, 0, time.UTC)}
}

func TestOnce_neighbouringWindowsAnswerForEachOther(t *testing.T) {
	t.Parallel()

	t.Run("a duplicate beyond the full hour gets the first result", func(t *testing.T) {
		t.Parallel()
		for _, sent := range [][]report{
			{reportAt(10, 59, 59), reportAt(11, 0, 1), reportAt(10, 30, 0)},
			{reportAt(11, 0, 1), reportAt(10, 59, 59), reportAt(11, 30, 0)},
		} {
			db := testdb.Reused(t)
			var calls atomic.Int64
			once := reporting(db, &calls)
			for i, r := range sent {
				if got := do(t, once, r); got.Duplicate != (i > 0) || got.Value.Number != 1 {
					t.Errorf("at %v: %+v", r.At, got)
				}
			}
			if calls.Load() != 1 {
				t.Errorf("%d calls", calls.Load())
			}
			wantEffects(t, db, 1)
		}
	})

	t.Run("concurrent duplicates in both windows are done once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		once := reporting(db, new(atomic.Int64))
		in := make([]report, 20)
		for i := range in {
			in[i] = reportAt(10+i%2, 30, i)
		}
		if done, known, failed := tally(once.DoAll(t.Context(), in)); done != 1 || known != 19 || failed != 0 {
			t.Errorf("%d done, %d known, %d failed", done, known, failed)
		}
		if done, known, failed := tally(once.DoAll(t.Context(), in)); done != 0 || known != 20 || failed != 0 {
			t.Errorf("again: %d done, %d known, %d failed", done, known, failed)
		}
		wantEffects(t, db, 1)
	})

	t.Run("keys that cross each other do not deadlock", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		once := reporting(db, new(atomic.Int64))
		once.Key = func(r report) (string, error) { return r.Shop, nil }
		once.Also = func(r report) ([]string, error) { return []string{map[string]string{"a": "b", "b": "a"}[r.Shop]}, nil }
		once.Same = func(report) any { return nil }
		var work errgroup.Group
		for i := range 16 {
			work.Go(func() error {
				_, err := once.Do(t.Context(), report{Shop: string(rune('a' + i%2))})
				return err
			})
		}
		if err := work.Wait(); err != nil {
			t.Error(err)
		}
		wantEffects(t, db, 1)
	})
}

func TestReceive_claimsFurtherKeys(t *testing.T) {
	t.Parallel()

	t.Run("an answer of a further key is not cached under the first", func(t *testing.T) {
		t.Parallel()
		cache := &cacheStub{}
		r := idempotency.Receiver{DB: testdb.Reused(t), Cache: cache}
		first := receive(t, r, effect)
		cache.kept = nil
		further := theRequest()
		further.Also = []string{theKey().Value}
		got, err := r.Receive(t.Context(), keyOf("k2"), further, effect)
		first.Replayed = true
		if diff := cmp.Diff(first, got); diff != "" || err != nil || len(cache.kept) != 0 {
			t.Errorf("kept %v, %v, outcome (-want +got):\n%s", cache.kept, err, diff)
		}
	})

	t.Run("a taken key that the work itself claims is a refusal", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		if err := claim(t, db, keyOf("foreign"), theAnswer(), inAnHour()); err != nil {
			t.Fatal(err)
		}
		calls := 0
		_, err := idempotency.Receiver{DB: db}.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			calls++
			idempotency.Claim(b, keyOf("foreign"), theRequest(), theAnswer(), now.Add(time.Hour))
			return effect(ctx, b, now)
		})
		if !idempotency.IsTaken(err) || errors.Is(err, idempotency.ErrUnavailable) || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
		wantEffects(t, db, 1)
		if _, found := readKey(t, db, theKey()); found {
			t.Error("the key is taken")
		}
	})
}
