package e2e_test

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// corePackages are those that mutants are generated in.
var corePackages = []string{"domain", "ledger", "idempotency", "inbox", "outbox", "groupcommit", "intake", "fulfillment"}

// A site is a place in the sources, and a small change of it that no person chose. Its name
// has no line number, so it stays the same while the rest of the file changes.
type site struct {
	file   string // "domain/charge.go"
	within string // the function, method, constant or variable
	change string // "a < b => a <= b"
	nth    int    // of the same changes within
	at     int    // the byte at which old begins
	old    string
	new    string
}

// name is how the site stands in the list.
func (s site) name() string {
	return fmt.Sprintf("%s | %s | %s | %d", s.file, s.within, s.change, s.nth)
}

func (s site) pkg() string { return filepath.Dir(s.file) }

// rank orders sites by a hash: arbitrary, and the same on each machine.
func (s site) rank() string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s.name()))) }

// sites are all places of a package's sources that can be changed, by rank.
func sites(t *testing.T, pkg string) []site {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", pkg, "*.go"))
	must(t, err)
	var found []site
	for _, path := range files {
		if !strings.HasSuffix(path, "_test.go") {
			found = append(found, sitesOf(t, path, pkg+"/"+filepath.Base(path))...)
		}
	}
	slices.SortFunc(found, func(a, b site) int { return cmp.Compare(a.rank(), b.rank()) })
	return found
}

// sitesOf are the sites of one file, in the order of its text.
func sitesOf(t *testing.T, path, name string) []site {
	t.Helper()
	text := readFile(t, path)
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	must(t, err)
	s := &surgeon{file: name, text: text, base: files.File(parsed.Pos()).Base(), seen: map[string]int{}}
	for _, decl := range parsed.Decls {
		s.within = declared(decl)
		ast.Inspect(decl, func(n ast.Node) bool { s.look(n); return true })
	}
	return s.sites
}

// declared is what a declaration declares.
func declared(decl ast.Decl) string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return d.Name.Name
		}
		receiver := d.Recv.List[0].Type
		if star, ok := receiver.(*ast.StarExpr); ok {
			receiver = star.X
		}
		switch of := receiver.(type) {
		case *ast.IndexExpr:
			receiver = of.X
		case *ast.IndexListExpr:
			receiver = of.X
		}
		return fmt.Sprintf("%s.%s", receiver, d.Name.Name)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				return v.Names[0].Name
			}
		}
	}
	return "-"
}

// A surgeon finds the sites of one file.
type surgeon struct {
	file, text, within string
	base               int
	seen               map[string]int
	sites              []site
}

var operators = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">", token.EQL: "!=", token.NEQ: "==",
	token.LAND: "||", token.LOR: "&&", token.ADD: "-", token.SUB: "+",
}

// silent are calls whose absence only an operator would notice.
var silent = regexp.MustCompile(`\.(Debug|Info|Warn|Error|Log|LogAttrs|Inc|Dec|Observe|Lock|Unlock|RLock|RUnlock|Done|Set|SetAttributes|RecordError|SetStatus)$`)

func (s *surgeon) look(n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if with, ok := operators[n.Op]; ok && !isNil(n.X) && !isNil(n.Y) {
			op := n.Op.String()
			s.note(s.source(n), s.source(n.X)+" "+with+" "+s.source(n.Y), int(n.OpPos)-s.base, op, with)
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			s.swap(n, s.source(n.X))
		}
	case *ast.IfStmt:
		switch n.Cond.(type) {
		case *ast.Ident, *ast.CallExpr, *ast.SelectorExpr:
			s.swap(n.Cond, "!"+s.source(n.Cond))
		}
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && !silent.MatchString(s.source(call.Fun)) && s.source(call.Fun) != "panic" {
			s.swap(n, "")
		}
	case *ast.IncDecStmt:
		s.swap(n, "")
	case *ast.AssignStmt:
		if _, field := n.Lhs[0].(*ast.SelectorExpr); field && n.Tok != token.DEFINE && len(n.Lhs) == 1 {
			s.swap(n, "")
		}
	case *ast.ReturnStmt:
		s.lookAtReturn(n)
	case *ast.BasicLit:
		s.lookAtSQL(n)
	}
}

// lookAtReturn makes a refusal an acceptance.
func (s *surgeon) lookAtReturn(n *ast.ReturnStmt) {
	if len(n.Results) == 0 {
		return
	}
	last := n.Results[len(n.Results)-1]
	if text := s.source(last); text == "err" || strings.HasPrefix(text, "fmt.Errorf(") || strings.HasPrefix(text, "Err") {
		s.note(s.source(n), "return … nil", int(last.Pos())-s.base, text, "nil")
	}
}

var (
	statement = regexp.MustCompile(`(?i)^.\s*(select|insert|update|delete|with|from|where|and) `)
	inSQL     = [][2]string{
		{" and ", " or "},
		{" <= ", " < "},
		{" < ", " <= "},
		{" > ", " >= "},
		{" for update", ""},
		{" skip locked", ""},
		{"on conflict do nothing", ""},
		{" desc", ""},
		{"not exists", "exists"},
		{" + 1", " + 0"},
		{" is null", " is not null"},
	}
)

// lookAtSQL changes one word of a statement.
func (s *surgeon) lookAtSQL(n *ast.BasicLit) {
	if n.Kind != token.STRING || !statement.MatchString(n.Value) {
		return
	}
	for _, change := range inSQL {
		for from := 0; ; {
			i := strings.Index(n.Value[from:], change[0])
			if i < 0 {
				break
			}
			at := from + i
			from = at + len(change[0])
			begin := strings.LastIndexByte(n.Value[:at], '\n') + 1
			end := from + strings.IndexByte(n.Value[from:]+"\n", '\n')
			s.note(n.Value[begin:end], n.Value[begin:at]+change[1]+n.Value[from:end], int(n.Pos())-s.base+at, change[0], change[1])
		}
	}
}

func isNil(e ast.Expr) bool {
	name, ok := e.(*ast.Ident)
	return ok && name.Name == "nil"
}

func (s *surgeon) source(n ast.Node) string { return s.text[int(n.Pos())-s.base : int(n.End())-s.base] }

// swap replaces all of n.
func (s *surgeon) swap(n ast.Node, with string) {
	s.note(s.source(n), with, int(n.Pos())-s.base, s.source(n), with)
}

// note adds a site: before and after are what a reader sees, old and with what changes
// at a byte.
func (s *surgeon) note(before, after string, at int, old, with string) {
	change := oneLine(before) + " => " + oneLine(after)
	key := s.within + change
	s.seen[key]++
	s.sites = append(s.sites, site{s.file, s.within, change, s.seen[key], at, old, with})
}

// oneLine is text in one line, cut where it is long.
func oneLine(text string) string {
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "¦")
	if letters := []rune(text); len(letters) > 90 {
		text = string(letters[:90]) + "…"
	}
	return text
}
