package fulfillment_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

// row is a charge from a history over some deliveries, which bars separate, to what each of them records. In
// testdata it is its name, the history, and for each delivery the calls to the provider with their answers, and what
// is recorded: "captured" is a capture with its outcome, "declined" a decline that returns the stock, with the reason.
// The line == above it names the table, and the type of the messages, see memory.deliver.
type row struct{ message, name, after, calls, want string }

// rows returns the rows of every table in testdata.
func rows(t *testing.T) (all []row) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	testrun.Must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		testrun.Must(t, err)
		table, message, next := "", "", ""
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(line, "\n")
			title, titled := strings.CutPrefix(line, "== ")
			after, begins := strings.CutPrefix(line, "  after ")
			switch {
			case line == "" || line[0] == '#':
			case titled:
				table, message, _ = strings.Cut(title, " ")
			case line[0] != ' ':
				all = append(all, row{message: message, name: table + "/" + line})
			case begins:
				all[len(all)-1].after, next = after, ""
			default:
				calls, want, _ := strings.Cut(line, "→")
				r := &all[len(all)-1]
				r.calls, r.want = r.calls+next+calls, r.want+next+strings.TrimSpace(want)
				next = " | "
			}
		}
	}
	return all
}

// TestDecides runs the rows of each table of testdata.
func TestDecides(t *testing.T) {
	t.Parallel()
	all := rows(t)
	if len(all) == 0 {
		t.Fatal("testdata has no table")
	}
	for _, r := range all {
		if r.after == "" {
			t.Errorf("%s has no charge", r.name)
		}
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			m := newScripted(t, r.after)
			if got := m.play(r.message, r.calls, strings.Count(r.want, "|")+1); got != r.want {
				t.Errorf("after %s %q records\n%s, want\n%s", r.after, r.calls, got, r.want)
			}
		})
	}
}
