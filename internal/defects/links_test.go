package defects_test

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const index = "docs/README.md"

var (
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	toAnchor = regexp.MustCompile(`\]\(([^)#:\s]*)#([^)\s]+)\)`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors are the names by which GitHub links to the headings of a page.
func anchors(text string) (names []string) {
	for _, match := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		names = append(names, strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-"))
	}
	return names
}

// brokenAnchors are the links of a page to headings that a page of the project does not have.
func brokenAnchors(page, text string, read func(page string) string) (broken []string) {
	for _, match := range toAnchor.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		to := page
		if match[1] != "" {
			to = path.Join(path.Dir(page), match[1])
		}
		if strings.HasSuffix(to, ".md") && !slices.Contains(anchors(read(to)), match[2]) {
			broken = append(broken, to+"#"+match[2])
		}
	}
	return broken
}

// TestDocs_linksReachTheirHeadings compares every link to a heading with the page that it names, and
// the index with the pages.
func TestDocs_linksReachTheirHeadings(t *testing.T) {
	t.Parallel()
	for _, page := range append(documents(t), "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md") {
		for _, to := range brokenAnchors(page, read(t, page), func(page string) string { return read(t, page) }) {
			t.Errorf("%s links to %s: no such heading", page, to)
		}
		inIndex := strings.TrimPrefix(page, "docs/")
		if inIndex != page && page != index && !strings.HasPrefix(page, decisions) && !strings.Contains(read(t, index), "("+inIndex+")") {
			t.Errorf("%s does not link to %s", index, page)
		}
	}
}

// TestDocs_pagesAreShort: a page has at most as many lines as a reader takes in, unless a test writes it.
func TestDocs_pagesAreShort(t *testing.T) {
	t.Parallel()
	for _, page := range documents(t) {
		text := read(t, page)
		if lines := strings.Count(text, "\n"); lines > pageLines && !strings.Contains(text, " below are generated from ") && !strings.Contains(text, " below is generated from ") {
			t.Errorf("%s has %d lines, more than %d", page, lines, pageLines)
		}
	}
}

// TestBrokenAnchors shows that the check of a link can fail.
func TestBrokenAnchors(t *testing.T) {
	t.Parallel()
	pages := map[string]string{"docs/a.md": "# A page\n\n## The `key`, once\n", "docs/b/c.md": "[x](../a.md#the-key-once) [y](../a.md#nothing) [z](#none)"}
	got := fmt.Sprint(brokenAnchors("docs/b/c.md", pages["docs/b/c.md"], func(page string) string { return pages[page] }))
	if want := "[docs/a.md#nothing docs/b/c.md#none]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
