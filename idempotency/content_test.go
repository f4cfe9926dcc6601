package idempotency_test

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
)

type (
	empty    struct{}
	optional struct {
		Name string `json:"name,omitempty"`
	}
	shouted struct{ text string }
	order   struct {
		ID     string `json:"id"`
		Amount int64  `json:"amount"`
	}
)

func (s shouted) MarshalJSON() ([]byte, error) { return []byte(`"` + s.text + `!"`), nil }

func TestByContent_refusesInputsThatWouldBeWrittenAlike(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]any{
		"text that is not UTF-8":                 order{ID: "a\x80z"},
		"bytes deep inside that are not UTF-8":   []any{map[string]any{"a": []string{"\xed\xa0\x80"}}},
		"a name that is not UTF-8":               map[string]int{"\xfe": 1},
		"what a method writes that is not UTF-8": shouted{"\xff"},
		"a repeated member":                      json.RawMessage(`{"a":1,"a":2}`),
	} {
		if key, _, err := idempotency.ByContent("acme", "any.v1", in); !errors.Is(err, idempotency.ErrNotJSON) {
			t.Errorf("%s: %+v, %v", name, key, err)
		}
	}
}

func TestByContent_tellsInputsApart(t *testing.T) {
	t.Parallel()
	seen := map[idempotency.Key]any{}
	for _, in := range []any{
		nil,
		empty{},
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
		testdb.Must(t, err)
		want, _, err := idempotency.Content("any.v1", text)
		testdb.Must(t, err)
		if key, _, err := idempotency.ByContent("acme", "any.v1", in); key.Value != want || err != nil {
			t.Errorf("%#v is not written as %s: %v", in, text, err)
		}
	}
}
