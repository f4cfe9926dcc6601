package idempotency_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestFingerprint(t *testing.T) {
	t.Parallel()
	seen := map[string][]string{}
	for _, parts := range [][]string{
		{},
		{""},
		{"", ""},
		{"abc"},
		{"ab", "c"},
		{"a", "bc"},
		{"", "abc"},
		{"v1", ""},
		{"\x00\x00\x00\x00\x00\x00\x00\x01a"},
	} {
		split := make([][]byte, len(parts))
		for i, part := range parts {
			split[i] = []byte(part)
		}
		got := hex.EncodeToString(idempotency.Fingerprint(split...))
		if other, ok := seen[got]; ok {
			t.Errorf("%q and %q have one fingerprint", parts, other)
		}
		seen[got] = parts
	}
	stored := sha256.Sum256([]byte("\x00\x00\x00\x00\x00\x00\x00\x02v1\x00\x00\x00\x00\x00\x00\x00\x00"))
	testrun.Same(t, "the form that never changes, since it is stored", []string{"v1", ""}, seen[hex.EncodeToString(stored[:])])
}

// canonical is the canonical form of a text.
func canonical(text string) (string, error) {
	_, request, err := idempotency.Content("", json.RawMessage(text))
	return string(request.Canonical), err
}

func TestCanonical(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, want string
		texts      []string
	}{
		{"the order of members does not matter", `{"a":1,"b":{"c":2,"d":3}}`, []string{`{"b":{"d":3,"c":2},"a":1}`, `{"a":1,"b":{"c":2,"d":3}}`}},
		{"members are in the order of UTF-16", "{\"z\":1,\"\u0080\":2,\"😀\":3,\"\ufb33\":4}", []string{"{\"\ufb33\":4,\"😀\":3,\"z\":1,\"\u0080\":2}"}},
		{"white space does not matter", `{"a":[1,2]}`, []string{" {\n\t\"a\" : [ 1 , 2 ]\r\n} "}},
		{"the spelling of a character does not matter", `{"A":"A/😀<"}`, []string{`{"\u0041":"\u0041\/\ud83d\ude00\u003c"}`, `{"A":"A/😀<"}`}},
		{"control characters are escaped in one way", `"\n\b\u0000\"\\"`, []string{`"\n\b\u0000\"\\"`, `"\u000A\u0008\u0000\u0022\u005C"`}},
		{"the order of elements matters", `[2,1]`, []string{`[2,1]`}},
		{
			"a number is its text", `[1,1.0,1.00e0,-0,0.10000000000000000001,1E400,9007199254740993]`,
			[]string{`[1,1.0, 1.00e0, -0, 0.10000000000000000001, 1E400, 9007199254740993]`},
		},
		{"words and empty values stay", `[true,false,null,{},[],""]`, []string{`[ true, false, null, { }, [ ], "" ]`}},
		{"100 values within values", strings.Repeat("[", 100) + strings.Repeat("]", 100), []string{strings.Repeat("[", 100) + strings.Repeat("]", 100)}},

		{"these are refused", "", []string{
			``, `{"a":`, `{} {}`, `01`, "\"\xff\"", strings.Repeat("[", 101) + strings.Repeat("]", 101),
			`{"amount":1,"amount":100}`, `{"a":1,"\u0061":2}`, `[{"a":{"b":1,"b":1}}]`, `"\ud800"`, `"\ud800\u0041"`, `"\uDC00"`, `"\uD83D\uD83D\uDE00"`,
		}},
	} {
		for _, text := range test.texts {
			if got, err := canonical(text); got != test.want || (test.want == "") != (err != nil) {
				t.Errorf("%s: %.100s is %s, %v, want %s", test.name, text, got, err, test.want)
			}
		}
	}
}

type (
	optional struct {
		Name string `json:"name,omitempty"`
	}
	shouted struct{ text string }
)

func (s shouted) MarshalJSON() ([]byte, error) { return []byte(`"` + s.text + `!"`), nil }

func TestContent(t *testing.T) {
	t.Parallel()
	seen := map[string]any{}
	for _, in := range []any{
		nil,
		struct{}{},
		optional{"a"},
		"", "\uFFFD", `\ufffd`, "ÿ", []byte("\xff"), []byte("\xfe"),
		[2]byte{1, 2},
		shouted{"a"},
		json.RawMessage(`"b"`), json.Number("1e400"), math.MaxInt64,
		[]any{},
		map[string]any{"a": nil},
	} {
		key, request, err := idempotency.Content("shop", in)
		if parsed, invalid := idempotency.ParseKey([]string{key}); parsed != key ||
			invalid != nil || err != nil || seen[key] != nil || len(request.Fingerprint) == 0 {
			t.Errorf("%#v has the key %s of %#v: %v, %v", in, key, seen[key], err, invalid)
		}
		if seen[key] = in; in == nil {
			seen[key] = "nil"
		}
		if other, _, err := idempotency.Content("another shop", in); other == key || err != nil {
			t.Errorf("%#v of another source has the same key, %v", in, err)
		}
	}
	for _, in := range []any{[]any{map[string]any{"a": []string{"\xed\xa0\x80"}}}, map[string]int{"\xfe": 1}, shouted{"\xff"}} {
		if key, _, err := idempotency.Content("shop", in); err == nil {
			t.Errorf("%q, which is not UTF-8, would be written as other inputs are: %s", in, key)
		}
	}

	t.Run("the form never changes, since it is stored", func(t *testing.T) {
		// SHA-256 over "content.v2", "shop" and the canonical text, each after its length in 8 bytes.
		const want = "content.v2:40233e53efeb256ddb4f9f52d854052708beea6773b72fdc26c86cd0e19574e8"
		if got, _, err := idempotency.Content("shop", json.RawMessage(`{"order_id":"o-1","amount":100,"note":"\u0041"}`)); got != want || err != nil {
			t.Errorf("it is %s, %v, was %s", got, err, want)
		}
		for _, in := range []any{ // so the encoding must not change either
			nil, 1.50, "<a&b>\u2028",
			[]byte{1, 2},
			[]byte(nil), []string(nil),
			[2]byte{1, 2},
			map[int]string{2: "b", 1: "a"},
			optional{},
			struct {
				optional
				N int `json:",string"`
			}{N: 7},
		} {
			text, err := json.Marshal(in)
			testdb.Must(t, err)
			want, _, err := idempotency.Content("any.v1", json.RawMessage(text))
			testdb.Must(t, err)
			if key, _, err := idempotency.Content("any.v1", in); key != want || err != nil {
				t.Errorf("%#v is not written as %s: %v", in, text, err)
			}
		}
	})
}

// pointers are those of the error that a stored request returns to another one, and tells without them.
func pointers(t *testing.T, stored idempotency.KeyState, canonical []byte) []string {
	t.Helper()
	stored.Answer = theAnswer()
	got, err := stored.Replay(idempotency.Request{Fingerprint: []byte("b"), Canonical: canonical})
	reused, ok := errors.AsType[*idempotency.ReusedError](err)
	if !ok || err.Error() != idempotency.ErrReused.Error() || got.StatusCode != 0 || got.Header != nil || got.Body != nil {
		t.Fatalf("another request gets %+v, %v", got, err)
	}
	return reused.Pointers
}

func keptAs(canonical []byte) idempotency.KeyState {
	return idempotency.KeyState{Request: idempotency.Request{Fingerprint: []byte("a"), Canonical: canonical}}
}

func TestPointers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 2000)
	for _, test := range []struct {
		name, a, b string
		want       []string
	}{
		{"two spellings of one value have no pointer", `{"a":1,"b":[2.50],"c":"A"}`, ` {"b" : [2.50], "\u0061":1,"c":"\u0041"}`, nil},
		{"a member that differs has a pointer", `{"a":1,"b":2}`, `{"a":1,"b":3}`, []string{"/b"}},
		{"pointers are sorted", `{"z":1,"a":1,"m":{"y":1,"b":1}}`, `{"z":2,"a":2,"m":{"y":2,"b":2}}`, []string{"/a", "/m/b", "/m/y", "/z"}},
		{"a member that one text lacks", `{"a":{"b":1},"a!":1}`, `{}`, []string{"/a", "/a!"}},
		{"null is not absent", `{"a":null}`, `{}`, []string{"/a"}},
		{"nor is an empty text", `{"a":""}`, `{}`, []string{"/a"}},
		{"another type is another value", `{"a":"1"}`, `{"a":1}`, []string{"/a"}},
		{"an object is no array", `{"a":{"0":1}}`, `{"a":[1]}`, []string{"/a"}},
		{
			"elements are compared by index", `{"items":[{"sku":"mug","n":1},{"sku":"pen","n":1}]}`,
			`{"items":[{"sku":"mug","n":1},{"sku":"pen","n":2}]}`,
			[]string{"/items/1/n"},
		},
		{"an empty object is no empty array", `{"a":{}}`, `{"a":[]}`, []string{"/a"}},
		{"a number is its text", `{"a":1}`, `{"a":1.0}`, []string{"/a"}},
		{"the order of elements matters", `[1,2,3]`, `[2,1,3]`, []string{"/0", "/1"}},
		{"further elements", `{"items":[1]}`, `{"items":[1,2,3]}`, []string{"/items/1", "/items/2"}},
		{"a slash in a name is ~1 and a tilde is ~0", `{"a/b":1,"m~n":1,"~1":1}`, `{"a/b":2,"m~n":2,"~1":2}`, []string{"/a~1b", "/m~0n", "/~01"}},
		{"a name may be empty", `{"":1}`, `{"":2}`, []string{"/"}},
		{"the whole text is the empty pointer", `1`, `2`, []string{""}},
		{"the last digit of a great number counts", `{"a":9007199254740993}`, `{"a":9007199254740992}`, []string{"/a"}},
		{"none is longer than 1000 bytes", `{"a":{"` + long + `":1,"z":1}}`, `{"a":{"` + long + `":2,"z":2}}`, []string{"/a/z"}},
		{"texts of more than 128 KiB are not compared", `{"a":1}`, `{"a":2` + strings.Repeat(" ", 128<<10) + `}`, nil},
	} {
		a, b := []byte(test.a), []byte(test.b)
		for _, got := range [][]string{pointers(t, keptAs(a), b), pointers(t, keptAs(b), a)} {
			testrun.Same(t, test.name, test.want, got)
		}
	}
	for _, other := range []string{"", "ab"} {
		if _, err := keptAs([]byte(`1`)).Replay(idempotency.Request{Fingerprint: []byte(other)}); !errors.Is(err, idempotency.ErrReused) {
			t.Errorf("the fingerprint %q is that of \"a\": %v", other, err)
		}
	}
	expired := keptAs([]byte(`1`))
	expired.Expired, expired.Answer = true, theAnswer()
	got, err := expired.Replay(idempotency.Request{Fingerprint: []byte("a")})
	if !errors.Is(err, idempotency.ErrExpired) {
		t.Errorf("an expired answer is replayed: %v", err)
	}
	left := http.Header{"Location": theAnswer().Header["Location"]}
	testrun.Same(t, "what is left of an expired answer", idempotency.Answer{StatusCode: http.StatusAccepted, Header: left}, got.Answer)
	for name, got := range map[string][]string{
		"a request that is not kept":  pointers(t, keptAs(nil), []byte(`2`)),
		"another one without a form":  pointers(t, keptAs([]byte(`1`)), nil),
		"a request of an expired key": pointers(t, expired, []byte(`2`)),
	} {
		if got != nil {
			t.Errorf("%s is compared: %q", name, got)
		}
	}
	if got := pointers(t, keptAs([]byte("["+strings.Repeat("1,", 300)+"1]")), []byte("["+strings.Repeat("2,", 300)+"2]")); len(got) != 100 || !slices.IsSorted(got) {
		t.Errorf("of 301 members %q", got)
	}
}
