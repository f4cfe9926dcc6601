package defects_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

const (
	decisions   = "docs/decisions/"
	recordWords = 200
	pageLines   = 250
)

var recordName = regexp.MustCompile(`^(\d{3})-[a-z0-9-]+\.md$`)

// TestDecisions checks that each record has a number of its own and the same sections, has at most
// 200 words, and is listed in the index in the order of the numbers.
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
	numbers := make(map[string]string, len(records))
	for _, name := range records {
		text := read(t, decisions+name)
		if fault := recordFault(name, text); fault != "" {
			t.Errorf("%s: %s", name, fault)
		}
		number, _, _ := strings.Cut(name, "-")
		if other := numbers[number]; other != "" {
			t.Errorf("%s has the number of %s", name, other)
		}
		numbers[number] = name
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
func recordFault(name, text string) string {
	var sections []string
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			sections = append(sections, strings.TrimSpace(title))
		}
	}
	number := recordName.FindStringSubmatch(name)
	switch {
	case number == nil:
		return "its name is not a number and a title"
	case !strings.HasPrefix(text, "# "+number[1]+". "):
		return "its title does not begin with " + number[1]
	case !slices.Equal(sections, []string{"Context", "Decision", "Consequences"}):
		return fmt.Sprintf("its sections are %q", sections)
	case len(strings.Fields(text)) > recordWords:
		return fmt.Sprintf("it has more than %d words", recordWords)
	}
	return ""
}

// TestRecordFault shows that the check of a record can fail.
func TestRecordFault(t *testing.T) {
	t.Parallel()
	const file, good = "007-a-title.md", "# 007. A title\n\n## Context\n\n## Decision\n\n## Consequences\n"
	for name, test := range map[string]struct{ file, text, want string }{
		"a good one":            {file, good, ""},
		"a name without number": {"a-title.md", good, "its name is not a number and a title"},
		"another file number":   {"008-a-title.md", good, "its title does not begin with 008"},
		"another title number":  {file, strings.Replace(good, "007", "008", 1), "its title does not begin with 007"},
		"a missing section":     {file, strings.Replace(good, "## Decision\n", "", 1), `its sections are ["Context" "Consequences"]`},
		"too long":              {file, good + strings.Repeat("word ", recordWords), "it has more than 200 words"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := recordFault(test.file, test.text); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
