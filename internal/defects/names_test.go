package defects_test

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// How documents name what is in the tree, always between backticks:
//
//	package.Name, package.Type.Name          code
//	package.TestName/case, or TestName       a test, whose case is not looked at; without a
//	                                         package it may be in any, or in the one that
//	                                         follows ("in `inbox`")
//	folder/file.go, file.go, folder/         files and folders
//
// Besides, the tests of commands (go test ./package -run TestName) and the files
// that a page links to.
var (
	isIdentifier = regexp.MustCompile(`^[a-z][a-z/]*\.[A-Z]\w*(\.[A-Z]\w*)?$`)
	isTest       = regexp.MustCompile(`^(?:[a-z][a-z0-9/]*\.)?(?:Test|Fuzz|Example)(?:$|[A-Z_])\w*(?:/.+)?$`)
	withPackage  = regexp.MustCompile(`^[a-z][a-z0-9/]*\.`)
	isFile       = regexp.MustCompile(`^[\w.][\w./]*(?:\.(?:go|md|sql|yml|yaml|mod)|/)$`)
	inQuotes     = regexp.MustCompile("`([^`\n]+)`(?: in `([a-z0-9/]+)`)?")
	fenced       = regexp.MustCompile("(?ms)^```.*?^```")
	inComment    = regexp.MustCompile(`\bTest[A-Z]\w*(?:/\S*\w)?`)
	command      = regexp.MustCompile(`go test (\./[a-z0-9/]+)[^\n` + "`" + `]*? -(?:run|fuzz)[ =]'?\^?(\w+)`)
	link         = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

// testsIn are the tests that a text names: each with its package, if the text has it.
func testsIn(text string) (tests []string) {
	for _, match := range inQuotes.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		name, in := match[1], match[2]
		if !isTest.MatchString(name) {
			continue
		}
		if in != "" && !withPackage.MatchString(name) {
			name = in + "." + name
		}
		tests = append(tests, name)
	}
	return tests
}

// cutTest takes a name apart: "inbox." and "TestLease", without its case.
func cutTest(name string) (dir, function string) {
	dir = withPackage.FindString(name)
	function, _, _ = strings.Cut(name[len(dir):], "/")
	return dir, function
}

// missingTests are the tests that a text names and that are not there.
func missingTests(tree sources, text string) (missing []string) {
	for _, test := range testsIn(text) {
		dir, function := cutTest(test)
		there := tree.packages[strings.TrimSuffix(dir, ".")].has(function)
		if dir == "" {
			there = tree.anyHas(function)
		}
		if !there {
			missing = append(missing, test)
		}
	}
	for _, match := range command.FindAllStringSubmatch(text, -1) {
		tests := slices.Collect(maps.Keys(tree.packages[strings.TrimPrefix(match[1], "./")].tests))
		if !slices.ContainsFunc(tests, func(test string) bool { return strings.Contains(test, match[2]) }) {
			missing = append(missing, match[1]+" "+match[2])
		}
	}
	return missing
}

// missingNames are the code, the files and the folders that a document names and
// that are not there.
func missingNames(tree sources, document, text string) (missing []string) {
	for _, match := range inQuotes.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		name := match[1]
		switch {
		case isTest.MatchString(name):
		case isIdentifier.MatchString(name):
			dir, identifier, _ := strings.Cut(name, ".")
			if at, ours := tree.packages[dir]; ours && !at.names[identifier] || !ours && strings.HasPrefix(dir, "internal/") {
				missing = append(missing, name)
			}
		case isFile.MatchString(name):
			if !tree.files[name] {
				missing = append(missing, name)
			}
		}
	}
	for _, match := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		if to := path.Join(path.Dir(document), match[1]); !tree.files[to] && !tree.files[to+"/"] {
			missing = append(missing, to)
		}
	}
	return slices.Compact(missing)
}
