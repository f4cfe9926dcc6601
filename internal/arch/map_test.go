package arch_test

import (
	"os"
	"strings"
	"testing"
)

// module is the import path of the tree whose imports are checked.
const module = "github.com/payonce/payonce"

const (
	// strict are packages whose tests import no more than they do. Other tests may import
	// what they need, such as a database.
	strict = "domain e2e internal/robustness/demo internal/robustness/harness"
	// pure are packages that import, outside this module, the standard library alone.
	pure = "domain fulfillment/schema"
	// testHelpers are packages that every test may import: they know none of the service.
	testHelpers = "internal/testrun"
)

const (
	// public are packages that other modules import. Their exported API is in testdata/api/, and no
	// line of it names a package but these: of the standard library, pgx, Watermill, and public ones.
	public = "groupcommit idempotency inbox inbox/deadletter outbox outbox/doorbell"
	// namedByAPI are the names of these packages.
	namedByAPI = "context errors http json slog time pgx pgxpool message groupcommit"
)

// A rule is a line of testdata/imports.txt, where each kind of them is explained.
type rule struct{ path, list, why string }

// readRules returns the rules of each kind.
func readRules(tb testing.TB) map[string][]rule {
	tb.Helper()
	text, err := os.ReadFile("testdata/imports.txt")
	must(tb, err)
	rules := make(map[string][]rule)
	for line := range strings.Lines(string(text)) {
		parts := strings.Split(line, "|")
		switch {
		case line[0] == '#' || line == "\n":
		case len(parts) == 3:
			kind, path, _ := strings.Cut(strings.TrimSpace(parts[0]), " ")
			rules[kind] = append(rules[kind], rule{path, strings.TrimSpace(parts[1]), strings.TrimSpace(parts[2])})
		default:
			tb.Errorf("imports.txt has a line of %d parts: %s", len(parts), line)
		}
	}
	return rules
}
