package fulfillment_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// row is a charge from a history over some deliveries, which bars separate, to what each of them records. In
// testdata it is its name, the history, and for each delivery the calls to the provider with their answers, and what
// is recorded: "captured" is a capture with its outcome, "declined" a decline that returns the stock, with the reason.
// The line == above it names the test, and the type of the messages, see memory.deliver.
type row struct{ message, name, after, calls, want string }

// tables are the rows of each test.
var tables = sync.OnceValue(func() map[string][]row {
	all := map[string][]row{}
	files, _ := filepath.Glob("testdata/*.txt")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		test, message, next := "", "", ""
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(line, "\n")
			rows := all[test]
			title, titled := strings.CutPrefix(line, "== ")
			after, begins := strings.CutPrefix(line, "  after ")
			switch {
			case line == "" || line[0] == '#':
			case titled:
				test, message, _ = strings.Cut(title, " ")
			case line[0] != ' ':
				all[test] = append(rows, row{message: message, name: line})
			case begins:
				rows[len(rows)-1].after, next = after, ""
			default:
				calls, want, _ := strings.Cut(line, "→")
				r := &rows[len(rows)-1]
				r.calls, r.want = r.calls+next+calls, r.want+next+strings.TrimSpace(want)
				next = " | "
			}
		}
	}
	return all
})

// decides runs the rows of a test.
func decides(t *testing.T) {
	t.Helper()
	if len(tables()[t.Name()]) == 0 {
		t.Fatal("there is no such table")
	}
	for _, r := range tables()[t.Name()] {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			m := newScripted(t, r.after)
			if got := m.play(r.message, r.calls, strings.Count(r.want, "|")+1); got != r.want {
				t.Errorf("after %s %q records\n%s, want\n%s", r.after, r.calls, got, r.want)
			}
		})
	}
}

func TestTables_areOfTests(t *testing.T) {
	t.Parallel()
	var code strings.Builder
	files, _ := filepath.Glob("*_test.go")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	for name := range tables() {
		test, _, _ := strings.Cut(name, "/")
		if !strings.Contains(code.String(), "func "+test+"(t *testing.T) {") {
			t.Errorf("testdata has rows of %s, which is no test", name)
		}
	}
}
