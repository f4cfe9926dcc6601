package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

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

// anything is a work without effect on any input.
func anything(t *testing.T) idempotency.Once[any, string] {
	t.Helper()
	return idempotency.Once[any, string]{
		Receiver: idempotency.Receiver{DB: pgtest.Reused(t)}, Scope: "acme", Operation: "any.v1",
		Work: func(context.Context, *pgx.Batch, any) (string, error) { return "done", nil },
	}
}

func TestInputsThatCouldBeTakenForOneAnotherAreRefused(t *testing.T) {
	t.Parallel()
	once := anything(t)
	for name, test := range map[string]struct {
		in   any
		want error
	}{
		"text that is not UTF-8":              {order{ID: "\xff"}, idempotency.ErrNotJSON},
		"also within text":                    {order{ID: "a\x80z"}, idempotency.ErrNotJSON},
		"and deep inside":                     {[]any{map[string]any{"a": []string{"\xed\xa0\x80"}}}, idempotency.ErrNotJSON},
		"a name that is not UTF-8":            {map[string]int{"\xfe": 1}, idempotency.ErrNotJSON},
		"JSON that is not UTF-8":              {json.RawMessage("\"\xff\""), idempotency.ErrNotJSON},
		"what a method writes so":             {shouted{"\xff"}, idempotency.ErrNotJSON},
		"half of a surrogate pair":            {json.RawMessage(`"\ud800"`), idempotency.ErrNotJSON},
		"a repeated member":                   {json.RawMessage(`{"a":1,"a":2}`), idempotency.ErrNotJSON},
		"a struct that exports nothing":       {hidden{1}, idempotency.ErrUnstable},
		"also behind a pointer":               {&hidden{1}, idempotency.ErrUnstable},
		"and embedded":                        {embedded{hidden{1}}, idempotency.ErrUnstable},
		"a struct whose only field is hidden": {secret{1}, idempotency.ErrUnstable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := once.Do(t.Context(), test.in); !errors.Is(err, test.want) {
				t.Errorf("%+v, %v, want %v", got, err, test.want)
			}
		})
	}
}

func TestInputsAreToldApart(t *testing.T) {
	t.Parallel()
	once := anything(t)
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
		if got, err := once.Do(t.Context(), in); err != nil || got.Duplicate {
			t.Errorf("%#v: %+v, %v", in, got, err)
		}
		if got, err := once.Do(t.Context(), in); err != nil || !got.Duplicate {
			t.Errorf("%#v again: %+v, %v", in, got, err)
		}
	}
}

// Keys and fingerprints are stored: what encodes an input must not change.
func TestAnInputIsWrittenAsEncodingJSONDoes(t *testing.T) {
	t.Parallel()
	once := anything(t)
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
		want, err := idempotency.ContentKey("any.v1", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := do(t, once, in); got.Key != want {
			t.Errorf("%#v is not written as %s", in, text)
		}
	}
}
