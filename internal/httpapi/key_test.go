package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
)

func TestKey(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("k", 255)
	for _, test := range []struct {
		name, first, second, echo string
	}{
		{"quoted and bare are the same key", `"abc"`, "abc", "abc"},
		{"outer white space does not count", "  abc\t", "abc", "abc"},
		{"an escaped quote and backslash are read", `"a\"b\\c"`, `"a\"b\\c"`, `a"b\c`},
		{"255 characters are a key", longest, `"` + longest + `"`, longest},
		{"one character is a key", "k", `"k"`, "k"},
		{"every visible character is allowed", "!#$%&'()*+,-./:;<=>?@[]^_`{|}~", "!#$%&'()*+,-./:;<=>?@[]^_`{|}~", "!#$%&'()*+,-./:;<=>?@[]^_`{|}~"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := serve(t)
			before := rows(t, w.db)
			first := w.accept(t, test.first, body())
			second := w.accept(t, test.second, body())
			if second.header.Get("Idempotent-Replayed") != "true" || first.body != second.body {
				t.Errorf("%s and %s are two keys", test.first, test.second)
			}
			for _, a := range []answer{first, second} {
				if got := a.header.Get("Idempotency-Key"); got != test.echo {
					t.Errorf("the echo is %q, want %q", got, test.echo)
				}
			}
			wantRows(t, w.db, before, ofOneCharge())
		})
	}
}

func TestKeyOfAnotherPlaceIsAnotherKey(t *testing.T) {
	t.Parallel()
	w := serve(t)
	acme := w.accept(t, "key-1", body())
	upper := w.accept(t, "KEY-1", body())
	globex := w.send(t, post("key-1", body()).with("Authorization", "Bearer "+strangerKey))
	if globex.status != http.StatusAccepted || globex.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("the key of another merchant: status %d: %s", globex.status, globex.body)
	}
	if acme.body == upper.body || acme.body == globex.body {
		t.Error("two keys have one charge")
	}
}

func TestKeyRefused(t *testing.T) {
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	const invalid = "/problems/idempotency-key-invalid"
	for _, test := range []struct {
		name   string
		values []string
		kind   string
	}{
		{"missing", nil, "/problems/idempotency-key-missing"},
		{"empty", []string{""}, invalid},
		{"only white space", []string{" \t "}, invalid},
		{"empty in quotes", []string{`""`}, invalid},
		{"a lone quote", []string{`"`}, invalid},
		{"no closing quote", []string{`"abc`}, invalid},
		{"no opening quote", []string{`abc"`}, invalid},
		{"a quote inside", []string{`a"b`}, invalid},
		{"an unescaped quote inside quotes", []string{`"a"b"`}, invalid},
		{"a bare backslash", []string{`a\b`}, invalid},
		{"an escape that is none", []string{`"a\b"`}, invalid},
		{"an escaped closing quote", []string{`"abc\"`}, invalid},
		{"parameters", []string{`"abc";a=1`}, invalid},
		{"a space inside", []string{"a b"}, invalid},
		{"a space inside quotes", []string{`"a b"`}, invalid},
		{"a tab inside", []string{"a\tb"}, invalid},
		{"not ASCII", []string{"schlüssel"}, invalid},
		{"256 characters", []string{strings.Repeat("k", 256)}, invalid},
		{"256 characters in quotes", []string{`"` + strings.Repeat("k", 256) + `"`}, invalid},
		{"repeated", []string{"abc", "abd"}, invalid},
		{"repeated and the same", []string{"abc", "abc"}, invalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := w.send(t, post("", body()).with("Idempotency-Key", test.values...))
			wantProblem(t, a, test.kind)
			if echo := a.header.Get("Idempotency-Key"); echo != "" {
				t.Errorf("%q is echoed", echo)
			}
			if link := a.header.Get("Link"); (link == `</docs>; rel="describedby"`) != (test.values == nil) {
				t.Errorf("Link is %q", link)
			}
			wantRows(t, w.db, before, nil)
		})
	}
}
