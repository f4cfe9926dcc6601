package idempotency_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/payonce/payonce/idempotency"
)

func TestCanonical(t *testing.T) {
	t.Parallel()
	nines := strings.Repeat("9", 100)
	for _, test := range []struct {
		name, want string
		texts      []string
	}{
		{"the order of members does not matter", `{"a":1,"b":{"c":2,"d":3}}`, []string{`{"b":{"d":3,"c":2},"a":1}`, `{"a":1,"b":{"c":2,"d":3}}`}},
		{"nor does white space", `{"a":[1,2]}`, []string{" {\n\t\"a\" : [ 1 , 2 ]\r\n} "}},
		{"nor how a character is written", `{"A":"A/😀<"}`, []string{`{"\u0041":"\u0041\/\ud83d\ude00\u003c"}`, `{"A":"A/😀<"}`}},
		{"control characters are escaped in one way", `"\n\b\u0000\"\\"`, []string{`"\n\b\u0000\"\\"`, `"\u000A\u0008\u0000\u0022\u005C"`}},
		{"the order of elements does", `[2,1]`, []string{`[2,1]`}},
		{"one is one", `1`, []string{`1`, `1.0`, `1.00e0`, `10e-1`, `0.1E+1`, `100E-2`}},
		{"nothing is zero", `0`, []string{`0`, `-0`, `0.00`, `0e99`, `-0E-5`}},
		{"cents are exact", `-11e-1`, []string{`-1.1`, `-1.10`, `-110e-2`}},
		{"a number beyond 2^53 is exact", `9007199254740993`, []string{`9007199254740993`, `9007199254740993.0`, `9.007199254740993e15`}},
		{"a great exponent is not written out", `1e1000000000000000000000`, []string{`1e1000000000000000000000`, `0.1e1000000000000000000001`, `10E+999999999999999999999`}},
		{"the greatest is of 100 digits", "1e" + nines, []string{"1e" + nines, "1E+000" + nines}},
		{"nor are many zeros", `1e40`, []string{"1" + strings.Repeat("0", 40)}},
		{"fewer are", "1" + strings.Repeat("0", 39), []string{`1e39`, "1" + strings.Repeat("0", 39)}},
		{"words stay", `[true,false,null,{},[],""]`, []string{`[ true, false, null, { }, [ ], "" ]`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, text := range test.texts {
				if got, err := idempotency.Canonical([]byte(text)); string(got) != test.want || err != nil {
					t.Errorf("%s is %s, %v, want %s", text, got, err, test.want)
				}
			}
		})
	}

	for _, test := range []struct{ name, text string }{
		{"nothing is refused", ""},
		{"half a text is", `{"a":`},
		{"two texts are", `{} {}`},
		{"what looks like a number is", `01`},
		{"a repeated member is", `{"amount":1,"amount":100}`},
		{"also one that is written differently", `{"a":1,"\u0061":2}`},
		{"and one deep inside", `[{"a":{"b":1,"b":1}}]`},
		{"half of a surrogate pair is", `"\ud800"`},
		{"also before something else", `"\ud800\u0041"`},
		{"and the wrong half", `"\uDC00"`},
		{"and two first halves", `"\uD83D\uD83D\uDE00"`},
		{"bytes that are no text are", "\"\xff\""},
		{"an exponent of a million digits is", "1e" + strings.Repeat("9", 1_000_000)},
		{"also of nothing", "0e-" + strings.Repeat("9", 101)},
		{"and one that grows beyond its bound", "10e" + nines},
		{"nesting without end is", strings.Repeat("[", 10001) + strings.Repeat("]", 10001)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got, err := idempotency.Canonical([]byte(test.text)); got != nil || !errors.Is(err, idempotency.ErrNotJSON) {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}
