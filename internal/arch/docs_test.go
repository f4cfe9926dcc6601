package arch_test

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

const addAStep = "docs/how-to/add-a-step.md" // its diffs add what it names

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

// TestDocs_nameWhatExists looks at the pages, and at the tests that comments of the code name.
func TestDocs_nameWhatExists(t *testing.T) {
	t.Parallel()
	tr, named := readTree(t), 0
	for at, text := range tr {
		if !strings.HasSuffix(at, ".go") || strings.HasSuffix(at, "_test.go") {
			continue
		}
		for _, match := range inComment.FindAllStringSubmatch(text, -1) {
			if named++; !hasTest(match[1]) {
				t.Errorf("a comment in %s names %s: no such test", at, match[1])
			}
		}
	}
	if named == 0 {
		t.Error("no comment names a test")
	}
	for _, page := range tr.pages() {
		for _, name := range tr.missing(page, tr[page]) {
			t.Errorf("%s names %s: no such thing", page, name)
		}
		lines := strings.Count(tr[page], "\n")
		if lines > 250 && !strings.Contains(tr[page], " below are generated from ") {
			t.Errorf("%s has %d lines, more than 250", page, lines)
		}
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
			check(hasTest(name), name)
		case isIdentifier.MatchString(name):
			ours := tr.exists(dir+"/") || strings.HasPrefix(dir, "internal/")
			check(!ours || declares()[dir+" "+path.Ext("." + identifier)[1:]], name)
		case isFile.MatchString(name):
			check(tr.exists(name), name)
		}
	}
	for _, match := range inFile.FindAllStringSubmatch(prose, -1) {
		for _, name := range inQuotes.FindAllStringSubmatch(match[1], -1) {
			check(declares()[match[2]+" "+path.Ext("." + name[1])[1:]], name[1]+" in "+match[2])
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
		there := false
		for at := range declares() {
			test, of := strings.CutPrefix(at, "test "+match[1]+" ")
			there = there || of && strings.Contains(test, match[2])
		}
		check(there, "./"+match[1]+" "+match[2])
	}
	return missing
}

// anchors are the names by which GitHub links to the headings of a page.
func anchors(text string) (names []string) {
	for _, match := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		names = append(names, strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-"))
	}
	return names
}

// TestReadme_saysWhatThePackagesImport compares the table of README.md with what each public package, and
// the packages of this module that it links, import of other modules beside pgx. One below another is in the
// row of that.
func TestReadme_saysWhatThePackagesImport(t *testing.T) {
	t.Parallel()
	said, found, pkgs := make(map[string][]string), make(map[string][]string), list(t)
	row := regexp.MustCompile("(?m)^\\| \\[`(\\w+)`\\]\\(.*\\|(.*)\\|$")
	for _, row := range row.FindAllStringSubmatch(read(t, "README.md"), -1) {
		said[row[1]] = regexp.MustCompile("[^`, ]+").FindAllString(row[2], -1)
	}
	ofModule := regexp.MustCompile(`^(?:github\.com/)?((?:\w+\.\w+/)?[\w-]+/[\w-]+)`)
	for name := range strings.FieldsSeq(public) {
		above, _, _ := strings.Cut(name, "/")
		linked := pkgs[slices.IndexFunc(pkgs, func(p pkg) bool { return local(p.ImportPath) == name })].Deps
		for _, p := range pkgs {
			for _, at := range p.Imports {
				host, _, _ := strings.Cut(at, "/")
				others := strings.Contains(host, ".") && !under(at, module) && !under(at, "github.com/jackc/pgx")
				if others && (local(p.ImportPath) == name || slices.Contains(linked, p.ImportPath)) {
					found[above] = append(found[above], ofModule.FindStringSubmatch(at)[1])
				}
			}
		}
		found[above] = unique(found[above])
	}
	testrun.Same(t, "imports beside pgx", found, said)
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

var (
	stop     = regexp.MustCompile(`(?m)^\| \**\[([\w/.]+)\]\(.*\)\** \| ([\d,]+) \| .+\? \|$`)
	breakage = regexp.MustCompile("(?s)\nBreak it, in `([^`]+)`: [^\n]+\n\n```diff\n(.*?)```\n\n    go test ")
)

// TestEvening_isOfThisTree compares the page that walks through the code with the code: a file has
// about as many lines as the page says, within 15 percent, and an edit removes lines that are there.
// That a test then fails was tried by hand.
func TestEvening_isOfThisTree(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/explanation/one-evening.md")
	stops, breakages := stop.FindAllStringSubmatch(page, -1), breakage.FindAllStringSubmatch(page, -1)
	if n := strings.Count(page, "\n## ") - 1; n != len(breakages) || len(stops) < 20 { // but for "Skip"
		t.Errorf("it has %d stops at %d files, and %d things to break", n, len(stops), len(breakages))
	}
	for _, s := range stops {
		lines := strings.Count(read(t, s[1]), "\n")
		if n, err := strconv.Atoi(strings.ReplaceAll(s[2], ",", "")); err != nil || 100*max(n-lines, lines-n) > 15*lines {
			t.Errorf("%s has %d lines: %v", s[0], lines, err)
		}
	}
	removed := regexp.MustCompile(`(?m)^-(.*\n)`)
	for _, b := range breakages {
		var gone strings.Builder
		for _, line := range removed.FindAllStringSubmatch(b[2], -1) {
			gone.WriteString(line[1])
		}
		if !strings.Contains(read(t, b[1]), gone.String()) || gone.Len() == 0 {
			t.Errorf("%s does not have the lines that are removed:\n%s", b[1], &gone)
		}
	}
}

const register = "docs/reference/promises.md"

var (
	promise        = regexp.MustCompile("^- `([a-z.-]+)`: .*`([^` ]+)`(?: \\*([^*]+)\\*)?\n$")
	cited          = regexp.MustCompile("[Pp]romises? `([a-z.-]+)`")
	providerChecks = regexp.MustCompile(`"(provider: [^"]+)"`)
)

// TestPromises: each promise has an id of its own, a home that exists, and a witness that the audit
// has; each check of the audit is the witness of a promise; and each id that a page cites exists.
func TestPromises(t *testing.T) {
	t.Parallel()
	tr, ids, witnesses := readTree(t), make(map[string]bool), make(map[string]bool)
	checks := auditChecks(t)
	for line := range strings.Lines(read(t, register)) {
		match := promise.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		id, home, witness := match[1], match[2], match[3]
		if ids[id] {
			t.Errorf("%s: two promises have this id", id)
		}
		ids[id], witnesses[witness] = true, true
		if !withPackage.MatchString(home) || !hasTest(home) {
			t.Errorf("%s: its home %s is no test", id, home)
		}
		if witness != "" && !slices.Contains(checks, witness) {
			t.Errorf("%s: its witness %q is no check of the audit", id, witness)
		}
	}
	if len(ids) == 0 {
		t.Error("there is no promise")
	}
	for _, check := range checks {
		if !witnesses[check] {
			t.Errorf("the check %q is the witness of no promise", check)
		}
	}
	for _, page := range tr.pages() {
		for _, match := range cited.FindAllStringSubmatch(tr[page], -1) {
			if !ids[match[1]] {
				t.Errorf("%s cites the promise %s, which there is not", page, match[1])
			}
		}
	}
}

// auditChecks are the names of all checks: those that an audit of an empty database makes, and
// those that compare the ledger with the provider.
func auditChecks(t *testing.T) (names []string) {
	t.Helper()
	report, err := audit.Run(t.Context(), testdb.Open(t).Pool())
	must(t, err)
	for _, check := range report.Checks {
		names = append(names, check.Name)
	}
	for at, text := range readTree(t) {
		if path.Dir(at) != "internal/audit" || strings.HasSuffix(at, "_test.go") {
			continue
		}
		for _, match := range providerChecks.FindAllStringSubmatch(text, -1) {
			names = append(names, match[1])
		}
	}
	return names
}
