package main

import (
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/audit"
)

func TestAuditCommandLine(t *testing.T) {
	t.Parallel()
	cli, err := parse(t, "audit", "--quiet", "--no-provider")
	if diff := cmp.Diff(auditCmd{Quiet: true, NoProvider: true}, cli.Audit); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := parse(t, "audit", "--quiet", "--json"); err == nil {
		t.Error("it is to print JSON and nothing")
	}
}

func TestAuditIsQuiet(t *testing.T) {
	t.Parallel()
	quiet := func(checks ...audit.Check) string {
		var report audit.Report
		report.Add(checks...)
		return output(t, func(w io.Writer) error { return auditCmd{Quiet: true}.print(w, report) })
	}
	if got := quiet(audit.Check{Name: "streams are legal", Checked: 7}); got != "" {
		t.Errorf("it prints %q of what is in order", got)
	}
	got := quiet(
		audit.Check{Name: "streams are legal", Checked: 7},
		audit.Check{Name: "no message is stuck", Checked: 9, Violated: 3, Examples: []string{"message 1: parked", "message 2:\nparked"}},
		audit.Check{Name: "one capture per charge", Checked: 7, Violated: 1, Examples: []string{"ch_1: captured 2 times"}},
	)
	want := `no message is stuck: message 1: parked
no message is stuck: message 2:�parked
no message is stuck: and 1 more of 9
one capture per charge: ch_1: captured 2 times
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAuditSaysWhenItCouldNotPrint(t *testing.T) {
	t.Parallel()
	var report audit.Report
	report.Add(audit.Check{Name: "no message is stuck", Checked: 1, Violated: 1, Examples: []string{"message 1"}})
	for _, c := range []auditCmd{{}, {JSON: true}, {Quiet: true}} {
		if err := c.print(fullDisk{}, report); !errors.Is(err, errFull) {
			t.Errorf("%+v: the error is %v", c, err)
		}
	}
}

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }
