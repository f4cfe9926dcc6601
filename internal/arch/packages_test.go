package arch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// root is the module's root, seen from this package.
const root = "../.."

// pkg is what the checks need of "go list -json".
type pkg struct {
	ImportPath   string
	Name         string
	Doc          string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// list runs go list at the module's root.
func list(tb testing.TB, args ...string) []pkg {
	tb.Helper()
	watch(tb)
	args = append([]string{"list", "-json=ImportPath,Name,Doc,Imports,TestImports,XTestImports"}, args...)
	cmd := exec.CommandContext(tb.Context(), "go", args...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	var pkgs []pkg
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := in.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			tb.Fatalf("read the answer of go %s: %v", strings.Join(args, " "), err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		tb.Fatalf("go %s listed no package", strings.Join(args, " "))
	}
	return pkgs
}

// watch opens every folder of the module. The cache of go test knows of the
// files that this process looks at, and go list is another process: without
// this a result would be kept although the tree has changed.
func watch(tb testing.TB) {
	tb.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		tb.Fatalf("walk the module: %v", err)
	}
}
