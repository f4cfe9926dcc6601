package httpapi_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/payonce/payonce/internal/httpapi"
)

// FuzzDecode reads any body as that of a charge. PostgreSQL can store what is accepted. The canonical form, by
// which a key recognizes its request, is its own canonical form.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "null", "{}", "[]", body(), body("items", items(3), "metadata", `{"":"","a":null}`, "description", `"\u0041\uffff"`),
		body("description", `"\ud800"`), body("description", "\"\xff\""), body("metadata", `{"\u0000":"\\\u0000"}`), body("amount", "1e3"),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		canonical, err := httpapi.Canonical(raw)
		if err != nil {
			return
		}
		again, err := httpapi.Canonical(canonical)
		holdsNUL := strings.Contains(strings.ReplaceAll(canonical, `\\`, ""), `\u0000`)
		if err != nil || again != canonical || holdsNUL || !utf8.ValidString(canonical) {
			t.Errorf("%q has the canonical form %q, which has %q, %v", raw, canonical, again, err)
		}
	})
}
