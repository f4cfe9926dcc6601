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
//	package.TestName/case, or without the    a test; without its package it may be
//	package                                  in any, in the one that follows
//	                                         ("in `inbox`"), or in the one that the
//	                                         page names ("All tests are in `…/`")
//	TestName_{a,b}/case                      several tests
//	TestName/a_case_that_…                   a test whose name is cut
//	…/case, …_of_a_case                      another case of the test before
//	folder/file.go, file.go, folder/         files and folders
//
// Besides, the tests of commands (go test ./package -run TestName) and the files
// that a page links to.
var (
	isIdentifier = regexp.MustCompile(`^[a-z][a-z/]*\.[A-Z]\w*(\.[A-Z]\w*)?$`)
	isTest       = regexp.MustCompile(`^(?:[a-z][a-z0-9/]*\.)?(?:Test|Fuzz|Example)(?:$|[A-Z_{])[\w{},]*(?:/.+)?$`)
	withPackage  = regexp.MustCompile(`^[a-z][a-z0-9/]*\.`)
	isCase       = regexp.MustCompile(`^…[/_,]\S+$`)
	isFile       = regexp.MustCompile(`^[\w.][\w./]*(?:\.(?:go|md|sql|yml|yaml|mod)|/)$`)
	inQuotes     = regexp.MustCompile("`([^`\n]+)`(?: in `([a-z0-9/]+)`)?")
	fenced       = regexp.MustCompile("(?ms)^```.*?^```")
	inComment    = regexp.MustCompile(`\bTest[A-Z]\w*(?:/\S*\w)?`)
	allTests     = regexp.MustCompile("All tests are in `([a-z0-9/]+)/`")
	command      = regexp.MustCompile(`go test (\./[a-z0-9/]+)[^\n` + "`" + `]*? -(?:run|fuzz)[ =]'?\^?(\w+)`)
	link         = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	alternatives = regexp.MustCompile(`^(.*?)\{([^{}]*)\}(.*)$`)
)

// testsIn are the tests that a text names, one by one: each with its package, if
// the text has it.
func testsIn(text string) (tests []string) {
	elsewhere := ""
	if all := allTests.FindStringSubmatch(text); all != nil {
		elsewhere = all[1]
	}
	last := ""
	for _, match := range inQuotes.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		name, in := match[1], match[2]
		switch {
		case isTest.MatchString(name):
			if in == "" {
				in = elsewhere
			}
			if in != "" && !withPackage.MatchString(name) {
				name = in + "." + name
			}
			dir, function, _ := cutTest(name)
			last = dir + function
		case isCase.MatchString(name) && last != "":
			name = last + "/" + strings.TrimPrefix(name, "…/")
		default:
			continue
		}
		tests = append(tests, spelled(name)...)
	}
	return tests
}

// cutTest takes a name apart: "inbox.", "TestLease" and "a_case".
func cutTest(name string) (dir, function, subtest string) {
	dir = withPackage.FindString(name)
	function, subtest, _ = strings.Cut(name[len(dir):], "/")
	return dir, function, subtest
}

// spelled are the names that one name with alternatives stands for.
func spelled(name string) []string {
	match := alternatives.FindStringSubmatch(name)
	if match == nil {
		return []string{name}
	}
	var names []string
	for alternative := range strings.SplitSeq(match[2], ",") {
		names = append(names, spelled(match[1]+alternative+match[3])...)
	}
	return names
}

// missingTests are the tests that a text names and that are not there.
func missingTests(tree sources, text string) (missing []string) {
	for _, test := range testsIn(text) {
		dir, function, subtest := cutTest(test)
		name := function
		if subtest != "" {
			name += "/" + subtest
		}
		there := tree.packages[strings.TrimSuffix(dir, ".")].has(name)
		if dir == "" {
			there = tree.anyHas(name)
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
