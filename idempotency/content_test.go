package idempotency_test

import (
	"errors"
	"testing"

	"github.com/payonce/payonce/idempotency"
)

func contentKey(t *testing.T, source, payload string) string {
	t.Helper()
	key, err := idempotency.ContentKey(source, []byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := idempotency.ParseKey([]string{key}); parsed != key || err != nil {
		t.Errorf("%s is no key: %v", key, err)
	}
	return key
}

func TestContentKey(t *testing.T) {
	t.Parallel()
	const order = `{"order_id":"o-1","amount":100,"note":"A"}`

	for _, test := range []struct{ name, payload string }{
		{"the order of members does not matter", `{"note":"A","amount":100,"order_id":"o-1"}`},
		{"nor white space", "{ \"order_id\" : \"o-1\",\n\"amount\" : 100, \"note\" : \"A\" }"},
		{"nor spelling", `{"order_id":"o-1","amount":1e2,"note":"\u0041"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if contentKey(t, "shop", order) != contentKey(t, "shop", test.payload) {
				t.Error("the keys differ")
			}
		})
	}

	for _, test := range []struct{ name, source, a, b string }{
		{"another source is another message", "", order, order},
		{"another value is", "shop", order, `{"order_id":"o-1","amount":101,"note":"A"}`},
		{"a last digit beyond 2^53 counts", "shop", `{"n":9007199254740993}`, `{"n":9007199254740992}`},
		{"the order of elements counts", "shop", `[1,2]`, `[2,1]`},
		{"a time of sending makes each sending new", "shop", `{"order_id":"o-1","sent_at":1}`, `{"order_id":"o-1","sent_at":2}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if contentKey(t, "shop", test.a) == contentKey(t, test.source, test.b) {
				t.Error("the keys are equal")
			}
		})
	}

	t.Run("the trap: two orders of the same on purpose are one", func(t *testing.T) {
		t.Parallel()
		seen := map[string]bool{}
		for range 2 {
			seen[contentKey(t, "shop", `{"sku":"mug"}`)] = true
		}
		if len(seen) != 1 {
			t.Error("this would be a key that a repetition does not find")
		}
	})

	t.Run("what is no JSON has none", func(t *testing.T) {
		t.Parallel()
		for _, payload := range []string{"", "{", `{"a":1,"a":2}`} {
			if key, err := idempotency.ContentKey("shop", []byte(payload)); key != "" || !errors.Is(err, idempotency.ErrNotJSON) {
				t.Errorf("%q has the key %s, %v", payload, key, err)
			}
		}
	})

	t.Run("it is stored data: it never changes between versions of this program", func(t *testing.T) {
		t.Parallel()
		// SHA-256 over "content.v1", "shop" and the canonical text, each after its length in 8 bytes.
		const want = "content.v1:40a33599edcbe633ed3018c0ad38026c9258f5f4f0776db1016064706a66147c"
		if got := contentKey(t, "shop", order); got != want {
			t.Errorf("it is %s, was %s", got, want)
		}
	})
}
