package arch

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update-docs", false, "write the generated sections of docs/reference")

// Section compares a section of a page in docs/reference with its generated text, or writes
// the section if the test has the flag -update-docs. What stands above the first section of
// a page is written by hand.
func Section(tb testing.TB, page, title, text string) {
	tb.Helper()
	file := filepath.Join(folder(), page)
	content, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	written, wanted := replaced(string(content), title, text)
	switch {
	case written == wanted:
	case !*update:
		tb.Errorf("docs/reference/%s is not what the code says; CONTRIBUTING.md has the command that writes it (-written +generated):\n%s",
			page, cmp.Diff(strings.Split(written, "\n"), strings.Split(wanted, "\n")))
	default:
		if err := os.WriteFile(file, []byte(wanted), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
}

// replaced returns a page as it is, and as it is with the section.
func replaced(page, title, text string) (written, wanted string) {
	const heading = "\n## "
	sections := strings.Split(page, heading)
	i := slices.IndexFunc(sections, func(s string) bool { return strings.HasPrefix(s, title+"\n") })
	if i < 0 {
		i, sections = len(sections), append(sections, "")
	}
	sections[i] = title + "\n\n" + strings.TrimSpace(text) + "\n"
	return page, strings.Join(sections, heading)
}

// folder is docs/reference, seen from a package one or two folders below the module's.
func folder() string {
	if _, err := os.Stat("../../docs/reference"); err == nil {
		return "../../docs/reference"
	}
	return "../docs/reference"
}

// Table returns a table of Markdown and a blank line, or nothing if it has no rows.
func Table(header []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	line := func(cells []string) {
		b.WriteString("|")
		for _, cell := range cells {
			b.WriteString(" " + strings.NewReplacer("|", `\|`, "\n", " ").Replace(cell) + " |")
		}
		b.WriteString("\n")
	}
	line(header)
	b.WriteString(strings.Repeat("|---", len(header)) + "|\n")
	for _, row := range rows {
		line(row)
	}
	return b.String() + "\n"
}

// Code returns the text in backticks, or nothing if there is none.
func Code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// List returns a list of Markdown and a blank line, or nothing if it has no rows: of each row the
// first cell names what the others say.
func List(rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	for _, row := range rows {
		b.WriteString("- " + row[0] + ": " + strings.ReplaceAll(strings.Join(row[1:], " "), "\n", " ") + "\n")
	}
	return b.String() + "\n"
}
