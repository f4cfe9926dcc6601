package program

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/payonce/payonce/docs/reference"
)

// Release is the newest version of CHANGELOG.md.
const Release = "v0.2.0"

// builtCommit is empty unless `go build -ldflags="-X …"` sets it. The image is built from source without
// its repository, so Go cannot record it there.
var builtCommit string

// Version returns one line that says which build a program is, such as
// "payonce v0.2.0, commit 4854c8d, go1.26.8 linux/amd64". The commit ends with +dirty where a file was
// changed, and is unknown after `go install` of a version.
func Version(name string) string {
	commit, dirty := builtCommit, ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			switch {
			case setting.Key == "vcs.revision":
				commit = cmp.Or(commit, setting.Value)
			case setting.Key == "vcs.modified" && setting.Value == "true":
				dirty = "+dirty"
			}
		}
	}
	return fmt.Sprintf("%s %s, commit %s%s, %s %s/%s", name, Release, cmp.Or(commit, "unknown"), dirty, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

const usage = `Usage: %[1]s [--help | --version]
It is configured by environment variables: %[1]s --help lists them.
`

// answer answers the arguments of a program without starting it, and returns the exit code. It
// never prints an argument that it does not know, which may be a secret.
func answer(args []string, stdout, stderr io.Writer, name string) int {
	switch {
	case len(args) == 1 && args[0] == "--version":
		fmt.Fprintln(stdout, Version(name))
	case len(args) == 1 && args[0] == "--help":
		fmt.Fprint(stdout, help(name))
	default:
		fmt.Fprintf(stderr, name+": unknown arguments\n"+usage, name)
		return 2
	}
	return 0
}

// row is a setting's in the tables of settings.md, without back quotes.
var row = regexp.MustCompile(`(?m)^\| ([A-Z_]+) \| (.*?) \| (.*?) \| (.*) \|$`)

// settingsOf returns the rows of a program's settings, or of all for "": each with its name, type, default
// and meaning from 1 on.
func settingsOf(program string) (all [][]string) {
	title := strings.NewReplacer(":", "", ",", "")
	for section := range strings.SplitSeq(strings.ReplaceAll(reference.Settings(), "`", ""), "\n## ") {
		heading, table, _ := strings.Cut(section, "\n")
		if program == "" || slices.Contains(strings.Fields(title.Replace(heading)), program) {
			all = append(all, row.FindAllStringSubmatch(table, -1)...)
		}
	}
	return all
}

// help is the text of --help.
func help(program string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Usage: %[1]s [--help | --version]\n\n%[1]s is configured by environment variables. A secret may also be the content of the\nfile that the variable with _FILE behind its name names.\n", program)
	for _, s := range settingsOf(program) {
		fmt.Fprintf(&text, "\n  %s (%s, %s)\n    %s\n", s[1], s[2], cmp.Or(s[3], "empty"), s[4])
	}
	return text.String()
}

// Bounds of what is taken for a misspelled setting: short names that differ in two characters
// are other words.
const (
	shortestName = 6
	longName     = 12
)

// alike are names that others use and that differ little from a setting.
var alike = []string{"API_URL", "LOGLEVEL"}

// misspelled refuses a variable that differs by an edit, or from a long name by two, from one of the
// names that is not set, and is no setting of any program.
// Names of OpenTelemetry are left to its libraries.
func misspelled(environ map[string]string, names []string) error {
	known := slices.Concat(alike, names)
	for _, s := range settingsOf("") {
		known = append(known, s[1], s[1]+"_FILE")
	}
	for _, given := range slices.Sorted(maps.Keys(environ)) {
		if len(given) < shortestName || slices.Contains(known, given) || strings.HasPrefix(given, "OTEL_") {
			continue
		}
		for _, name := range names {
			edits := 1
			if len(name) >= longName {
				edits = 2
			}
			if _, isSet := environ[name]; name != "" && !isSet && within(edits, name, given) {
				return fmt.Errorf("%s is not a setting, and %s is: correct the name, or remove the variable", given, name)
			}
		}
	}
	return nil
}

// variables are the names of a struct's settings.
func variables(settings reflect.Type) (names []string) {
	for _, field := range reflect.VisibleFields(settings) {
		name := variable(field)
		names = append(names, name)
		if name != "" && field.Type == reflect.TypeFor[Secret]() {
			names = append(names, name+"_FILE")
		}
	}
	return names
}

// within reports whether so many edits turn one text into the other: a byte is inserted, removed or
// replaced, or two side by side change places.
func within(edits int, a, b string) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	if a == "" || b == "" || edits == 0 {
		return len(a)+len(b) <= edits
	}
	edits--
	return within(edits, a[1:], b) || within(edits, a, b[1:]) || within(edits, a[1:], b[1:]) ||
		len(a) > 1 && len(b) > 1 && a[:2] == b[1:2]+b[:1] && within(edits, a[2:], b[2:])
}
