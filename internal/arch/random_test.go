package arch_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

// seeded are what math/rand/v2 has that takes a seed or a source, and its types.
var seeded = []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "PCG", "ChaCha8", "Zipf"}

var serversRandom = regexp.MustCompile(`(?i)\brandom\(\)`)

// TestTests_chooseBySeed reads every test of the repository. A failure that depends on a
// choice can be repeated only if the choice has a seed.
func TestTests_chooseBySeed(t *testing.T) {
	t.Parallel()
	read := 0
	testrun.Must(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err == nil {
			read++
			report(t, checkChoices(files, file))
		}
		return err
	}))
	if read == 0 {
		t.Error("no test was read")
	}
}

func TestTests_chooseBySeed_findsPlantedViolations(t *testing.T) {
	t.Parallel()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "planted_test.go", `package p
import "crypto/rand"
import dice "math/rand/v2"
var name = rand.Text()
var seeded = dice.New(dice.NewPCG(1, 2)).IntN(6)
var unseeded = dice.IntN(6)
var chosen = "select id from t order by RANDOM`+`() limit 1"
var id = "select gen_random_uuid()"
`, 0)
	testrun.Must(t, err)
	want := []string{
		"planted_test.go:6:16: dice.IntN has no seed: choose by testrun.Rand",
		"planted_test.go:7:14: the server's random function has no seed: choose by testrun.Rand, or by a hash of a seed",
	}
	testrun.Same(t, "violations", want, checkChoices(files, file))
}

// checkChoices returns a sentence for each place where a test chooses without a seed.
func checkChoices(files *token.FileSet, file *ast.File) (broken []string) {
	name := ""
	for _, i := range file.Imports {
		switch from, _ := strconv.Unquote(i.Path.Value); {
		case from != "math/rand/v2":
		case i.Name != nil:
			name = i.Name.Name
		default:
			name = "rand"
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			function := n.Sel.Name
			if ok && x.Name == name && !slices.Contains(seeded, function) {
				broken = append(broken, fmt.Sprintf("%s: %s.%s has no seed: choose by testrun.Rand", files.Position(n.Pos()), name, function))
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING && serversRandom.MatchString(n.Value) {
				broken = append(broken, fmt.Sprintf("%s: the server's random function has no seed: choose by testrun.Rand, or by a hash of a seed", files.Position(n.Pos())))
			}
		}
		return true
	})
	return broken
}
