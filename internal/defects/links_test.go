package defects_test

import (
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
func brokenAnchors(t *testing.T, page string) (broken []string) {
	t.Helper()
	for _, match := range toAnchor.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, page), ""), -1) {
		to := page
		if match[1] != "" {
			to = path.Join(path.Dir(page), match[1])
		}
		if strings.HasSuffix(to, ".md") && !slices.Contains(anchors(read(t, to)), match[2]) {
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
		for _, to := range brokenAnchors(t, page) {
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
