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
		{"spellings of a number are one number", `1`, []string{`1`, `1.0`, `1.00e0`, `10e-1`, `0.1E+1`, `100E-2`}},
		{"zeros of any sign and size are one number", `0`, []string{`0`, `-0`, `0.00`, `0e99`, `-0E-5`}},
		{"a fraction is one of a float64", `-1.1`, []string{`-1.1`, `-1.10`, `-110e-2`, `-1.10000000000000000001`}},
		{"a whole number keeps all digits", `123456789012345678901234567890`, []string{`123456789012345678901234567890`}},
		{"a number beyond 2^53 is exact", `9007199254740993`, []string{`9007199254740993`}},
		{"a large exponent is not written out", `1e+300`, []string{`1e300`, `0.1e301`, `10E+299`}},
		{"words and empty values stay", `[true,false,null,{},[],""]`, []string{`[ true, false, null, { }, [ ], "" ]`}},

		// Refused:
		{"an empty text", "", []string{""}},
		{"a text that is cut", "", []string{`{"a":`}},
		{"two texts", "", []string{`{} {}`}},
		{"a number with a leading zero", "", []string{`01`}},
		{"a repeated member", "", []string{`{"amount":1,"amount":100}`, `{"a":1,"\u0061":2}`, `[{"a":{"b":1,"b":1}}]`}},
		{"half of a surrogate pair", "", []string{`"\ud800"`, `"\ud800\u0041"`, `"\uDC00"`, `"\uD83D\uD83D\uDE00"`}},
		{"bytes that are not UTF-8", "", []string{"\"\xff\""}},
		{"nesting deeper than 10,000", "", []string{strings.Repeat("[", 10001) + strings.Repeat("]", 10001)}},
	} {
		for _, text := range test.texts {
			got, err := idempotency.Canonical([]byte(text))
			if string(got) != test.want || (test.want == "") != errors.Is(err, idempotency.ErrNotJSON) {
				t.Errorf("%s: %.100s is %s, %v, want %s", test.name, text, got, err, test.want)
			}
		}
	}
}

// TestCanonical_takesNoLongerForObjectsWithinObjects: a sender chooses how deep its
// objects are. To bring their members into order must not cost the square of that.
func TestCanonical_takesNoLongerForObjectsWithinObjects(t *testing.T) {
	t.Parallel()
	took := func(before, after string) time.Duration {
		const depth = 5000
		text := strings.Repeat("{"+before+`"b":`, depth) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat(after+"}", depth)
		start := time.Now()
		if _, err := idempotency.Canonical([]byte(text)); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	for range 5 { // a busy machine may disturb some of them; the square is a hundred times as long
		if took("", `,"a":1`) < 20*took(`"a":1,`, "") {
			return
		}
	}
	t.Error("members out of order take far longer than members in order")
}

func TestPointers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, a, b string
		want       []string
	}{
		{"two spellings of one value have no pointer", `{"a":1,"b":[2.50]}`, ` {"b" : [25e-1], "\u0061":1}`, nil},
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
		{"a text that is not JSON differs as a whole", `{"a":1}`, `{"a":`, []string{""}},
		{"equal texts that are not JSON have no pointer", `{"a":`, `{"a":`, nil},
	} {
		for _, got := range [][]string{idempotency.Pointers([]byte(test.a), []byte(test.b)), idempotency.Pointers([]byte(test.b), []byte(test.a))} {
			testrun.Same(t, test.name, test.want, got)
		}
	}
}

func TestPointers_areBounded(t *testing.T) {
	t.Parallel()
	nested := func(depth, n int, element string) []byte {
		return []byte(strings.Repeat("[", depth) + element + strings.Repeat(","+element, n-1) + strings.Repeat("]", depth))
	}

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

	t.Run("a long pointer ends at the last member that fits", func(t *testing.T) {
		t.Parallel()
		want := []string{strings.Repeat("/0", 500)}
		testrun.Same(t, "pointers", want, idempotency.Pointers(nested(5000, 5000, "1"), nested(5000, 5000, "2")))
	})

	t.Run("a pointer ends before a long name", func(t *testing.T) {
		t.Parallel()
		name := strings.Repeat("n", 2000)
		got := idempotency.Pointers([]byte(`{"a":{"`+name+`":{"b":1},"z":1}}`), []byte(`{"a":{"`+name+`":{"b":2},"z":2}}`))
		testrun.Same(t, "pointers", []string{"/a", "/a/z"}, got)
	})
}

// FuzzPointers: whatever comes, there are no pointers exactly if the texts have
// one canonical form, and they are the same in both directions.
func FuzzPointers(f *testing.F) {
	for _, seed := range [][2]string{
		{"", ""},
		{`{}`, `[]`},
		{`{"a":1}`, `{"a":1.0}`},
		{`{"a":[1,{"b":null}]}`, `{"a":[1,{"b":""}]}`},
		{`{"a":1,"a":2}`, `{"a":2}`},
		{`"\ud800"`, `"\ud801"`},
		{`"\ud83d\ude00"`, `"😀"`},
		{`"\\ud800"`, `"\\ud801"`},
		{`-0`, `0e5`},
		{"10e" + strings.Repeat("9", 100), "1e" + strings.Repeat("9", 101)},
		{"\"\xff\"", "\"\xfe\""},
		{`{"~/":[]}`, `{"~/":{}}`},
		{strings.Repeat("[", 9000) + strings.Repeat("]", 9000), strings.Repeat("[", 9001) + strings.Repeat("]", 9001)},
		{strings.Repeat("[", 20000), `[`},
		{`[1] [1]`, `[1]`},
		{`[1,]`, `[1]`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		pointers := idempotency.Pointers(a, b)
		first, errFirst := idempotency.Canonical(a)
		second, errSecond := idempotency.Canonical(b)
		equal := bytes.Equal(a, b)
		if errFirst == nil && errSecond == nil {
			equal = bytes.Equal(first, second)
		}
		if equal != (len(pointers) == 0) {
			t.Errorf("%q and %q: %q", a, b, pointers)
		}
		if back := idempotency.Pointers(b, a); !slices.Equal(pointers, back) {
			t.Errorf("%q and %q: %q, and back %q", a, b, pointers, back)
		}
		if errFirst != nil {
			if !errors.Is(errFirst, idempotency.ErrNotJSON) {
				t.Errorf("%q: %v", a, errFirst)
			}
			return
		}
		if again, err := idempotency.Canonical(first); err != nil || !bytes.Equal(first, again) {
			t.Errorf("%q becomes %q, and that %q, %v", a, first, again, err)
		}
	})
}
