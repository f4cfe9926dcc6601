package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
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

// orders is a work with one effect, and counts how often it is called.
type orders struct{ calls atomic.Int64 }

func (w *orders) do(_ context.Context, b *pgx.Batch, o order) (receipt, error) {
	b.Queue(insertEffect)
	return receipt{Number: w.calls.Add(1), Paid: o.Amount, Nonce: 1}, nil
}

func byContent(o order) (idempotency.Key, idempotency.Request, error) {
	return idempotency.ByContent("acme", "order.v1", o)
}

func byID(o order) (idempotency.Key, idempotency.Request, error) {
	key, request, err := byContent(o)
	natural := idempotency.NaturalKey{Parts: []string{o.ID}, Operation: "order", Version: 1}
	key.Value = natural.String()
	return key, request, errors.Join(err, natural.Validate())
}

type (
	identify[In any] = func(In) (idempotency.Key, idempotency.Request, error)
	work[In, T any]  = func(context.Context, *pgx.Batch, In) (T, error)
)

// once does a work once for an input.
func once[In, T any](ctx context.Context, db idempotency.Store, by identify[In], do work[In, T], in In) (r idempotency.Result[T]) {
	key, request, err := by(in)
	if err != nil {
		return idempotency.Result[T]{Err: err}
	}
	r.Value, r.Duplicate, r.Err = idempotency.Once(ctx, idempotency.Receiver{DB: db}, key, request, func(ctx context.Context, b *pgx.Batch) (T, error) {
		return do(ctx, b, in)
	})
	return r
}

func doAll[In, T any](ctx context.Context, db idempotency.Store, ins []In, by identify[In], do work[In, T]) []idempotency.Result[T] {
	return idempotency.DoAll(ctx, idempotency.Receiver{DB: db}, ins, by, do)
}

func TestOnce(t *testing.T) {
	t.Parallel()

	t.Run("the work is done once, and its result is returned each time", func(t *testing.T) {
		t.Parallel()
		db, work := testdb.Reused(t), &orders{}
		for call := range 4 {
			got := once(t.Context(), db, byContent, work.do, order{ID: "o-1", Amount: math.MaxInt64})
			want := idempotency.Result[receipt]{Value: receipt{Number: 1, Paid: math.MaxInt64}, Duplicate: call > 0}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("call %d (-want +got):\n%s", call+1, diff)
			}
		}
		if calls := work.calls.Load(); calls != 1 {
			t.Errorf("%d calls", calls)
		}
		wantEffects(t, db, 1)
	})

	scoped := func(change func(key *idempotency.Key, o order)) identify[order] {
		return func(o order) (idempotency.Key, idempotency.Request, error) {
			key, request, err := byID(order{ID: o.ID})
			change(&key, o)
			return key, request, err
		}
	}
	for _, test := range []struct {
		name       string
		identify   identify[order]
		inputs     []order
		duplicates int
	}{
		{"by content each input is work of its own", byContent, []order{{ID: "o-1", Amount: 1}, {ID: "o-1", Amount: 2}, {ID: "o-2", Amount: 1}}, 0},
		{"another operation has keys of its own", scoped(func(key *idempotency.Key, o order) { key.Operation = o.SentAt }), []order{{SentAt: "v1", ID: "o-1"}, {SentAt: "v2", ID: "o-1"}}, 0},
		{"another scope has keys of its own", scoped(func(key *idempotency.Key, o order) { key.Scope = o.SentAt }), []order{{SentAt: "m1", ID: "o-1"}, {SentAt: "m2", ID: "o-1"}}, 0},
		{"what is not part of the request may differ", scoped(func(*idempotency.Key, order) {}), []order{{ID: "o-1", SentAt: "10:00"}, {ID: "o-1", SentAt: "10:01"}}, 1},
		{"work without a request is the same work", func(o order) (idempotency.Key, idempotency.Request, error) {
			return idempotency.Key{Value: o.ID}, idempotency.Request{}, nil
		}, []order{{ID: "o-1"}, {ID: "o-1", Amount: 2}}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db, duplicates := testdb.Reused(t), 0
			for _, in := range test.inputs {
				got := once(t.Context(), db, test.identify, new(orders).do, in)
				if got.Err != nil {
					t.Fatal(got.Err)
				}
				if got.Duplicate {
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
		once(t.Context(), db, byID, new(orders).do, order{ID: "o-1", Amount: 1})
		got := once(t.Context(), db, byID, new(orders).do, order{ID: "o-1", Amount: 2})
		reused, ok := errors.AsType[*idempotency.ReusedError](got.Err)
		if !ok || !cmp.Equal(reused.Pointers, []string{"/amount"}) || got.Duplicate || got.Value != (receipt{}) {
			t.Errorf("%+v", got)
		}
		wantEffects(t, db, 1)
	})

	t.Run("a result that another version wrote is an error, not an empty one", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		once(t.Context(), db, byID, new(orders).do, order{ID: "o-1"})
		got := once(t.Context(), db, byID, func(context.Context, *pgx.Batch, order) (string, error) { return "", nil }, order{ID: "o-1"})
		if got.Err == nil || !strings.HasPrefix(got.Err.Error(), "read the stored result of order.v1: ") || !got.Duplicate {
			t.Errorf("%+v", got)
		}
	})
}

func TestOnce_refusesWhatItCannotKeep(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	_, _, err := idempotency.ByContent("acme", "number.v1", math.NaN())
	for want, err := range map[string]error{
		"encode an input of number.v1: not one JSON value with one meaning: json: unsupported value: NaN": err,
		"encode a result of order.v1: json: unsupported value: +Inf": once(t.Context(), db, byContent,
			func(context.Context, *pgx.Batch, order) (float64, error) { return math.Inf(1), nil }, order{}).Err,
		"a key of order.v1: the idempotency key is not a key": once(t.Context(), db, func(o order) (idempotency.Key, idempotency.Request, error) {
			key, request, err := byContent(o)
			request.Also = []string{"k", strings.Repeat("k", 256)}
			return key, request, err
		}, new(orders).do, order{}).Err,
	} {
		if err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
	wantEffects(t, db, 0)
}

func TestOnce_refusesAWorkThatReadsFromItsOwnBatch(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for name, queue := range map[string]func(b *pgx.Batch, out *receipt){
		"insert returning": func(b *pgx.Batch, out *receipt) {
			b.Queue(insertEffect + ` returning 17`).QueryRow(func(row pgx.Row) error { return row.Scan(&out.Number) })
		},
		"the count of rows": func(b *pgx.Batch, out *receipt) {
			b.Queue(insertEffect).Exec(func(tag pgconn.CommandTag) error { out.Number = tag.RowsAffected(); return nil })
		},
	} {
		got := once(t.Context(), db, byContent, func(_ context.Context, b *pgx.Batch, _ order) (out receipt, err error) {
			queue(b, &out)
			return out, nil
		}, order{ID: "o-1"})
		if !errors.Is(got.Err, idempotency.ErrReadsBatch) {
			t.Errorf("%s: the result is %+v, want ErrReadsBatch", name, got)
		}
	}
	if got := once(t.Context(), db, byContent, new(orders).do, order{ID: "o-1"}); got.Duplicate || got.Err != nil {
		t.Errorf("the key is not free afterwards: %+v", got)
	}
	wantEffects(t, db, 1)
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

func manyOrders(n int) []order {
	all := make([]order, n)
	for i := range all {
		all[i] = order{ID: fmt.Sprint("o-", i), Amount: int64(i)}
	}
	return all
}

// wantTally counts the results of a call.
func wantTally[T any](t *testing.T, results []idempotency.Result[T], done, known, failed int) {
	t.Helper()
	got := [3]int{}
	for _, r := range results {
		switch {
		case r.Err != nil:
			got[2]++
		case r.Duplicate:
			got[1]++
		default:
			got[0]++
		}
	}
	if got != [3]int{done, known, failed} {
		t.Errorf("%v are done, known and failed, want %d, %d and %d", got, done, known, failed)
	}
}

func TestDoAll(t *testing.T) {
	t.Parallel()

	t.Run("known inputs are skipped, and the others are done, in order", func(t *testing.T) {
		t.Parallel()
		db, work, all := testdb.Reused(t), &orders{}, manyOrders(40)
		var want []idempotency.Result[receipt]
		for i, in := range all {
			if i%4 == 0 {
				once(t.Context(), db, byID, work.do, in)
			}
			want = append(want, idempotency.Result[receipt]{Value: receipt{Paid: in.Amount}, Duplicate: i%4 == 0})
		}
		got := doAll(t.Context(), db, all, byID, work.do)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(receipt{}, "Number")); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		wantTally(t, doAll(t.Context(), db, append(all, all...), byID, work.do), 0, 80, 0)
		if calls := work.calls.Load(); calls != 40 {
			t.Errorf("%d calls", calls)
		}
		wantEffects(t, db, 40)
	})

	t.Run("one bad input fails alone", func(t *testing.T) {
		t.Parallel()
		db, work := testdb.Reused(t), &orders{}
		once(t.Context(), db, byID, work.do, order{ID: "o-5", Amount: 7})
		in := manyOrders(8)
		in[6].ID = ""
		got := doAll(t.Context(), db, in, byID, func(ctx context.Context, b *pgx.Batch, in order) (receipt, error) {
			out, err := work.do(ctx, b, in)
			switch in.ID {
			case "o-1":
				runtime.Goexit()
			case "o-2":
				return out, errors.New("planted")
			case "o-3":
				panic("planted too")
			case "o-4":
				b.Queue(`insert into merchants (merchant_id) values ('acme'), ('acme')`)
			}
			return out, err
		})
		for i, says := range map[int]string{
			1: "the work did not return", 2: "planted", 3: "panic: planted too", 4: "merchants_pkey",
			5: idempotency.ErrReused.Error(), 6: "no key can be made of this",
		} {
			if err := got[i].Err; err == nil || !strings.Contains(err.Error(), says) || got[i].Duplicate || got[i].Value != (receipt{}) {
				t.Errorf("result %d is %+v, want %s", i, got[i], says)
			}
		}
		wantTally(t, got, 2, 0, 6)
		wantEffects(t, db, 3)
	})

	t.Run("a panic in identifying an input, or in reading a result, fails one input", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		good, bad := &order{ID: "o-1", SentAt: "noon"}, &order{ID: "o-2", SentAt: "bad"}
		for range 2 { // the second time they are known
			got := doAll(t.Context(), db, []*order{good, nil, bad}, func(o *order) (idempotency.Key, idempotency.Request, error) { return byID(*o) },
				func(_ context.Context, b *pgx.Batch, o *order) (moody, error) {
					b.Queue(insertEffect)
					return moody(o.SentAt), nil
				})
			if got[0].Err != nil || got[0].Value != "noon" {
				t.Errorf("the good one: %+v", got[0])
			}
			for i, says := range map[int]string{1: "nil pointer", 2: "planted"} {
				if err := got[i].Err; err == nil || !strings.HasPrefix(err.Error(), "panic: ") || !strings.Contains(err.Error(), says) {
					t.Errorf("result %d is %+v", i, got[i])
				}
			}
		}
		wantEffects(t, db, 2)
	})

	t.Run("inputs that a call left undone are done by the next", func(t *testing.T) {
		t.Parallel()
		db, work := testdb.Reused(t), &orders{}
		stopped, cancel := context.WithCancel(t.Context())
		got := doAll(stopped, db, manyOrders(30), byID, func(ctx context.Context, b *pgx.Batch, in order) (receipt, error) {
			switch {
			case in.ID == "o-10":
				cancel()
			case in.Amount > 10:
				<-stopped.Done() // it does not overtake the input that cancels
			}
			return work.do(ctx, b, in)
		})
		done := 0
		for _, r := range got {
			if r.Err == nil {
				done++
			} else if !errors.Is(r.Err, idempotency.ErrUnavailable) || !errors.Is(r.Err, context.Canceled) {
				t.Errorf("%+v", r)
			}
		}
		if done < 10 || done > 19 {
			t.Errorf("%d done", done)
		}
		wantEffects(t, db, done)
		wantTally(t, doAll(t.Context(), db, manyOrders(30), byID, work.do), 30-done, done, 0)
		wantEffects(t, db, 30)
	})
}

// report is meant once an hour.
type report struct {
	Shop string
	At   time.Time
}

// hourly identifies a report by its hour, also beyond the full hour.
func hourly(r report) (idempotency.Key, idempotency.Request, error) {
	key, request, err := idempotency.ByContent("acme", "report.v1", r.Shop)
	this, previous := idempotency.Window(r.At, time.Hour)
	natural := func(window string) string {
		return idempotency.NaturalKey{Parts: []string{r.Shop, window}, Operation: "report", Version: 1}.String()
	}
	key.Value, request.Also = natural(this), []string{natural(previous)}
	return key, request, err
}

func writeReport(_ context.Context, b *pgx.Batch, r report) (string, error) {
	b.Queue(insertEffect)
	return r.At.String(), nil
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
			for i, r := range sent {
				got := once(t.Context(), db, hourly, writeReport, r)
				if want := (idempotency.Result[string]{Value: sent[0].At.String(), Duplicate: i > 0}); got != want {
					t.Errorf("at %v: %+v, want %+v", r.At, got, want)
				}
			}
			wantEffects(t, db, 1)
		}
	})

	t.Run("concurrent duplicates in both windows are done once", func(t *testing.T) {
		t.Parallel()
		db, in := testdb.Reused(t), make([]report, 20)
		for i := range in {
			in[i] = reportAt(10+i%2, 30, i)
		}
		wantTally(t, doAll(t.Context(), db, in, hourly, writeReport), 1, 19, 0)
		wantTally(t, doAll(t.Context(), db, in, hourly, writeReport), 0, 20, 0)
		wantEffects(t, db, 1)
	})

	t.Run("keys that cross each other do not deadlock", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		crossed := func(r report) (idempotency.Key, idempotency.Request, error) {
			return idempotency.Key{Value: r.Shop}, idempotency.Request{Also: []string{map[string]string{"a": "b", "b": "a"}[r.Shop]}}, nil
		}
		var work errgroup.Group
		for i := range 16 {
			work.Go(func() error {
				return once(t.Context(), db, crossed, writeReport, report{Shop: string(rune('a' + i%2))}).Err
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

type (
	hidden   struct{ amount int }
	embedded struct{ hidden }
	secret   struct {
		Amount int `json:"-"`
	}
	nothing  struct{}
	optional struct {
		Name string `json:"name,omitempty"`
	}
	shouted struct{ text string }
)

func (s shouted) MarshalJSON() ([]byte, error) { return []byte(`"` + s.text + `!"`), nil }

func TestByContent_refusesInputsThatWouldBeWrittenAlike(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		in   any
		want error
	}{
		"text that is not UTF-8":                     {order{ID: "\xff"}, idempotency.ErrNotJSON},
		"bytes within a text that are not UTF-8":     {order{ID: "a\x80z"}, idempotency.ErrNotJSON},
		"bytes deep inside that are not UTF-8":       {[]any{map[string]any{"a": []string{"\xed\xa0\x80"}}}, idempotency.ErrNotJSON},
		"a name that is not UTF-8":                   {map[string]int{"\xfe": 1}, idempotency.ErrNotJSON},
		"JSON that is not UTF-8":                     {json.RawMessage("\"\xff\""), idempotency.ErrNotJSON},
		"what a method writes that is not UTF-8":     {shouted{"\xff"}, idempotency.ErrNotJSON},
		"half of a surrogate pair":                   {json.RawMessage(`"\ud800"`), idempotency.ErrNotJSON},
		"a repeated member":                          {json.RawMessage(`{"a":1,"a":2}`), idempotency.ErrNotJSON},
		"a struct that exports nothing":              {hidden{1}, idempotency.ErrUnstable},
		"a pointer to a struct that exports nothing": {&hidden{1}, idempotency.ErrUnstable},
		"an embedded struct that exports nothing":    {embedded{hidden{1}}, idempotency.ErrUnstable},
		"a struct whose only field is hidden":        {secret{1}, idempotency.ErrUnstable},
	} {
		if key, _, err := idempotency.ByContent("acme", "any.v1", test.in); !errors.Is(err, test.want) {
			t.Errorf("%s: %+v, %v, want %v", name, key, err, test.want)
		}
	}
}

func TestByContent_tellsInputsApart(t *testing.T) {
	t.Parallel()
	seen := map[idempotency.Key]any{}
	for _, in := range []any{
		nil,
		nothing{},
		optional{"a"},
		"", "\uFFFD", `\ufffd`, "ÿ", []byte("\xff"), []byte("\xfe"),
		[2]byte{1, 2},
		shouted{"a"},
		json.RawMessage(`"b"`), json.Number("1e400"), math.MaxInt64,
		[]any{},
		map[string]any{"a": nil},
	} {
		key, request, err := idempotency.ByContent("acme", "any.v1", in)
		if same, known := seen[key]; known || err != nil || len(request.Fingerprint) == 0 {
			t.Errorf("%#v has the key of %#v: %v", in, same, err)
		}
		seen[key] = in
	}
}

// Keys and fingerprints are stored: what encodes an input must not change.
func TestByContent_writesInputsAsEncodingJSONDoes(t *testing.T) {
	t.Parallel()
	for _, in := range []any{
		nil, 1.50, "<a&b>\u2028",
		[]byte{1, 2},
		[]byte(nil), []string(nil), map[string]int(nil),
		[2]byte{1, 2},
		map[int]string{2: "b", 1: "a"},
		optional{},
		order{ID: "o-1"},
		struct {
			Embedded order
			order
			N int `json:",string"`
		}{N: 7},
	} {
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		want, _, err := idempotency.Content("any.v1", text)
		if err != nil {
			t.Fatal(err)
		}
		if key, _, err := idempotency.ByContent("acme", "any.v1", in); key.Value != want || err != nil {
			t.Errorf("%#v is not written as %s: %v", in, text, err)
		}
	}
}
