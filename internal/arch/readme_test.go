package arch_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

const pgx = "jackc/pgx"

// TestReadme_saysWhatThePackagesImport compares the table of README.md with what each package, and
// the packages of this module that it links, import of other modules.
func TestReadme_saysWhatThePackagesImport(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../README.md")
	testrun.Must(t, err)
	said := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| \\[`(\\w+)`\\]\\(\\w+\\) \\|[^|]*\\|([^|]*)\\|$").FindAllStringSubmatch(string(page), -1) {
		said[row[1]] = strings.TrimSpace(row[2])
	}
	found := map[string]string{}
	for name := range strings.FieldsSeq(public) {
		var modules []string
		for _, m := range importedModules(list(t, "-deps", "./"+name)) {
			modules = append(modules, "`"+m+"`")
		}
		if !slices.Contains(modules, "`"+pgx+"`") {
			t.Errorf("%s does not import pgx", name)
		}
		modules = slices.DeleteFunc(modules, func(m string) bool { return m == "`"+pgx+"`" })
		found[name] = strings.Join(modules, ", ")
	}
	testrun.Same(t, "imports beside pgx", found, said)
}

// importedModules are the modules of others that packages of this module import, without
// host and major version.
func importedModules(linked []pkg) (modules []string) {
	for _, p := range linked {
		for _, path := range p.Imports {
			if i := slices.IndexFunc(linked, func(l pkg) bool { return l.ImportPath == path }); under(p.ImportPath, module) && i >= 0 && linked[i].Module.Path != module {
				modules = append(modules, major.ReplaceAllString(strings.TrimPrefix(linked[i].Module.Path, "github.com/"), ""))
			}
		}
	}
	return slices.DeleteFunc(unique(modules), func(m string) bool { return m == "" }) // of the standard library
}

var major = regexp.MustCompile(`/v[0-9]+$`)
