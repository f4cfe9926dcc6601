package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/cutproxy"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

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

	t.Run("nothing is done of nothing", func(t *testing.T) {
		t.Parallel()
		if got := ordering(nil, new(atomic.Int64)).DoAll(t.Context(), nil); len(got) > 0 {
			t.Errorf("%v", got)
		}
	})

	t.Run("what is known is skipped, and the rest is done, in order", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
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
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		once.Key = byID
		work, planted := once.Work, errors.New("planted")
		once.Work = func(ctx context.Context, b *pgx.Batch, in order) (receipt, error) {
			out, err := work(ctx, b, in)
			switch in.ID {
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
			2: "planted", 3: "panic in order.v1: planted too", 4: "merchants_pkey",
			5: idempotency.ErrReused.Error(), 6: "derive a key of order.v1: no key can be made of this",
		} {
			if err := got[i].Err; err == nil || !strings.Contains(err.Error(), says) || got[i].Duplicate || got[i].Value != (receipt{}) {
				t.Errorf("result %d is %+v, want %s", i, got[i], says)
			}
		}
		if done, known, failed := tally(got); done != 3 || known != 0 || failed != 5 {
			t.Errorf("%d done, %d known, %d failed", done, known, failed)
		}
		wantEffects(t, db, 4)
	})

	t.Run("also one that panics where its key is derived, or its result is read", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
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

	t.Run("and one whose work ends its goroutine", func(t *testing.T) {
		t.Parallel()
		once := ordering(pgtest.Reused(t), new(atomic.Int64))
		work := once.Work
		once.Work = func(ctx context.Context, b *pgx.Batch, in order) (receipt, error) {
			if in.ID == "o-1" {
				runtime.Goexit()
			}
			return work(ctx, b, in)
		}
		got := once.DoAll(t.Context(), orders(3))
		if done, _, failed := tally(got); done != 2 || failed != 1 || got[1].Err == nil || got[1].Key == "" {
			t.Errorf("%+v", got)
		}
	})

	t.Run("an input that comes twice in one call is done once", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
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

	t.Run("two calls at once do each once", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		other := make(chan []idempotency.Result[receipt], 1)
		go func() { other <- once.DoAll(t.Context(), orders(50)) }()
		done, _, failed := tally(once.DoAll(t.Context(), orders(50)))
		alsoDone, _, alsoFailed := tally(<-other)
		if done+alsoDone != 50 || failed+alsoFailed != 0 {
			t.Errorf("%d and %d done, %d and %d failed", done, alsoDone, failed, alsoFailed)
		}
		wantEffects(t, db, 50)
	})

	t.Run("no more are worked on at once than was said", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		var mu sync.Mutex
		now, most := 0, 0
		work := func(more int) {
			mu.Lock()
			defer mu.Unlock()
			now += more
			most = max(most, now)
		}
		once.Concurrency = 3
		once.Work = func(ctx context.Context, _ *pgx.Batch, _ order) (receipt, error) {
			work(+1)
			defer work(-1)
			var one int
			return receipt{}, db.QueryRow(ctx, `select 1`).Scan(&one) // long enough for others to begin
		}
		if done, _, _ := tally(once.DoAll(t.Context(), orders(60))); done != 60 || most > 3 || most < 2 {
			t.Errorf("%d done, at most %d at once", done, most)
		}
	})

	t.Run("what a call left undone is done by the next", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		var calls atomic.Int64
		once := ordering(db, &calls)
		stopped, cancel := context.WithCancel(t.Context())
		work := once.Work
		once.Concurrency = 2
		once.Work = func(ctx context.Context, b *pgx.Batch, in order) (receipt, error) {
			switch {
			case in.ID == "o-10":
				cancel()
			case in.Amount > 10:
				<-stopped.Done() // it overtakes nobody who is about to cancel
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
		if done < 10 || done > 13 || done+failed != 30 {
			t.Errorf("%d done, %d failed", done, failed)
		}
		wantEffects(t, db, done)
		if rest, known, failed := tally(once.DoAll(t.Context(), orders(30))); rest != 30-done || known != done || failed != 0 {
			t.Errorf("then %d done, %d known, %d failed", rest, known, failed)
		}
		wantEffects(t, db, 30)
	})

	t.Run("a commit that nobody heard of is found done", func(t *testing.T) {
		t.Parallel()
		url := pgtest.URL(t)
		proxy := cutproxy.Start(t, url)
		once := ordering(open(t, proxy.URL(), postgres.Options{}), new(atomic.Int64))
		proxy.Arm(cutproxy.After, 2)
		if done, known, failed := tally(once.DoAll(t.Context(), orders(10))); done != 9 || known != 1 || failed != 0 || proxy.Cuts() != 1 {
			t.Errorf("%d done, %d known, %d failed after %d cuts", done, known, failed, proxy.Cuts())
		}
		wantEffects(t, open(t, url, postgres.Options{}), 10)
	})

	t.Run("without a store nothing is begun", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var calls atomic.Int64
		for _, r := range ordering(pgtest.Reused(t), &calls).DoAll(ctx, orders(3)) {
			if !errors.Is(r.Err, idempotency.ErrUnavailable) || r.Key == "" {
				t.Errorf("%+v", r)
			}
		}
		if calls.Load() != 0 {
			t.Errorf("%d calls", calls.Load())
		}
	})
}
