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
	long := strings.Repeat("k", idempotency.MaxLength)
	for _, test := range []struct {
		name   string
		values []string
		want   string
		err    error
	}{
		{"no header is a missing key", nil, "", idempotency.ErrMissing},
		{"no value is a missing key", []string{}, "", idempotency.ErrMissing},
		{"an empty header is no key", []string{""}, "", idempotency.ErrInvalid},
		{"a blank header is no key", []string{" \t "}, "", idempotency.ErrInvalid},
		{"two headers are no key", []string{"a", "b"}, "", idempotency.ErrInvalid},
		{"two equal headers are no key", []string{"a", "a"}, "", idempotency.ErrInvalid},

		{"a bare key is taken as it stands", []string{"8e03978e-40d5-43dd-bc93-6894a57f9324"}, "8e03978e-40d5-43dd-bc93-6894a57f9324", nil},
		{"a quoted key is the same key", []string{`"8e03978e-40d5-43dd-bc93-6894a57f9324"`}, "8e03978e-40d5-43dd-bc93-6894a57f9324", nil},
		{"white space around a key is not part of it", []string{" \tabc\t "}, "abc", nil},
		{"nor around a quoted one", []string{` "abc" `}, "abc", nil},
		{"one character is enough", []string{"!"}, "!", nil},
		{"the last visible character is one", []string{"~"}, "~", nil},
		{"case matters", []string{"ABC"}, "ABC", nil},
		{"punctuation is allowed", []string{"a:b/c=d;e,f'g"}, "a:b/c=d;e,f'g", nil},

		{"a quoted quote is a quote", []string{`"a\"b"`}, `a"b`, nil},
		{"a quoted backslash is a backslash", []string{`"a\\b"`}, `a\b`, nil},
		{"a key may be nothing but a quote", []string{`"\""`}, `"`, nil},
		{"nothing else is escaped", []string{`"a\nb"`}, "", idempotency.ErrInvalid},
		{"an escape needs a character", []string{`"abc\"`}, "", idempotency.ErrInvalid},
		{"a quote inside quotes is escaped", []string{`"a"b"`}, "", idempotency.ErrInvalid},
		{"a bare key holds no quote", []string{`a"b`}, "", idempotency.ErrInvalid},
		{"nor ends with one", []string{`abc"`}, "", idempotency.ErrInvalid},
		{"a bare key holds no backslash", []string{`a\b`}, "", idempotency.ErrInvalid},
		{"a quote alone is no key", []string{`"`}, "", idempotency.ErrInvalid},
		{"empty quotes are no key", []string{`""`}, "", idempotency.ErrInvalid},
		{"an open quote is no key", []string{`"abc`}, "", idempotency.ErrInvalid},
		{"a quoted key has no parameters", []string{`"abc";v=1`}, "", idempotency.ErrInvalid},
		{"not even quoted ones", []string{`"abc";v="1"`}, "", idempotency.ErrInvalid},
		{"a list is no key", []string{`"abc", "def"`}, "", idempotency.ErrInvalid},

		{"255 characters are a key", []string{long}, long, nil},
		{"256 are none", []string{long + "k"}, "", idempotency.ErrInvalid},
		{"quotes do not count", []string{`"` + long + `"`}, long, nil},
		{"256 in quotes are none", []string{`"` + long + `k"`}, "", idempotency.ErrInvalid},
		{"escapes do not count", []string{`"` + strings.Repeat(`\"`, 255) + `"`}, strings.Repeat(`"`, 255), nil},

		{"a space is not part of a key", []string{"a b"}, "", idempotency.ErrInvalid},
		{"not even in quotes", []string{`"a b"`}, "", idempotency.ErrInvalid},
		{"nor is a tab", []string{"a\tb"}, "", idempotency.ErrInvalid},
		{"nor NUL", []string{"a\x00b"}, "", idempotency.ErrInvalid},
		{"nor a line end", []string{"a\r\nb"}, "", idempotency.ErrInvalid},
		{"nor delete", []string{"a\x7f"}, "", idempotency.ErrInvalid},
		{"nor a letter outside ASCII", []string{"schlüssel"}, "", idempotency.ErrInvalid},
		{"nor one in quotes", []string{`"ключ"`}, "", idempotency.ErrInvalid},
		{"nor one that looks like ASCII", []string{"\uff41bc"}, "", idempotency.ErrInvalid},
		{"nor an emoji", []string{"🔑"}, "", idempotency.ErrInvalid},
		{"nor a space outside ASCII", []string{"\u00a0abc"}, "", idempotency.ErrInvalid},
		{"nor what cannot be seen", []string{"a\u200bb"}, "", idempotency.ErrInvalid},
		{"nor bytes that are no text", []string{"a\xffb"}, "", idempotency.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := idempotency.ParseKey(test.values)
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("%q is %q, %v, want %q, %v", test.values, got, err, test.want, test.err)
			}
		})
	}
}

// FuzzParseKey: whatever comes, a key is 1 to 255 visible characters, and the
// same key in whichever form it is written.
func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{
		"", "abc", `"abc"`, `"a\"b\\c"`, `"abc`, `abc"`, `"`, `""`, `"\"`, "\x00", "ключ", "a b", `"abc";v=1`,
		strings.Repeat("k", 255), strings.Repeat("k", 256), "\t\"x\" ", "\xff\xfe",
		`"a\`, `"a\"`, `"a" "b"`, "a;b", "a\u200b", `"` + strings.Repeat(`\"`, 256) + `"`,
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
		if len(key) < 1 || len(key) > idempotency.MaxLength || strings.ContainsFunc(key, func(r rune) bool { return r < '!' || r > '~' }) {
			t.Errorf("%q is the key %q", value, key)
		}
		if err := idempotency.Validate(key); err != nil {
			t.Errorf("%q is the key %q, %v", value, key, err)
		}
		if again, err := idempotency.ParseKey([]string{`"` + quote.Replace(key) + `"`}); again != key || err != nil {
			t.Errorf("%q quoted is %q, %v", key, again, err)
		}
		if bare, err := idempotency.ParseKey([]string{key}); !strings.ContainsAny(key, `"\`) && (bare != key || err != nil) {
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

	t.Run("the same parts have the same fingerprint", func(t *testing.T) {
		t.Parallel()
		if first, second := of("v1", "a"), of("v1", "a"); first != second || len(first) != 64 {
			t.Errorf("%s and %s", first, second)
		}
	})

	t.Run("no two lists of parts run together", func(t *testing.T) {
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

	t.Run("it is stored data: it never changes between versions of this program", func(t *testing.T) {
		t.Parallel()
		sum := sha256.Sum256([]byte("\x00\x00\x00\x00\x00\x00\x00\x02v1\x00\x00\x00\x00\x00\x00\x00\x00"))
		if got, want := of("v1", ""), hex.EncodeToString(sum[:]); got != want {
			t.Errorf("it is %s, was %s", got, want)
		}
	})
}

func TestHash(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "abc", strings.Repeat("k", 255)} {
		sum := sha256.Sum256([]byte(key))
		if got, want := idempotency.Hash(key), hex.EncodeToString(sum[:6]); got != want {
			t.Errorf("the hash of %q is %s, want %s", key, got, want)
		}
	}
}
