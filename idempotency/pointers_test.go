package idempotency_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
)

func TestPointers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, a, b string
		want       []string
	}{
		{"what is equal has none", `{"a":1}`, `{"a":1}`, nil},
		{"what says the same has none", `{"a":1,"b":[2.50]}`, ` {"b" : [25e-1], "\u0061":1}`, nil},
		{"a member that differs is named", `{"a":1,"b":2}`, `{"a":1,"b":3}`, []string{"/b"}},
		{"the deepest one is", `{"a":{"b":{"c":1,"d":2}}}`, `{"a":{"b":{"c":1,"d":3}}}`, []string{"/a/b/d"}},
		{"all are, sorted", `{"z":1,"a":1,"m":{"y":1,"b":1}}`, `{"z":2,"a":2,"m":{"y":2,"b":2}}`, []string{"/a", "/m/b", "/m/y", "/z"}},
		{"one that the second lacks is named itself", `{"a":{"b":1}}`, `{}`, []string{"/a"}},
		{"one that the first lacks too", `{}`, `{"a":{"b":1}}`, []string{"/a"}},
		{"null is not absent", `{"a":null}`, `{}`, []string{"/a"}},
		{"another type is another value", `{"a":"1"}`, `{"a":1}`, []string{"/a"}},
		{"an object is no array", `{"a":{}}`, `{"a":[]}`, []string{"/a"}},
		{"true is not false", `{"a":true}`, `{"a":false}`, []string{"/a"}},
		{"elements are compared by index", `{"items":[{"sku":"mug","quantity":1},{"sku":"pen","quantity":1}]}`, `{"items":[{"sku":"mug","quantity":1},{"sku":"pen","quantity":2}]}`, []string{"/items/1/quantity"}},
		{"so their order matters", `[1,2,3]`, `[2,1,3]`, []string{"/0", "/1"}},
		{"an element more is named", `{"items":[1]}`, `{"items":[1,2,3]}`, []string{"/items/1", "/items/2"}},
		{"a slash in a name is ~1, a tilde ~0", `{"a/b":1,"m~n":1,"~1":1}`, `{"a/b":2,"m~n":2,"~1":2}`, []string{"/a~1b", "/m~0n", "/~01"}},
		{"a name may be empty", `{"":1}`, `{"":2}`, []string{"/"}},
		{"the whole text is the empty pointer", `1`, `2`, []string{""}},
		{"the last digit of a great number counts", `{"a":9007199254740993}`, `{"a":9007199254740992}`, []string{"/a"}},
		{"what is no JSON differs as a whole", `{"a":1}`, `{"a":`, []string{""}},
		{"unless it is the same", `{"a":`, `{"a":`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, got := range [][]string{idempotency.Pointers([]byte(test.a), []byte(test.b)), idempotency.Pointers([]byte(test.b), []byte(test.a))} {
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("pointers (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestPointersAreBounded(t *testing.T) {
	t.Parallel()
	nested := func(depth, n int, element string) []byte {
		return []byte(strings.Repeat("[", depth) + element + strings.Repeat(","+element, n-1) + strings.Repeat("]", depth))
	}

	t.Run("there are no more than a hundred, the first ones", func(t *testing.T) {
		t.Parallel()
		got := idempotency.Pointers(nested(1, 5000, "1"), nested(1, 5000, "2"))
		if len(got) != 100 || !slices.Contains(got, "/0") || !slices.Contains(got, "/99") {
			t.Errorf("%d: %q", len(got), got)
		}
	})

	t.Run("whichever of the texts comes first", func(t *testing.T) {
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

	t.Run("deep below, the last member on the way is named", func(t *testing.T) {
		t.Parallel()
		want := []string{strings.Repeat("/0", 500)}
		if diff := cmp.Diff(want, idempotency.Pointers(nested(5000, 5000, "1"), nested(5000, 5000, "2"))); diff != "" {
			t.Errorf("pointers (-want +got):\n%s", diff)
		}
	})

	t.Run("also where a name is long", func(t *testing.T) {
		t.Parallel()
		name := strings.Repeat("n", 2000)
		got := idempotency.Pointers([]byte(`{"a":{"`+name+`":{"b":1},"z":1}}`), []byte(`{"a":{"`+name+`":{"b":2},"z":2}}`))
		if diff := cmp.Diff([]string{"/a", "/a/z"}, got); diff != "" {
			t.Errorf("pointers (-want +got):\n%s", diff)
		}
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
		{`1e999999999999999999999`, `10e999999999999999999998`},
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
