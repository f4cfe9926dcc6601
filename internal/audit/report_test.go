package audit_test

import (
	"encoding/json"
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
