package defects_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocs_filesDeclareWhatPagesFindInThem: where a page says "`Append` in `ledger/append.go`",
// that file declares it. The file may be a link, and may be named without its folder.
func TestDocs_filesDeclareWhatPagesFindInThem(t *testing.T) {
	t.Parallel()
	declared, found := declarations(t), 0
	for _, page := range append(documents(t), "README.md", "ARCHITECTURE.md", "SECURITY.md") {
		if page == addAStep {
			continue // the files of its diffs
		}
		n, undeclared := undeclaredIn(declared, read(t, page))
		found += n
		for _, sentence := range undeclared {
			t.Errorf("%s: %s", page, sentence)
		}
	}
	if found == 0 {
		t.Error("no page says what is in a file")
	}
	_, planted := undeclaredIn(declared, "`Append` and `sleep` in [`ledger/append.go`](ledger/append.go), `Consume` in `processor.go`, `go` in `none.go`")
	want := []string{"`sleep` is not in ledger/append.go", "`Consume` is not in processor.go", "`go` is not in none.go"}
	if diff := cmp.Diff(want, planted); diff != "" {
		t.Errorf("planted (-want +got):\n%s", diff)
	}
}

var (
	inFile = regexp.MustCompile("((?:`[\\w.]+`(?:, | and ))*`[\\w.]+`) in \\[?`([\\w/.]+\\.go)`")
	quoted = regexp.MustCompile("`([\\w.]+)`")
)

// undeclaredIn counts what a text finds in files, and returns a sentence for each that is not there.
func undeclaredIn(declared map[string][]string, text string) (found int, undeclared []string) {
	for _, match := range inFile.FindAllStringSubmatch(text, -1) {
		for _, name := range quoted.FindAllStringSubmatch(match[1], -1) {
			if found++; !slices.Contains(declared[match[2]], path.Ext("." + name[1])[1:]) {
				undeclared = append(undeclared, fmt.Sprintf("%s is not in %s", name[0], match[2]))
			}
		}
	}
	return found, undeclared
}

// declarations are the functions, methods, types, fields and values of each Go file, by its path and by
// its name alone.
func declarations(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	must(t, fs.WalkDir(os.DirFS(root), ".", func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && at != "."):
			return fs.SkipDir
		case !strings.HasSuffix(at, ".go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, at), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		var names []string
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				names = append(names, n.Name.Name)
			case *ast.TypeSpec:
				names = append(names, n.Name.Name)
			case *ast.ValueSpec:
				for _, name := range n.Names {
					names = append(names, name.Name)
				}
			case *ast.StructType:
				for _, field := range n.Fields.List {
					for _, name := range field.Names {
						names = append(names, name.Name)
					}
				}
			}
			return true
		})
		found[at], found[path.Base(at)] = names, append(found[path.Base(at)], names...)
		return nil
	}))
	return found
}

// TestDocs_nameNoTag: tags do not travel with a branch, so CHANGELOG.md alone names versions of
// payonce. The manifests of Kubernetes need one, which is the newest there.
func TestDocs_nameNoTag(t *testing.T) {
	t.Parallel()
	var versions []string
	for _, heading := range regexp.MustCompile(`(?m)^## \[([0-9.]+)\]`).FindAllStringSubmatch(read(t, "CHANGELOG.md"), -1) {
		versions = append(versions, "v"+heading[1])
	}
	if len(versions) == 0 {
		t.Fatal("CHANGELOG.md has no version")
	}
	pages := append(documents(t), "README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "Dockerfile")
	examples, err := fs.Glob(os.DirFS(root), "examples/*/README.md")
	must(t, err)
	for _, page := range append(pages, examples...) {
		for _, version := range append(versions, "payonce@v") {
			if strings.Contains(read(t, page), version) {
				t.Errorf("%s names %s: say that the version is in CHANGELOG.md", page, version)
			}
		}
	}
	if base := read(t, "deploy/kubernetes/base/kustomization.yaml"); !strings.Contains(base, "newTag: "+versions[0]+"\n") {
		t.Errorf("the manifests of Kubernetes do not name the newest version of CHANGELOG.md, %s", versions[0])
	}
}

// TestRoot_isShort: the root has at most 28 entries, of which none is hidden, so a reader sees
// the tree on one screen.
func TestRoot_isShort(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(root)
	must(t, err)
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") })
	if len(entries) > 28 {
		t.Errorf("the root has %d entries: %v", len(entries), entries)
	}
}
