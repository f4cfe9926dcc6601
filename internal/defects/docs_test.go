package defects_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

const (
	patterns = "docs/explanation/patterns.md"
	addAStep = "docs/how-to/add-a-step.md"

	items     = 60
	published = 15
)

// TestDocs compares README.md, ARCHITECTURE.md, SECURITY.md and every document under docs/ with the tree: a test, a
// function or a file that one of them names exists.
func TestDocs(t *testing.T) {
	t.Parallel()
	tree := readSources(t)
	for _, document := range append(documents(t), "README.md", "ARCHITECTURE.md", "SECURITY.md") {
		if document == patterns || document == addAStep {
			continue // see TestPatterns; the diff of the other page adds what it names
		}
		t.Run(strings.ReplaceAll(document, "/", " "), func(t *testing.T) {
			t.Parallel()
			holds(t, tree, document)
		})
	}
}

// TestComments_nameTests: each test that a comment of the code names exists.
func TestComments_nameTests(t *testing.T) {
	t.Parallel()
	tree, named := readSources(t), 0
	for at, source := range tree.packages {
		for _, comment := range source.comments {
			for _, test := range inComment.FindAllString(comment, -1) {
				if named++; !tree.anyHas(test) {
					t.Errorf("a comment in %s names %s: no such test", at, test)
				}
			}
		}
	}
	if named == 0 {
		t.Error("no comment names a test")
	}
}

// documents are the pages under docs/, by their paths from the root.
func documents(t *testing.T) (pages []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), "docs", func(at string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(at, ".md") {
			pages = append(pages, at)
		}
		return err
	})
	if err != nil || len(pages) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	return pages
}

// TestDocs_goBlocksAreOfTheExamples: every line of Go that a page shows is in an example, which is tested.
func TestDocs_goBlocksAreOfTheExamples(t *testing.T) {
	t.Parallel()
	var examples strings.Builder
	must(t, fs.WalkDir(os.DirFS(root), "examples", func(at string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(at, ".go") {
			examples.WriteString(read(t, at))
		}
		return err
	}))
	blocks := 0
	for _, page := range documents(t) {
		for _, block := range strings.Split(read(t, page), "\n```go\n")[1:] {
			shown, _, _ := strings.Cut(block, "```")
			if blocks++; !strings.Contains(examples.String(), shown) {
				t.Errorf("%s shows what no example has:\n%s", page, shown)
			}
		}
	}
	if blocks == 0 {
		t.Error("no page shows Go")
	}
}

// TestDocsThatNameNothing shows that the checks can fail: each sentence names
// what is not there, beside something that is.
func TestDocsThatNameNothing(t *testing.T) {
	t.Parallel()
	tree := readSources(t)
	for text, want := range map[string]string{
		"`TestDocs`, `TestNoDocs`":                                             "TestNoDocs",
		"`internal/defects.TestDocs`, `internal/defects.TestNoDocs`":           "internal/defects.TestNoDocs",
		"`internal/arch.TestPatterns`":                                         "internal/arch.TestPatterns",
		"`TestAppend_storesItsCause` in `ledger`, `TestProcessor` in `outbox`": "outbox.TestProcessor",
		"`idempotency.ExpireKeys`, `idempotency.Lock`":                         "idempotency.Lock",
		"`idempotency.Options.Read`, `idempotency.Options.Wait`, `inbox.X.Y`":  "inbox.X.Y",
		"`internal/nowhere.Name`":                                              "internal/nowhere.Name",
		"`key.go`, `lock.go`":                                                  "lock.go",
		"`inbox/receive.go`, `outbox/receive.go`, `migrations/`":               "outbox/receive.go",
		"`e2e/`, `e3e/`": "e3e/",
		"[Decisions](decisions/README.md), [rest](rest.md)":                                           "docs/rest.md",
		"```\ngo test ./idempotency -fuzz FuzzParseKey\ngo test ./idempotency -fuzz FuzzNothing\n```": "./idempotency FuzzNothing",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			got := append(missingTests(tree, text), missingNames(tree, "docs/planted.md", text)...)
			testrun.Same(t, "missing in "+text, []string{want}, got)
		})
	}
}

// TestPatterns also checks that docs/explanation/patterns.md is complete.
func TestPatterns(t *testing.T) {
	t.Parallel()
	text := read(t, patterns)

	t.Run("its table has every item once, each with a test", func(t *testing.T) {
		t.Parallel()
		numbered(t, patterns, items)
	})

	t.Run("it has every defect of the documents, with a test of payonce", func(t *testing.T) {
		t.Parallel()
		for i := range published {
			_, row, found := strings.Cut(text, fmt.Sprintf("\n| D%d |", i+1))
			row, _, _ = strings.Cut(row, "\n")
			if !found || len(testsIn(row)) == 0 {
				t.Errorf("D%d: row %v, tests %v", i+1, found, testsIn(row))
			}
		}
	})

	holds(t, readSources(t), patterns)
}

// holds compares what a document names with the tree.
func holds(t *testing.T, tree sources, document string) {
	t.Helper()
	text := read(t, document)
	t.Run("the tests that it names are there", func(t *testing.T) {
		t.Parallel()
		for _, name := range missingTests(tree, text) {
			t.Errorf("%s names %s: no such test", document, name)
		}
	})
	t.Run("the code and the files that it names are there", func(t *testing.T) {
		t.Parallel()
		for _, name := range missingNames(tree, document, text) {
			t.Errorf("%s names %s: no such thing", document, name)
		}
	})
}

func read(t *testing.T, document string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, document))
	must(t, err)
	return string(text)
}

// numbered checks a table of n rows, numbered from 1, of which each has four cells and a test in the last.
func numbered(t *testing.T, document string, n int) {
	t.Helper()
	_, table, _ := strings.Cut(read(t, document), "\n| no. |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(strings.TrimSpace(table), "\n")[2:]
	for i, line := range rows {
		row := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
		if row[0] != strconv.Itoa(i+1) || len(row) != 4 || len(testsIn(row[3])) == 0 {
			t.Errorf("%s: row %d has the number %s, %d cells, or no test", document, i+1, row[0], len(row))
		}
	}
	if len(rows) != n {
		t.Errorf("%s has %d rows, want %d", document, len(rows), n)
	}
}
