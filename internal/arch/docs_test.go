package arch_test

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

const (
	patterns  = "docs/explanation/patterns.md"
	addAStep  = "docs/how-to/add-a-step.md" // its diffs add what it names
	index     = "docs/README.md"
	decisions = "docs/decisions/"
)

// Documents name what the repository has between backticks: code as package.Name or
// package.Type.Name, a test as package.TestName/case or TestName (also "in `package`"), files and
// folders by their paths or their names alone, and "`Name` in `folder/file.go`". The case of a test
// is not looked at.
var (
	fenced       = regexp.MustCompile("(?ms)^```.*?^```")
	inQuotes     = regexp.MustCompile("`([^`\n]+)`(?: in `([a-z0-9/]+)`)?")
	withPackage  = regexp.MustCompile(`^[a-z][a-z0-9/]*\.`)
	isTest       = regexp.MustCompile(`^(?:[a-z][a-z0-9/]*\.)?(?:Test|Fuzz|Example)(?:$|[A-Z_])\w*(?:/.+)?$`)
	isIdentifier = regexp.MustCompile(`^[a-z][a-z/]*\.[A-Z]\w*(\.[A-Z]\w*)?$`)
	isFile       = regexp.MustCompile(`^[\w.][\w./]*(?:\.(?:go|md|sql|yml|yaml|mod)|/)$`)
	inFile       = regexp.MustCompile("((?:`[\\w.]+`(?:, | and ))*`[\\w.]+`) in \\[?`([\\w/.]+\\.go)`")
	inComment    = regexp.MustCompile(`(?m)^\s*//.*\b(Test[A-Z]\w*)`)
	command      = regexp.MustCompile(`go test \./([a-z0-9/]+)[^\n` + "`" + `]*? -(?:run|fuzz)[ =]'?\^?(\w+)`)
	link         = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]+))?\)`)
	heading      = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor     = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

func TestDocs_nameWhatExists(t *testing.T) {
	t.Parallel()
	tr := readTree(t)
	for _, page := range tr.pages() {
		for _, name := range tr.missing(page, tr[page]) {
			t.Errorf("%s names %s: no such thing", page, name)
		}
	}
	for text, want := range map[string]string{
		"`TestDocs_nameWhatExists`, `TestNoDocs`":                                               "TestNoDocs",
		"`internal/arch.TestDocs_nameWhatExists/x`, `internal/arch.TestNoDocs`":                 "internal/arch.TestNoDocs",
		"`TestAppend_storesItsCause` in `ledger`, `TestProcessor` in `outbox`":                  "outbox.TestProcessor",
		"`idempotency.ExpireKeys`, `idempotency.Options.Read`, `inbox.X.Y`":                     "inbox.X.Y",
		"`internal/nowhere.Name`":                                                               "internal/nowhere.Name",
		"`key.go`, `inbox/receive.go`, `outbox/receive.go`, `migrations/`":                      "outbox/receive.go",
		"`Append` and `sleep` in [`ledger/append.go`](../ledger/append.go)":                     "sleep in ledger/append.go",
		"[Decisions](decisions/README.md), [rest](rest.md)":                                     "docs/rest.md",
		"[Decisions](decisions/README.md#decisions), [none](decisions/README.md#none)":          "docs/decisions/README.md#none",
		"```\ngo test ./idempotency -fuzz FuzzParseKey\ngo test ./idempotency -run FuzzNo\n```": "./idempotency FuzzNo",
	} {
		testrun.Same(t, "missing in "+text, []string{want}, tr.missing("docs/planted.md", text))
	}
}

// missing returns what a page names and the repository does not have.
func (tr tree) missing(page, text string) (missing []string) {
	check := func(there bool, name string) {
		if !there && page != addAStep {
			missing = append(missing, name)
		}
	}
	prose := fenced.ReplaceAllString(text, "")
	for _, match := range inQuotes.FindAllStringSubmatch(prose, -1) {
		name := match[1]
		dir, identifier, _ := strings.Cut(name, ".")
		switch {
		case isTest.MatchString(name):
			if match[2] != "" && !withPackage.MatchString(name) {
				name = match[2] + "." + name
			}
			check(tr.hasTest(name), name)
		case isIdentifier.MatchString(name):
			ours := tr.exists(dir+"/") || strings.HasPrefix(dir, "internal/")
			check(!ours || tr.declares(dir, false, declaration(path.Ext("." + identifier)[1:])), name)
		case isFile.MatchString(name):
			check(tr.exists(name), name)
		}
	}
	for _, match := range inFile.FindAllStringSubmatch(prose, -1) {
		for _, name := range inQuotes.FindAllStringSubmatch(match[1], -1) {
			check(tr.fileDeclares(match[2], path.Ext("." + name[1])[1:]), name[1]+" in "+match[2])
		}
	}
	for _, match := range link.FindAllStringSubmatch(prose, -1) {
		to := page
		if match[1] != "" {
			to = path.Join(path.Dir(page), match[1])
		}
		check(tr.exists(to), to)
		if match[2] != "" && strings.HasSuffix(to, ".md") {
			check(slices.Contains(anchors(tr[to]), match[2]), to+"#"+match[2])
		}
	}
	for _, match := range command.FindAllStringSubmatch(text, -1) {
		check(tr.declares(match[1], true, regexp.MustCompile(`(?m)^func \w*`+match[2])), "./"+match[1]+" "+match[2])
	}
	return missing
}

// fileDeclares reports whether a file, which may be named without its folder, declares a name.
func (tr tree) fileDeclares(file, name string) bool {
	for at, text := range tr {
		if (at == file || path.Base(at) == file) && declaration(name).MatchString(text) {
			return true
		}
	}
	return false
}

// anchors are the names by which GitHub links to the headings of a page.
func anchors(text string) (names []string) {
	for _, match := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		names = append(names, strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-"))
	}
	return names
}

// TestComments_nameTests: each test that a comment of the code names exists.
func TestComments_nameTests(t *testing.T) {
	t.Parallel()
	tr, named := readTree(t), 0
	for at, text := range tr {
		if !strings.HasSuffix(at, ".go") || strings.HasSuffix(at, "_test.go") {
			continue
		}
		for _, match := range inComment.FindAllStringSubmatch(text, -1) {
			if named++; !tr.hasTest(match[1]) {
				t.Errorf("a comment in %s names %s: no such test", at, match[1])
			}
		}
	}
	if named == 0 {
		t.Error("no comment names a test")
	}
}

// TestDocs_goBlocksAreOfTheExamples: every line of Go that a page shows is in an example, which is tested.
func TestDocs_goBlocksAreOfTheExamples(t *testing.T) {
	t.Parallel()
	tr, blocks := readTree(t), 0
	var examples strings.Builder
	for at, text := range tr {
		if strings.HasPrefix(at, "examples/") && strings.HasSuffix(at, ".go") {
			examples.WriteString(text)
		}
	}
	for _, page := range tr.pages() {
		for _, block := range strings.Split(tr[page], "\n```go\n")[1:] {
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

// TestDocs_areShort: a page has at most as many lines as a reader takes in, unless a test writes it,
// and is in the index; the root has at most 28 entries, which are one screen.
func TestDocs_areShort(t *testing.T) {
	t.Parallel()
	tr := readTree(t)
	for _, page := range tr.pages() {
		if lines := strings.Count(tr[page], "\n"); lines > 250 && !strings.Contains(tr[page], " below are generated from ") {
			t.Errorf("%s has %d lines, more than 250", page, lines)
		}
		name, isDoc := strings.CutPrefix(page, "docs/")
		if isDoc && page != index && !strings.HasPrefix(page, decisions) && !strings.Contains(tr[index], "("+name+")") {
			t.Errorf("%s does not link to %s", index, page)
		}
	}
	entries := make(map[string]bool)
	for at := range tr {
		if first, _, _ := strings.Cut(at, "/"); !strings.HasPrefix(first, ".") {
			entries[first] = true
		}
	}
	if len(entries) > 28 {
		t.Errorf("the root has %d entries: %v", len(entries), entries)
	}
}

// TestPatterns: docs/explanation/patterns.md has each item of the documents once, and each of their
// defects, with a test.
func TestPatterns(t *testing.T) {
	t.Parallel()
	page := read(t, patterns)
	for i := range 60 {
		wantTest(t, page, fmt.Sprintf(`%d\. `, i+1))
	}
	for i := range 15 {
		wantTest(t, page, fmt.Sprintf(`- \*\*D%d\*\*, `, i+1))
	}
}

func wantTest(t *testing.T, page, beginning string) {
	t.Helper()
	rows := regexp.MustCompile(`(?m)^`+beginning+`.*$`).FindAllString(page, -1)
	if len(rows) != 1 || !slices.ContainsFunc(inQuotes.FindAllStringSubmatch(rows[0], -1), func(m []string) bool { return isTest.MatchString(m[1]) }) {
		t.Errorf("%s has of %s the lines %q, want one with a test", patterns, beginning, rows)
	}
}

// TestDecisions: each record has a number of its own, the same sections and at most 200 words, and the
// index lists them in the order of the numbers.
func TestDecisions(t *testing.T) {
	t.Parallel()
	tr := readTree(t)
	var listed []string
	for _, page := range tr.pages() {
		name, isRecord := strings.CutPrefix(page, decisions)
		if !isRecord || name == "README.md" {
			continue
		}
		number, _, _ := strings.Cut(name, "-")
		title, _, _ := strings.Cut(strings.TrimPrefix(tr[page], "# "), "\n")
		listed = append(listed, fmt.Sprintf("- [%s](%s)", title, name))
		sections := anchors(tr[page])[1:]
		if !strings.HasPrefix(title, number+". ") || !slices.Equal(sections, []string{"context", "decision", "consequences"}) || len(strings.Fields(tr[page])) > 200 {
			t.Errorf("%s: title %q, sections %q, %d words", page, title, sections, len(strings.Fields(tr[page])))
		}
	}
	testrun.Same(t, "the index", listed, regexp.MustCompile(`(?m)^- \[\d+.*$`).FindAllString(tr[decisions+"README.md"], -1))
}

// TestDocs_nameNoTag: tags do not travel with a branch, so CHANGELOG.md alone names versions of
// payonce. The manifests of Kubernetes need one, which is the newest there.
func TestDocs_nameNoTag(t *testing.T) {
	t.Parallel()
	tr := readTree(t)
	versions := []string{"payonce@v"}
	for _, match := range regexp.MustCompile(`(?m)^## \[([0-9.]+)\]`).FindAllStringSubmatch(tr["CHANGELOG.md"], -1) {
		versions = append(versions, "v"+match[1])
	}
	if len(versions) == 1 {
		t.Fatal("CHANGELOG.md has no version")
	}
	for at, text := range tr {
		if !strings.HasSuffix(at, ".md") && at != "Dockerfile" || at == "CHANGELOG.md" {
			continue
		}
		for _, version := range versions {
			if strings.Contains(text, version) {
				t.Errorf("%s names %s: say that the version is in CHANGELOG.md", at, version)
			}
		}
	}
	if base := tr["deploy/kubernetes/base/kustomization.yaml"]; !strings.Contains(base, "newTag: "+versions[1]+"\n") {
		t.Errorf("the manifests of Kubernetes do not name the newest version of CHANGELOG.md, %s", versions[1])
	}
}
