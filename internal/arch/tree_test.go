package arch_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

// root is the module's root, seen from this package.
const root = "../.."

var must = testrun.Must

// texts are the text files of the repository by their paths from the root, but for testdata and what is hidden.
var texts = sync.OnceValues(func() (map[string]string, error) {
	found := make(map[string]string)
	err := fs.WalkDir(os.DirFS(root), ".", func(at string, entry fs.DirEntry, err error) error {
		hidden := strings.HasPrefix(entry.Name(), ".") && at != "." && at != ".ci"
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (hidden || entry.Name() == "testdata"):
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		text, err := os.ReadFile(path.Join(root, at))
		found[at] = string(text)
		return err
	})
	return found, err
})

// tree are the texts of the repository.
type tree map[string]string

func readTree(tb testing.TB) tree {
	tb.Helper()
	found, err := texts()
	must(tb, err)
	return found
}

// read returns a file, also one that is hidden.
func read(t *testing.T, at string) string {
	t.Helper()
	text, err := os.ReadFile(path.Join(root, at))
	must(t, err)
	return string(text)
}

// pages are the documents that the project has beside its changelog.
func (tr tree) pages() (pages []string) {
	for at := range tr {
		if strings.HasPrefix(at, "docs/") && strings.HasSuffix(at, ".md") {
			pages = append(pages, at)
		}
	}
	slices.Sort(pages)
	return append(pages, "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")
}

// exists reports whether there is a file or a folder of a path, or a file of a name.
func (tr tree) exists(name string) bool {
	for at := range tr {
		if at == name || path.Base(at) == name || strings.HasPrefix(at, strings.TrimSuffix(name, "/")+"/") {
			return true
		}
	}
	return false
}

// declares has the functions, types, values, fields and methods of each Go file, behind its path, its name and its
// folder; those of a test behind "test FOLDER" and "test " in place of the folder.
var declares = sync.OnceValue(func() map[string]bool {
	declaration := regexp.MustCompile(`(?m)^(?:func (?:\([^)]*\) )?|type |const |var |\t+)((?:\w+, )*\w+)`)
	found := make(map[string]bool)
	files, _ := texts() // its error is readTree's
	for at, text := range files {
		places := []string{at, path.Base(at), path.Dir(at)}
		switch {
		case strings.HasSuffix(at, "_test.go"):
			places = []string{at, path.Base(at), "test " + path.Dir(at), "test "}
		case !strings.HasSuffix(at, ".go"):
			continue
		}
		for _, match := range declaration.FindAllStringSubmatch(text, -1) {
			for name := range strings.SplitSeq(match[1], ", ") {
				for _, place := range places {
					found[place+" "+name] = true
				}
			}
		}
	}
	return found
})

// hasTest reports whether there is a test, whose name may have its package before it and its case behind it. A case of
// TestDecides begins with a table of testdata.
func hasTest(name string) bool {
	dir := withPackage.FindString(name)
	function, one, _ := strings.Cut(name[len(dir):], "/")
	table, _, _ := strings.Cut(one, "/")
	there := function != "TestDecides" || table == "" || regexp.MustCompile(`(?m)^== `+regexp.QuoteMeta(table)+`( |$)`).MatchString(tables())
	return there && declares()["test "+strings.TrimSuffix(dir, ".")+" "+function]
}

// tables are those that TestDecides of fulfillment has.
var tables = sync.OnceValue(func() string {
	var all strings.Builder
	files, _ := filepath.Glob(root + "/fulfillment/testdata/*.txt")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		all.Write(text)
	}
	return all.String()
})
