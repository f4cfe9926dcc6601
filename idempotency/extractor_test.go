package idempotency_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/payonce/payonce/idempotency"
)

func TestFirstOf(t *testing.T) {
	t.Parallel()
	extract := idempotency.FirstOf(
		idempotency.FromHeader("Idempotency-Key"),
		idempotency.FromMembers("charge", 1, "order_id", "line"),
		idempotency.FromContent("shop"),
	)
	header := func(value string) map[string]string { return map[string]string{"Idempotency-Key": value} }
	content := contentKey(t, "shop", `{"order_id":"o-1"}`)
	for _, test := range []struct {
		name    string
		header  map[string]string
		payload string
		want    string
		err     error
	}{
		{"the sender's key is the best", header("abc"), `{"order_id":"o-1","line":2}`, "abc", nil},
		{"in any of its forms", header(` "abc" `), "", "abc", nil},
		{"one that is no key is not replaced by another", header("a b"), `{"order_id":"o-1","line":2}`, "", idempotency.ErrInvalid},
		{"not even an empty one", header(""), `{"order_id":"o-1","line":2}`, "", idempotency.ErrInvalid},
		{"without it the message's own names are next", nil, `{"order_id":"o-1","line":2,"note":"x"}`, "o-1:2:charge:v1", nil},
		{"their order is ours", nil, `{"line":2,"order_id":"o-1"}`, "o-1:2:charge:v1", nil},
		{"a number may be written as text", nil, `{"order_id":"o-1","line":"2"}`, "o-1:2:charge:v1", nil},
		{"or in another way", nil, `{"order_id":"o-1","line":2.0}`, "o-1:2:charge:v1", nil},
		{"also a great one", nil, `{"order_id":"o-1","line":9007199254740993}`, "o-1:9007199254740993:charge:v1", nil},
		{"a fraction names nothing", nil, `{"order_id":"o-1","line":2.5}`, "", idempotency.ErrUnstable},
		{"nor does more than anybody counts", nil, `{"order_id":"o-1","line":1e99}`, "", idempotency.ErrUnstable},
		{"nor null", nil, `{"order_id":"o-1","line":null}`, "", idempotency.ErrUnstable},
		{"nor an object", nil, `{"order_id":"o-1","line":{}}`, "", idempotency.ErrUnstable},
		{"nor nothing", nil, `{"order_id":"","line":2}`, "", idempotency.ErrUnstable},
		{"a message without names is known by what it says", nil, `{"order_id":"o-1"}`, content, nil},
		{"if it says anything", nil, `{"order_id":`, "", idempotency.ErrNotJSON},
		{"in one way", nil, `{"order_id":"o-1","line":1,"line":2}`, "", idempotency.ErrNotJSON},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got, err := extract(test.header, []byte(test.payload)); got != test.want || !errors.Is(err, test.err) {
				t.Errorf("the key is %q, %v, want %q, %v", got, err, test.want, test.err)
			}
		})
	}

	t.Run("where none applies the key is missing", func(t *testing.T) {
		t.Parallel()
		for _, extract := range []idempotency.Extractor{
			idempotency.FirstOf(),
			idempotency.FirstOf(idempotency.FromHeader("Idempotency-Key"), idempotency.FromMembers("charge", 1, "order_id")),
		} {
			if got, err := extract(map[string]string{"idempotency-key": "abc"}, []byte(`[]`)); got != "" || !errors.Is(err, idempotency.ErrMissing) {
				t.Errorf("the key is %q, %v", got, err)
			}
		}
	})

	t.Run("whoever made it, a key is checked", func(t *testing.T) {
		t.Parallel()
		for _, bad := range []string{"", "a b", strings.Repeat("k", 256), "ключ"} {
			extract := idempotency.FirstOf(func(map[string]string, []byte) (string, error) { return bad, nil })
			if got, err := extract(nil, nil); got != "" || !errors.Is(err, idempotency.ErrInvalid) {
				t.Errorf("%q is taken for %q, %v", bad, got, err)
			}
		}
	})

	t.Run("a key of no members is none", func(t *testing.T) {
		t.Parallel()
		if got, err := idempotency.FromMembers("charge", 1)(nil, []byte(`{}`)); got != "" || !errors.Is(err, idempotency.ErrUnstable) {
			t.Errorf("the key is %q, %v", got, err)
		}
	})
}
