package defects_test

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

const (
	decisions   = "docs/decisions/"
	recordLines = 45
	pageLines   = 250
)

// TestDecisions checks that the records are numbered without a gap, have the same sections,
// fit half a page, and are listed in the index in their order.
func TestDecisions(t *testing.T) {
	t.Parallel()
	index := read(t, decisions+"README.md")
	var records, listed []string
	for _, page := range documents(t) {
		if name, ok := strings.CutPrefix(page, decisions); ok && name != "README.md" {
			records = append(records, name)
		}
	}
	slices.Sort(records)
	for n, name := range records {
		text := read(t, decisions+name)
		if fault := recordFault(n+1, name, text); fault != "" {
			t.Errorf("%s: %s", name, fault)
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		listed = append(listed, fmt.Sprintf("- [%s](%s)", title, name))
	}
	var lines []string
	for line := range strings.Lines(index) {
		if strings.HasPrefix(line, "- [") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	testrun.Same(t, "the index, with the records as wanted", listed, lines)
}

// recordFault is what is wrong with the form of a record; empty if nothing is.
func recordFault(number int, name, text string) string {
	var sections []string
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			sections = append(sections, strings.TrimSpace(title))
		}
	}
	want := fmt.Sprintf("%03d", number)
	switch {
	case !strings.HasPrefix(name, want+"-") || path.Ext(name) != ".md":
		return "its number is not " + want
	case !strings.HasPrefix(text, "# "+want+". "):
		return "its title does not begin with " + want
	case !slices.Equal(sections, []string{"Context", "Decision", "Consequences"}):
		return fmt.Sprintf("its sections are %q", sections)
	case strings.Count(text, "\n") > recordLines:
		return fmt.Sprintf("it has more than %d lines", recordLines)
	}
	return ""
}

// TestRecordFault shows that the check of a record can fail.
func TestRecordFault(t *testing.T) {
	t.Parallel()
	const file, good = "007-a-title.md", "# 007. A title\n\n## Context\n\n## Decision\n\n## Consequences\n"
	for name, test := range map[string]struct{ file, text, want string }{
		"a good one":           {file, good, ""},
		"another file number":  {"008-a-title.md", good, "its number is not 007"},
		"another title number": {file, strings.Replace(good, "007", "008", 1), "its title does not begin with 007"},
		"a missing section":    {file, strings.Replace(good, "## Decision\n", "", 1), `its sections are ["Context" "Consequences"]`},
		"too long":             {file, good + strings.Repeat("\n", recordLines), "it has more than 45 lines"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := recordFault(7, test.file, test.text); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
