package httpapi_test

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// problem is a refusal as the contract has it.
type problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail"`
	Instance  string       `json:"instance"`
	Retryable *bool        `json:"retryable"`
	RetryWith string       `json:"retry_with"`
	Errors    []fieldError `json:"errors,omitempty"`
}

type fieldError struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

func (p problem) pointers() []string {
	var pointers []string
	for _, e := range p.Errors {
		pointers = append(pointers, e.Pointer)
	}
	return pointers
}

// advice is what a problem type says about trying again.
type advice struct {
	status    int
	retryable bool
	retryWith string
}

// manual are the cells of those rows of docs/http.md that begin as given.
func manual(beginning string) (rows [][]string) {
	text, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		panic(err)
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

// advices are the problem types as the manual has them.
var advices = sync.OnceValue(func() map[string]advice {
	all := map[string]advice{}
	for _, row := range manual("/problems/") {
		if len(row) != 4 { // the table of what to do names them too
			continue
		}
		status, err := strconv.Atoi(strings.TrimSuffix(row[1], " or 425"))
		if err != nil {
			panic(err)
		}
		all[row[0]] = advice{status, row[2] == "true", row[3]}
	}
	return all
})

// wantProblem checks that an answer is a whole problem document of a type, and
// returns it.
func wantProblem(t *testing.T, a answer, kind string) problem {
	t.Helper()
	want, known := advices()[kind]
	if !known {
		t.Fatalf("%s is no problem type", kind)
	}
	return wantProblemStatus(t, a, kind, want.status)
}

func wantProblemStatus(t *testing.T, a answer, kind string, status int) problem {
	t.Helper()
	want := advices()[kind]
	p := readProblem(t, a)
	if a.status != status || p.Status != status || p.Type != kind {
		t.Errorf("status %d, want %d and %s: %s", a.status, status, kind, a.body)
	}
	if p.Title == "" || p.Detail == "" || !strings.HasPrefix(p.Instance, "/") {
		t.Errorf("title, detail or instance is missing: %s", a.body)
	}
	if p.Retryable == nil || *p.Retryable != want.retryable || p.RetryWith != want.retryWith {
		t.Errorf("want retryable %t and retry_with %s: %s", want.retryable, want.retryWith, a.body)
	}
	if waits := a.header.Get("Retry-After"); want.retryable != (waits == "1") {
		t.Errorf("Retry-After is %q, retryable %t", waits, want.retryable)
	}
	if a.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("%s says that it is a replay", kind)
	}
	return p
}

func readProblem(t *testing.T, a answer) problem {
	t.Helper()
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type is %q, want application/problem+json", got)
	}
	var p problem
	decoder := json.NewDecoder(strings.NewReader(a.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		t.Fatalf("status %d with %q: %v", a.status, a.body, err)
	}
	return p
}

func wantPointers(t *testing.T, p problem, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, p.pointers(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("pointers (-want +got):\n%s", diff)
	}
	for _, e := range p.Errors {
		if e.Detail == "" {
			t.Errorf("%s has no detail", e.Pointer)
		}
	}
}
