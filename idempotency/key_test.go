package idempotency_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for header, want := range keys {
				got, err := idempotency.ParseKey([]string{header})
				if got != want || (want == "") != errors.Is(err, idempotency.ErrInvalid) {
					t.Errorf("%q is %q, %v, want %q", header, got, err, want)
				}
			}
		})
	}

	t.Run("no header is a missing key, and two are not a key", func(t *testing.T) {
		t.Parallel()
		for _, test := range []struct {
			values []string
			want   error
		}{{nil, idempotency.ErrMissing}, {[]string{}, idempotency.ErrMissing}, {[]string{"a", "b"}, idempotency.ErrInvalid}, {[]string{"a", "a"}, idempotency.ErrInvalid}} {
			if got, err := idempotency.ParseKey(test.values); got != "" || !errors.Is(err, test.want) {
				t.Errorf("%q is %q, %v", test.values, got, err)
			}
		}
	})
}

// FuzzParseKey: whatever comes, a key is 1 to 255 printable characters, and the
// same key in whichever form it is written.
func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{
		"", "abc", `"abc"`, `"a\"b\\c"`, `"abc`, `abc"`, `"`, `""`, `"\"`, "\x00", "ключ", "a b", `"abc";v=1`,
		strings.Repeat("k", 255), strings.Repeat("k", 256), "\t\"x\" ", "\xff\xfe",
		`"a\`, `"a\"`, `"a" "b"`, "a;b", "a,a", `"a,b"`, "a\u200b", `"` + strings.Repeat(`\"`, 256) + `"`,
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
		if len(key) < 1 || len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q is the key %q", value, key)
		}
		if err := idempotency.Validate(key); err != nil {
			t.Errorf("%q is the key %q, %v", value, key, err)
		}
		if again, err := idempotency.ParseKey([]string{`"` + quote.Replace(key) + `"`}); again != key || err != nil {
			t.Errorf("%q quoted is %q, %v", key, again, err)
		}
		if bare, err := idempotency.ParseKey([]string{key}); !strings.ContainsAny(key, `"\ ,;`) && (bare != key || err != nil) {
			t.Errorf("%q bare is %q, %v", key, bare, err)
		}
	})
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	of := func(parts ...string) string {
		split := make([][]byte, len(parts))
		for i, part := range parts {
			split[i] = []byte(part)
		}
		return hex.EncodeToString(idempotency.Fingerprint(split...))
	}

	t.Run("different lists of parts have different fingerprints", func(t *testing.T) {
		t.Parallel()
		lists := [][]string{
			{},
			{""},
			{"", ""},
			{"abc"},
			{"ab", "c"},
			{"a", "bc"},
			{"a", "b", "c"},
			{"abc", ""},
			{"", "abc"},
			{"\x00\x00\x00\x00\x00\x00\x00\x01a"},
			{"c", "ab"},
		}
		seen := map[string][]string{}
		for _, list := range lists {
			if other, ok := seen[of(list...)]; ok {
				t.Errorf("%q and %q have one fingerprint", list, other)
			}
			seen[of(list...)] = list
		}
	})

	t.Run("the form never changes, since it is stored", func(t *testing.T) {
		t.Parallel()
		sum := sha256.Sum256([]byte("\x00\x00\x00\x00\x00\x00\x00\x02v1\x00\x00\x00\x00\x00\x00\x00\x00"))
		if got, want := of("v1", ""), hex.EncodeToString(sum[:]); got != want {
			t.Errorf("it is %s, was %s", got, want)
		}
	})
}
