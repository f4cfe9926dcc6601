package idempotency_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
)

func TestNaturalKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 255-len(":charge:v1"))
	for _, test := range []struct {
		name string
		key  idempotency.NaturalKey
		want string
	}{
		{"a key is readable", idempotency.NaturalKey{[]string{"order-17"}, "charge", 1}, "order-17:charge:v1"},
		{"another version is another key", idempotency.NaturalKey{[]string{"order-17"}, "charge", 12}, "order-17:charge:v12"},
		{"a key may have several parts", idempotency.NaturalKey{[]string{"order-17", "line-2"}, "charge", 1}, "order-17:line-2:charge:v1"},
		{"case matters", idempotency.NaturalKey{[]string{"Order-17"}, "charge", 1}, "Order-17:charge:v1"},
		{"a colon in a part is not one between parts", idempotency.NaturalKey{[]string{"order-17:line-2"}, "charge", 1}, "order-17%3Aline-2:charge:v1"},
		{"a percent sign in a part is encoded", idempotency.NaturalKey{[]string{"a%3Ab"}, "charge", 1}, "a%253Ab:charge:v1"},
		{"characters that no key may hold are encoded", idempotency.NaturalKey{[]string{"ключ 🔑\x00\"\\\xff"}, "POST /v1/charges", 1}, "%D0%BA%D0%BB%D1%8E%D1%87%20%F0%9F%94%91%00%22%5C%FF:POST%20%2Fv1%2Fcharges:v1"},
		{"255 characters are written out", idempotency.NaturalKey{[]string{long}, "charge", 1}, long + ":charge:v1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := test.key.String()
			if got != test.want {
				t.Errorf("it is %s, want %s", got, test.want)
			}
			if parsed, err := idempotency.ParseNaturalKey(got); !cmp.Equal(parsed, test.key) || err != nil {
				t.Errorf("it is read as %+v, %v, want %+v", parsed, err, test.key)
			}
		})
	}

	t.Run("a key of more than 255 characters is a hash", func(t *testing.T) {
		t.Parallel()
		seen := map[string]bool{}
		for _, key := range []idempotency.NaturalKey{
			{[]string{long + "x"}, "charge", 1},
			{[]string{long + "y"}, "charge", 1},
			{[]string{long + "x"}, "refund", 1},
			{[]string{long + "x"}, "charge", 2},
			{[]string{long, "x"}, "charge", 1},
		} {
			got := key.String()
			if parsed, err := idempotency.ParseKey([]string{got}); parsed != got || err != nil || len(got) != 71 || seen[got] {
				t.Errorf("%+v is %s, %v", key, got, err)
			}
			if _, err := idempotency.ParseNaturalKey(got); !errors.Is(err, idempotency.ErrInvalid) {
				t.Errorf("%s is read, %v", got, err)
			}
			seen[got] = true
		}
	})

	for _, test := range []struct {
		name string
		key  idempotency.NaturalKey
	}{
		{"a key without parts is refused", idempotency.NaturalKey{nil, "charge", 1}},
		{"an empty part is refused", idempotency.NaturalKey{[]string{"order-17", ""}, "charge", 1}},
		{"a key without operation is refused", idempotency.NaturalKey{[]string{"order-17"}, "", 1}},
		{"version 0 is refused", idempotency.NaturalKey{[]string{"order-17"}, "charge", 0}},
	} {
		if got, err := idempotency.ParseNaturalKey(test.key.String()); !errors.Is(err, idempotency.ErrInvalid) {
			t.Errorf("%s: %+v, %v", test.name, got, err)
		}
	}
}

func TestParseNaturalKey_refusesOtherSpellings(t *testing.T) {
	t.Parallel()
	for _, key := range []string{
		"", ":", "::", "a", "a:b", "a:b:c", "a:b:1", "a:b:v", "a:b:v0", "a:b:v01", "a:b:v+1", "a:b:v-1", "a:b:vv1", ":b:v1", "a::v1", "a::b:v1",
		"a%:b:v1", "a%4:b:v1", "a%zz:b:v1", "a%3a:b:v1", "%61:b:v1", "a b:c:v1", "a:b:v99999999999999999999", "content.v2:00", "sha256:00",
	} {
		if got, err := idempotency.ParseNaturalKey(key); !errors.Is(err, idempotency.ErrInvalid) {
			t.Errorf("%q is read as %+v, %v", key, got, err)
		}
	}
}

// FuzzNaturalKey: whatever the parts are, they make a valid key that is read back
// or is a hash, and other parts make another key.
func FuzzNaturalKey(f *testing.F) {
	f.Add("order-17", "charge", 1, "order", "17:charge")
	f.Add("ключ 🔑\x00\"\\\xff", "POST /v1/charges", 1, "order-17", "line-2")
	f.Add("a:b", "c", 1, "a", "b:c")
	f.Add("%3A", "c", 2, ":", "c")
	f.Add("", "", 0, "", "")
	f.Add("\xff\x00", "🔑", 7, strings.Repeat("x", 300), "y")
	f.Fuzz(func(t *testing.T, part, operation string, version int, first, second string) {
		one := idempotency.NaturalKey{Parts: []string{part}, Operation: operation, Version: version}
		two := idempotency.NaturalKey{Parts: []string{first, second}, Operation: operation, Version: version}
		if one.String() == two.String() {
			t.Errorf("%+v and %+v are both %s", one, two, one)
		}
		for _, k := range []idempotency.NaturalKey{one, two} {
			if slices.Contains(k.Parts, "") || operation == "" || version < 1 {
				continue
			}
			key := k.String()
			if parsed, err := idempotency.ParseKey([]string{key}); parsed != key || err != nil {
				t.Errorf("%+v is %q, %v", k, key, err)
			}
			parsed, err := idempotency.ParseNaturalKey(key)
			if err != nil && !strings.HasPrefix(key, "sha256:") || err == nil && !cmp.Equal(parsed, k) {
				t.Errorf("%q is read as %+v, %v, want %+v", key, parsed, err, k)
			}
		}
	})
}

func TestWindow(t *testing.T) {
	t.Parallel()
	berlin := time.FixedZone("CET", 3600)
	for _, test := range []struct {
		name   string
		at     time.Time
		length time.Duration
		want   string
	}{
		{"an hour begins on the hour", time.Date(2026, 1, 31, 10, 59, 59, 999, time.UTC), time.Hour, "20260131T100000Z-1h0m0s"},
		{"the hour itself belongs to the next", time.Date(2026, 1, 31, 11, 0, 0, 0, time.UTC), time.Hour, "20260131T110000Z-1h0m0s"},
		{"a day begins at midnight UTC, wherever one is", time.Date(2026, 2, 1, 0, 30, 0, 0, berlin), 24 * time.Hour, "20260131T000000Z-24h0m0s"},
		{"another length is another window", time.Date(2026, 1, 31, 10, 0, 0, 0, time.UTC), time.Minute, "20260131T100000Z-1m0s"},
		{"a second is the shortest", time.Date(2026, 1, 31, 10, 0, 0, 5e8, time.UTC), time.Millisecond, "20260131T100000Z-1s"},
		{"parts of a second do not count", time.Date(2026, 1, 31, 10, 0, 3, 0, time.UTC), 2900 * time.Millisecond, "20260131T100002Z-2s"},
	} {
		if got := idempotency.Window(test.at, test.length); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func contentKey(t *testing.T, source, payload string) string {
	t.Helper()
	key, _, err := idempotency.Content(source, []byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := idempotency.ParseKey([]string{key}); parsed != key || err != nil {
		t.Errorf("%s is no key: %v", key, err)
	}
	return key
}

func TestContent(t *testing.T) {
	t.Parallel()
	const order = `{"order_id":"o-1","amount":100,"note":"A"}`

	t.Run("the order of members, white space and spelling do not matter", func(t *testing.T) {
		t.Parallel()
		if contentKey(t, "shop", order) != contentKey(t, "shop", "{ \"note\":\"\\u0041\",\n \"amount\":100, \"order_id\":\"o-1\"}") {
			t.Error("the keys differ")
		}
	})

	for _, test := range []struct{ name, source, a, b string }{
		{"another source is another message", "", order, order},
		{"the last digit of a fraction counts", "shop", `{"amount":0.1}`, `{"amount":0.10000000000000000001}`},
		{"the exponent of a great number counts", "shop", `{"amount":1e400}`, `{"amount":1e500}`},
		{"a number is its text", "shop", `{"amount":1}`, `{"amount":1.0}`},
		{"another value is", "shop", order, `{"order_id":"o-1","amount":101,"note":"A"}`},
		{"a time of sending makes each sending new", "shop", `{"order_id":"o-1","sent_at":1}`, `{"order_id":"o-1","sent_at":2}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if contentKey(t, "shop", test.a) == contentKey(t, test.source, test.b) {
				t.Error("the keys are equal")
			}
		})
	}

	t.Run("the form never changes, since it is stored", func(t *testing.T) {
		t.Parallel()
		// SHA-256 over "content.v2", "shop" and the canonical text, each after its length in 8 bytes.
		const want = "content.v2:40233e53efeb256ddb4f9f52d854052708beea6773b72fdc26c86cd0e19574e8"
		if got := contentKey(t, "shop", order); got != want {
			t.Errorf("it is %s, was %s", got, want)
		}
	})
}
