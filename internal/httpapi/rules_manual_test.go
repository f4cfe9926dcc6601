package httpapi_test

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"
)

// table are the cells of those rows of the manual that begin as given.
func table(t *testing.T, beginning string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `"+beginning) {
			cells := strings.Split(strings.Trim(line, "| \n"), " | ")
			cells[0] = strings.Trim(cells[0], "`")
			rows = append(rows, cells)
		}
	}
	return rows
}

// TestRulesTheCallsOfTheManual: docs/http.md lists every route with its scope,
// and no other.
func TestRulesTheCallsOfTheManual(t *testing.T) {
	t.Parallel()
	server, ok := made(t, newAPI(nil, io.Discard)).Handler().(*echo.Echo)
	if !ok {
		t.Fatal("the handler is no router")
	}
	parameter := regexp.MustCompile(`:(\w+)`)
	var want []string
	for _, r := range server.Routes() {
		if r.Method != http.MethodHead { // as GET
			name := r.Method + " " + r.Path
			scope := "–"
			if needs, ok := needed()[name]; ok {
				scope = "`" + string(needs) + "`"
			}
			want = append(want, parameter.ReplaceAllString(name, "{$1}")+" "+scope)
		}
	}
	var got []string
	for _, row := range append(table(t, "GET /"), table(t, "POST /")...) {
		got = append(got, row[0]+" "+row[2])
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-routes +manual):\n%s", diff)
	}
}

// TestRulesTheProblemsOfTheManual: docs/http.md says of every type of problem
// what the other tests here expect of it.
func TestRulesTheProblemsOfTheManual(t *testing.T) {
	t.Parallel()
	got := map[string]advice{}
	for _, row := range table(t, "/problems/") {
		status, err := strconv.Atoi(strings.TrimSuffix(row[1], " or 425"))
		if err != nil || len(row) != 4 {
			t.Errorf("row %q: %v", row, err)
			continue
		}
		got[row[0]] = advice{status, row[2] == "true", row[3]}
	}
	if diff := cmp.Diff(advices(), got, cmp.AllowUnexported(advice{})); diff != "" {
		t.Errorf("problems (-tests +manual):\n%s", diff)
	}
}
