package idempotency_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testrun"
)

func TestParseKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 255)
	for name, keys := range map[string]map[string]string{ // by header
		"a bare key is taken as it is": {
			"8e03978e-40d5-43dd-bc93-6894a57f9324": "8e03978e-40d5-43dd-bc93-6894a57f9324",
			"ABC":                                  "ABC", "!": "!", "~": "~", "a:b/c=d.e'f": "a:b/c=d.e'f", long: long,
		},
		"a quoted key is the key in the quotes": {
			`"8e03978e-40d5"`: "8e03978e-40d5", `"a\"b"`: `a"b`, `"a\\b"`: `a\b`, `"\""`: `"`, `"order 17"`: "order 17", `"a,b;c"`: "a,b;c",
			`"` + long + `"`: long, `"` + strings.Repeat(`\"`, 255) + `"`: strings.Repeat(`"`, 255),
		},
		"white space around a key is not part of it": {" \tabc\t ": "abc", ` "abc" `: "abc"},
		"an empty header is not a key":               {"": "", " \t ": "", `""`: ""},
		"other quoting is not a key": {
			`"a\nb"`: "", `"abc\"`: "", `"a"b"`: "", `a"b`: "", `abc"`: "", `a\b`: "", `"`: "", `"abc`: "",
			`"abc";v=1`: "", `"abc";v="1"`: "", `"abc", "def"`: "",
		},
		"what a gateway makes of two header lines is not a key": {
			"k1,k1": "", "k1, k1": "", "k1,k2": "", "k1,": "", ",k1": "", ",": "", `"k1","k1"`: "", `"k1", "k1"`: "", `k1, "k1"`: "", `"k1",k1`: "",
		},
		"parameters are not part of a key":       {"k1;v=1": "", "k1;": "", ";": "", "k1;v=1,k1;v=1": "", `"k1";v=1`: ""},
		"more than 255 characters are not a key": {long + "k": "", `"` + long + `k"`: ""},
		"other characters are not a key": {
			"a b": "", `" ab"`: "", `"ab "`: "", `" "`: "", "a\tb": "", "a\x00b": "", "a\r\nb": "", "a\x7f": "", "schlüssel": "", `"ключ"`: "",
			"\uff41bc": "", "🔑": "", "\u00a0abc": "", "a\u200bb": "", "a\xffb": "",
		},
	} {
		for header, want := range keys {
			got, err := idempotency.ParseKey([]string{header})
			if refused := errors.Is(err, idempotency.ErrInvalid); refused != (want == "") || !refused && got != want {
				t.Errorf("%s: %q is %q, %v, want %q", name, header, got, err, want)
			}
		}
	}
	for want, headers := range map[error][][]string{
		idempotency.ErrMissing: {nil}, nil: {{"a"}}, idempotency.ErrInvalid: {{"a", "a"}, {`"a`, `b"`}, {`"`, `"`}},
	} {
		for _, lines := range headers {
			if _, err := idempotency.ParseKey(lines); !errors.Is(err, want) {
				t.Errorf("of the header lines %q: %v, want %v", lines, err, want)
			}
		}
	}
}

func TestNaturalKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 255-len(":charge:v1"))
	of := func(parts ...string) []string { return parts }
	for _, test := range []struct {
		name      string
		parts     []string
		operation string
		version   int
		want      string // refused if empty
	}{
		{"another version is another key", of("order-17"), "charge", 12, "order-17:charge:v12"},
		{"a key may have several parts", of("order-17", "line-2"), "charge", 1, "order-17:line-2:charge:v1"},
		{"a part may be an hour", of("acme", "2026-01-31T10"), "report", 1, "acme:2026-01-31T10:report:v1"},
		{"case matters", of("Order-17"), "charge", 1, "Order-17:charge:v1"},
		{"a colon in a part is not one between parts", of("order-17:line-2"), "charge", 1, "order-17%3Aline-2:charge:v1"},
		{"a percent sign in a part is encoded", of("a%3Ab"), "charge", 1, "a%253Ab:charge:v1"},
		{
			"characters that no key may hold are encoded", of("ключ 🔑\x00\"\\\xff"), "POST /v1",
			1, "%D0%BA%D0%BB%D1%8E%D1%87%20%F0%9F%94%91%00%22%5C%FF:POST%20%2Fv1:v1",
		},
		{"255 characters are written out", of(long), "charge", 1, long + ":charge:v1"},
		{"256 are refused", of(long + "x"), "charge", 1, ""},
		{"a key without parts is refused", nil, "charge", 1, ""},
		{"an empty part is refused", of("order-17", ""), "charge", 1, ""},
		{"a key without operation is refused", of("order-17"), "", 1, ""},
		{"version 0 is refused", of("order-17"), "charge", 0, ""},
	} {
		got, err := idempotency.NaturalKey(test.operation, test.version, test.parts...)
		if refused := errors.Is(err, idempotency.ErrInvalid); refused != (test.want == "") || !refused && got != test.want {
			t.Errorf("%s: it is %s, %v, want %s", test.name, got, err, test.want)
		}
	}
}

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
	_, request, err := idempotency.Content("", []byte(text))
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

// The key depends on the source and the text, has a stored form that never changes, and is one that ParseKey takes.
func TestContent(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, test := range [][2]string{{"shop", `{"a":1}`}, {"shop", `{"a":2}`}, {"other", `{"a":1}`}, {"", `"shop"`}, {"shop", `null`}} {
		key, request, err := idempotency.Content(test[0], []byte(test[1]))
		parsed, invalid := idempotency.ParseKey([]string{key})
		if err = errors.Join(err, invalid); err != nil || parsed != key || seen[key] != "" || len(request.Fingerprint) != sha256.Size {
			t.Errorf("%v has the key %s, as has %s: %v", test, key, seen[key], err)
		}
		seen[key] = fmt.Sprint(test)
	}
	// SHA-256 over "content.v2", "shop" and the canonical text, each after its length in 8 bytes.
	const want = "content.v2:40233e53efeb256ddb4f9f52d854052708beea6773b72fdc26c86cd0e19574e8"
	if got, _, err := idempotency.Content("shop", []byte(`{"order_id":"o-1","amount":100,"note":"\u0041"}`)); got != want || err != nil {
		t.Errorf("it is %s, %v, was %s", got, err, want)
	}
}

// replay answers a request under a key whose state is known.
func replay(t *testing.T, stored idempotency.KeyState, request idempotency.Request) (idempotency.Result, error) {
	t.Helper()
	stored.Found, stored.Answer = true, theAnswer()
	o := idempotency.Options{Read: func(context.Context, groupcommit.Querier, idempotency.Key) (idempotency.KeyState, error) {
		return stored, nil
	}}
	return idempotency.Receive(t.Context(), nil, keyOf("k1"), request, o, answer)
}

// pointers are those that another request gets, without the answer.
func pointers(t *testing.T, stored idempotency.KeyState, canonical []byte) []string {
	t.Helper()
	got, err := replay(t, stored, idempotency.Request{Fingerprint: []byte("b"), Canonical: canonical})
	if !errors.Is(err, idempotency.ErrReused) || got.StatusCode != 0 || got.Header != nil || got.Body != nil {
		t.Fatalf("another request gets %+v, %v", got, err)
	}
	return got.Differs
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
		{"another type is another value", `{"a":"1"}`, `{"a":1}`, []string{"/a"}},
		{"an object is no array", `{"a":{"0":1}}`, `{"a":[1]}`, []string{"/a"}},
		{
			"elements are compared by index", `{"items":[{"sku":"mug","n":1},{"sku":"pen","n":1}]}`,
			`{"items":[{"sku":"mug","n":1},{"sku":"pen","n":2}]}`,
			[]string{"/items/1/n"},
		},
		{"a number is its text", `{"a":1}`, `{"a":1.0}`, []string{"/a"}},
		{"the order of elements matters", `[1,2,3]`, `[2,1,3]`, []string{"/0", "/1"}},
		{"further elements", `{"items":[1]}`, `{"items":[1,2,3]}`, []string{"/items/1", "/items/2"}},
		{"a slash in a name is ~1 and a tilde is ~0", `{"a/b":1,"m~n":1,"~1":1}`, `{"a/b":2,"m~n":2,"~1":2}`, []string{"/a~1b", "/m~0n", "/~01"}},
		{"a name may be empty", `{"":1}`, `{"":2}`, []string{"/"}},
		{"the whole text is the empty pointer", `1`, `2`, []string{""}},
		{"none is longer than 1000 bytes", `{"a":{"` + long + `":1,"z":1}}`, `{"a":{"` + long + `":2,"z":2}}`, []string{"/a/z"}},
		{"texts of more than 128 KiB are not compared", `{"a":1}`, `{"a":2` + strings.Repeat(" ", 128<<10) + `}`, nil},
	} {
		a, b := []byte(test.a), []byte(test.b)
		for _, got := range [][]string{pointers(t, keptAs(a), b), pointers(t, keptAs(b), a)} {
			testrun.Same(t, test.name, test.want, got)
		}
	}
	for _, other := range []string{"", "ab"} {
		if _, err := replay(t, keptAs([]byte(`1`)), idempotency.Request{Fingerprint: []byte(other)}); !errors.Is(err, idempotency.ErrReused) {
			t.Errorf("the fingerprint %q is that of \"a\": %v", other, err)
		}
	}
	expired := keptAs([]byte(`1`))
	expired.Expired = true
	got, err := replay(t, expired, idempotency.Request{Fingerprint: []byte("a")})
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
