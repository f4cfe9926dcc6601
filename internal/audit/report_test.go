package audit_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/audit"
)

func TestReport_Add(t *testing.T) {
	t.Parallel()
	var r audit.Report
	r.Add(audit.Check{Name: "one", Checked: 3})
	if !r.OK {
		t.Error("a report whose checks are in order is not")
	}
	r.Add(audit.Check{Name: "two", Checked: 3, Violated: 1}, audit.Check{Name: "three"})
	if r.OK || len(r.Checks) != 3 {
		t.Errorf("got %+v", r)
	}
}

func TestReport_as_JSON(t *testing.T) {
	t.Parallel()
	r := audit.Report{}
	r.Add(audit.Check{Name: "streams are legal", Checked: 2, Violated: 1, Examples: []string{"ch_1: why"}})
	got, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"ok":false,"checks":[{"name":"streams are legal","checked":2,"violated":1,"examples":["ch_1: why"]}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReport_WriteTable(t *testing.T) {
	t.Parallel()
	var r audit.Report
	r.Add(
		audit.Check{Name: "streams are legal", Checked: 12345},
		audit.Check{Name: "one capture per charge", Checked: 200, Violated: 2, Examples: []string{"ch_1: captured 2 times", "ch_2:\x1b[2J\tcaptured"}},
		audit.Check{Name: "no message is stuck", Checked: 400, Violated: 1, Examples: []string{"message 1"}},
	)
	var got strings.Builder
	if err := r.WriteTable(&got); err != nil {
		t.Fatal(err)
	}
	want := `CHECK                   CHECKED  VIOLATED  RESULT
streams are legal       12345    0         ok
one capture per charge  200      2         VIOLATED
no message is stuck     400      1         VIOLATED

one capture per charge, for example
  ch_1: captured 2 times
  ch_2:�[2J�captured

no message is stuck, for example
  message 1
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestReport_WriteTable_says_when_it_could_not(t *testing.T) {
	t.Parallel()
	if err := (audit.Report{}).WriteTable(fullDisk{}); !errors.Is(err, errFull) {
		t.Errorf("got %v", err)
	}
}
