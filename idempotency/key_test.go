package idempotency_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/idempotency"
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
			if got != want || (want == "") != errors.Is(err, idempotency.ErrInvalid) {
				t.Errorf("%s: %q is %q, %v, want %q", name, header, got, err, want)
			}
		}
	}
	for lines, want := range []error{idempotency.ErrMissing, nil, idempotency.ErrInvalid} {
		if _, err := idempotency.ParseKey([]string{"a", "a"}[:lines]); !errors.Is(err, want) {
			t.Errorf("of %d header lines: %v, want %v", lines, err, want)
		}
	}
}

// FuzzParseKey: whatever comes, a key is 1 to 255 printable characters, and the same key in
// whichever form it is written.
func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{
		"", "abc", `"abc"`, `"a\"b\\c"`, `"abc`, `abc"`, `"`, `""`, `"\"`, "\x00", "ключ", "a b", `"abc";v=1`, "\t\"x\" ", "\xff\xfe",
		`"a\`, `"a\"`, `"a" "b"`, "a;b", "a,a", `"a,b"`, "a\u200b", strings.Repeat("k", 256), `"` + strings.Repeat(`\"`, 256) + `"`,
	} {
		f.Add(seed)
	}
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	f.Fuzz(func(t *testing.T, value string) {
		key, err := idempotency.ParseKey([]string{value})
		if err != nil {
			if key != "" || !errors.Is(err, idempotency.ErrInvalid) {
				t.Errorf("%q is %q and %v", value, key, err)
			}
			return
		}
		if len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) || idempotency.Validate(key) != nil {
			t.Errorf("%q is the key %q", value, key)
		}
		for _, form := range []string{`"` + quote.Replace(key) + `"`, key} {
			bare := form == key && strings.ContainsAny(key, `"\ ,;`)
			if again, err := idempotency.ParseKey([]string{form}); !bare && (again != key || err != nil) {
				t.Errorf("%q is %q, %v", form, again, err)
			}
		}
	})
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
		{"a key is readable", of("order-17"), "charge", 1, "order-17:charge:v1"},
		{"another version is another key", of("order-17"), "charge", 12, "order-17:charge:v12"},
		{"a key may have several parts", of("order-17", "line-2"), "charge", 1, "order-17:line-2:charge:v1"},
		{"case matters", of("Order-17"), "charge", 1, "Order-17:charge:v1"},
		{"a colon in a part is not one between parts", of("order-17:line-2"), "charge", 1, "order-17%3Aline-2:charge:v1"},
		{"a percent sign in a part is encoded", of("a%3Ab"), "charge", 1, "a%253Ab:charge:v1"},
		{
			"characters that no key may hold are encoded", of("ключ 🔑\x00\"\\\xff"), "POST /v1",
			1, "%D0%BA%D0%BB%D1%8E%D1%87%20%F0%9F%94%91%00%22%5C%FF:POST%20%2Fv1:v1",
		},
		{"255 characters are written out", of(long), "charge", 1, long + ":charge:v1"},
		{"256 are a hash", of("y" + strings.Repeat("z", 245)), "charge", 1, "sha256:bd48ed92ac6d87d50ae21a7cca4def63f75ac820fd2d1880b4a6fdd339097387"},
		{"a key without parts is refused", nil, "charge", 1, ""},
		{"an empty part is refused", of("order-17", ""), "charge", 1, ""},
		{"a key without operation is refused", of("order-17"), "", 1, ""},
		{"version 0 is refused", of("order-17"), "charge", 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := idempotency.NaturalKey(test.operation, test.version, test.parts...)
			if got != test.want || (test.want == "") != errors.Is(err, idempotency.ErrInvalid) {
				t.Errorf("it is %s, %v, want %s", got, err, test.want)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 10, 59, 59, 999, time.UTC)
	for _, test := range []struct {
		name   string
		at     time.Time
		length time.Duration
		want   string
	}{
		{"an hour begins on the hour", at, time.Hour, "20260131T100000Z-1h0m0s"},
		{"the hour itself belongs to the next", at.Add(time.Second), time.Hour, "20260131T110000Z-1h0m0s"},
		{"a day begins at midnight UTC, wherever one is", at.In(time.FixedZone("", 50400)), 24 * time.Hour, "20260131T000000Z-24h0m0s"},
		{"another length is another window", at, time.Minute, "20260131T105900Z-1m0s"},
		{"a second is the shortest", at, time.Millisecond, "20260131T105959Z-1s"},
		{"parts of a second do not count", at, 2900 * time.Millisecond, "20260131T105958Z-2s"},
	} {
		if got := idempotency.Window(test.at, test.length); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
