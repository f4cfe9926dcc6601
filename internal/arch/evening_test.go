package arch_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const evening = "docs/explanation/one-evening.md"

var (
	stop     = regexp.MustCompile(`(?m)^\| \[([\w/.]+)\]\(\.\./\.\./([\w/.]+)\) \| ([\d,]+) \| .+\? \|$`)
	breakage = regexp.MustCompile("(?s)\nBreak it, in `([^`]+)`: [^\n]+\n\n```diff\n(.*?)```\n\n    go test (\\./\\S+) -run '(\\w+)")
)

// TestEvening_isOfThisTree compares the page that walks through the code with the code: a file has
// about as many lines as the page says, an edit removes lines that are there, and the test that it
// breaks exists. That the test then fails was tried by hand.
func TestEvening_isOfThisTree(t *testing.T) {
	t.Parallel()
	page := read(t, evening)
	stops := stop.FindAllStringSubmatch(page, -1)
	if rows := strings.Count(page, "\n| ["); rows != len(stops) || rows < 20 {
		t.Errorf("%s has %d rows of files, %d of them with a count and a question", evening, rows, len(stops))
	}
	for _, s := range stops {
		if lines := strings.Count(read(t, s[2]), "\n"); s[1] != s[2] || !about(s[3], lines) {
			t.Errorf("%s: %s has %d lines, and links to %s", evening, s[0], lines, s[2])
		}
	}
	breakages := breakage.FindAllStringSubmatch(page, -1)
	if n := strings.Count(page, "\n## ") - 1; n != len(breakages) { // but for "Skip"
		t.Errorf("%s has %d stops and %d things to break", evening, n, len(breakages))
	}
	for _, b := range breakages {
		if gone := without(b[2]); !strings.Contains(read(t, b[1]), gone) || gone == "" {
			t.Errorf("%s does not have the lines that %s removes:\n%s", b[1], evening, gone)
		}
		if !hasTest(strings.TrimPrefix(b[3], "./") + "." + b[4]) {
			t.Errorf("%s breaks %s in %s: no such test", evening, b[4], b[3])
		}
	}
}

// without are the lines that a diff removes.
func without(diff string) string {
	var gone strings.Builder
	for line := range strings.Lines(diff) {
		if rest, found := strings.CutPrefix(line, "-"); found {
			gone.WriteString(rest)
		}
	}
	return gone.String()
}

// about reports whether a count, in tens, is within 15 percent of the lines.
func about(count string, lines int) bool {
	n, err := strconv.Atoi(strings.ReplaceAll(count, ",", ""))
	return err == nil && n%10 == 0 && 100*max(n-lines, lines-n) <= 15*lines
}
