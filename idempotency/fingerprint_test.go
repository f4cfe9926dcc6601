package idempotency_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testrun"
)

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
		{"a number is its text", `[1,1.0,1.00e0,-0,0.10000000000000000001,1E400,9007199254740993]`, []string{`[1,1.0, 1.00e0, -0, 0.10000000000000000001, 1E400, 9007199254740993]`}},
		{"words and empty values stay", `[true,false,null,{},[],""]`, []string{`[ true, false, null, { }, [ ], "" ]`}},

		// Refused:
		{"an empty text", "", []string{""}},
		{"a text that is cut", "", []string{`{"a":`}},
		{"two texts", "", []string{`{} {}`}},
		{"a number with a leading zero", "", []string{`01`}},
		{"a repeated member", "", []string{`{"amount":1,"amount":100}`, `{"a":1,"\u0061":2}`, `[{"a":{"b":1,"b":1}}]`}},
		{"half of a surrogate pair", "", []string{`"\ud800"`, `"\ud800\u0041"`, `"\uDC00"`, `"\uD83D\uD83D\uDE00"`}},
		{"bytes that are not UTF-8", "", []string{"\"\xff\""}},
		{"nesting deeper than 100", "", []string{strings.Repeat("[", 101) + strings.Repeat("]", 101)}},
	} {
		for _, text := range test.texts {
			got, err := idempotency.Canonical([]byte(text))
			if string(got) != test.want || (test.want == "") != errors.Is(err, idempotency.ErrNotJSON) {
				t.Errorf("%s: %.100s is %s, %v, want %s", test.name, text, got, err, test.want)
			}
		}
	}
}

// TestCanonical_ofAHostileBody: a sender chooses the names of members, their order, and how deep
// objects are. No choice may cost more than ten times as much as an ordinary body of 256 KiB.
func TestCanonical_ofAHostileBody(t *testing.T) {
	t.Parallel()
	const size = 256 << 10
	took := func(text string) time.Duration {
		start := time.Now()
		_, _ = idempotency.Canonical([]byte(text)) // it may be refused
		return time.Since(start)
	}
	isCheap := func(text, plain string) bool {
		for range 5 { // a busy machine may disturb some of them
			if took(text) <= 10*took(plain) {
				return true
			}
		}
		return false
	}
	nested := func(before, after string, depth int) string {
		text := strings.Repeat("x", max(0, size-depth*len(before+after)))
		return strings.Repeat(before, depth) + `"` + text + `"` + strings.Repeat(after, depth)
	}
	var members []string
	for n := range size / 11 {
		members = append(members, fmt.Sprintf(`"%x":1`, n*7919%65521))
	}
	ordinary := `[` + strings.Repeat(`{"sku":"mug","price":1.50,"quantity":1},`, size/40) + `1]`
	for name, text := range map[string]string{
		"objects within objects":           nested(`{"b":`, `,"a":1}`, 9000),
		"objects as deep as they may":      nested(`{"b":`, `,"a":1}`, 100),
		"names in another order of UTF-16": nested("{\"\ufb33\":1,\"😀\":", `}`, 9000),
		"many members":                     "{" + strings.Join(members, ",") + "}",
		"great numbers":                    "[" + strings.Repeat("9", size/2) + ",1e-" + strings.Repeat("9", size/2) + "]",
	} {
		if !isCheap(text, ordinary) {
			t.Errorf("%s: %d bytes take %v, an ordinary body takes %v", name, len(text), took(text), took(ordinary))
		}
	}
}

func TestPointers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, a, b string
		want       []string
	}{
		{"two spellings of one value have no pointer", `{"a":1,"b":[2.50]}`, ` {"b" : [2.50], "\u0061":1}`, nil},
		{"a member that differs has a pointer", `{"a":1,"b":2}`, `{"a":1,"b":3}`, []string{"/b"}},
		{"pointers are sorted", `{"z":1,"a":1,"m":{"y":1,"b":1}}`, `{"z":2,"a":2,"m":{"y":2,"b":2}}`, []string{"/a", "/m/b", "/m/y", "/z"}},
		{"a member that one text lacks", `{"a":{"b":1}}`, `{}`, []string{"/a"}},
		{"null is not absent", `{"a":null}`, `{}`, []string{"/a"}},
		{"another type is another value", `{"a":"1"}`, `{"a":1}`, []string{"/a"}},
		{"an object is no array", `{"a":{}}`, `{"a":[]}`, []string{"/a"}},
		{"elements are compared by index", `{"items":[{"sku":"mug","quantity":1},{"sku":"pen","quantity":1}]}`, `{"items":[{"sku":"mug","quantity":1},{"sku":"pen","quantity":2}]}`, []string{"/items/1/quantity"}},
		{"the order of elements matters", `[1,2,3]`, `[2,1,3]`, []string{"/0", "/1"}},
		{"further elements", `{"items":[1]}`, `{"items":[1,2,3]}`, []string{"/items/1", "/items/2"}},
		{"a slash in a name is ~1 and a tilde is ~0", `{"a/b":1,"m~n":1,"~1":1}`, `{"a/b":2,"m~n":2,"~1":2}`, []string{"/a~1b", "/m~0n", "/~01"}},
		{"a name may be empty", `{"":1}`, `{"":2}`, []string{"/"}},
		{"the whole text is the empty pointer", `1`, `2`, []string{""}},
		{"the last digit of a great number counts", `{"a":9007199254740993}`, `{"a":9007199254740992}`, []string{"/a"}},
		{"the last digit of a fraction counts", `{"a":0.1}`, `{"a":0.10000000000000000001}`, []string{"/a"}},
		{"a text that is not JSON has no pointer", `{"a":1}`, `{"a":`, nil},
	} {
		for _, got := range [][]string{idempotency.Pointers([]byte(test.a), []byte(test.b)), idempotency.Pointers([]byte(test.b), []byte(test.a))} {
			testrun.Same(t, test.name, test.want, got)
		}
	}
}

func TestPointers_areBounded(t *testing.T) {
	t.Parallel()
	t.Run("pointers do not depend on which text comes first", func(t *testing.T) {
		t.Parallel()
		var a, b bytes.Buffer
		for i := range 300 {
			fmt.Fprintf(&a, `%c"a%d":1`, "{,"[min(i, 1)], i)
			fmt.Fprintf(&b, `%c"b%d":1`, "{,"[min(i, 1)], i)
		}
		a.WriteString("}")
		b.WriteString("}")
		there, back := idempotency.Pointers(a.Bytes(), b.Bytes()), idempotency.Pointers(b.Bytes(), a.Bytes())
		if diff := cmp.Diff(there, back); diff != "" || len(there) != 100 {
			t.Errorf("%d, (-there +back):\n%s", len(there), diff)
		}
	})

	t.Run("a pointer ends before a long name", func(t *testing.T) {
		t.Parallel()
		name := strings.Repeat("n", 2000)
		got := idempotency.Pointers([]byte(`{"a":{"`+name+`":{"b":1},"z":1}}`), []byte(`{"a":{"`+name+`":{"b":2},"z":2}}`))
		testrun.Same(t, "pointers", []string{"/a", "/a/z"}, got)
	})
}

// FuzzPointers: of two JSON texts there are no pointers exactly if they have one canonical form, and
// they are the same in both directions.
func FuzzPointers(f *testing.F) {
	for _, seed := range [][2]string{
		{`{}`, `[]`},
		{`{"a":1}`, `{"a":1.0}`},
		{`{"a":[1,{"b":null}]}`, `{"a":[1,{"b":""}]}`},
		{`{"a":1,"a":2}`, `{"a":2}`},
		{`"\ud83d\ude00"`, `"😀"`},
		{`"\\ud800"`, `"\\ud801"`},
		{"10e" + strings.Repeat("9", 100), "1e" + strings.Repeat("9", 101)},
		{"\"\xff\"", "\"\xfe\""},
		{`{"~/":[]}`, `{"~/":{}}`},
		{strings.Repeat("[", 99) + strings.Repeat("]", 99), strings.Repeat("[", 100) + strings.Repeat("]", 100)},
		{`[1] [1]`, `[1]`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		pointers := idempotency.Pointers(a, b)
		first, errFirst := idempotency.Canonical(a)
		second, errSecond := idempotency.Canonical(b)
		if equal := errFirst != nil || errSecond != nil || bytes.Equal(first, second); equal != (len(pointers) == 0) {
			t.Errorf("%q and %q: %q", a, b, pointers)
		}
		if back := idempotency.Pointers(b, a); !slices.Equal(pointers, back) {
			t.Errorf("%q and %q: %q, and back %q", a, b, pointers, back)
		}
		if again, err := idempotency.Canonical(first); errFirst == nil && (err != nil || !bytes.Equal(first, again)) {
			t.Errorf("%q becomes %q, and that %q, %v", a, first, again, err)
		}
	})
}
