package main

import (
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// TestShowDemo_eachLine: the log of a program that ended is an example of many lines.
func TestShowDemo_eachLine(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	c := &console{stdout: &out}
	c.showDemo(harness.Audit{Checks: []harness.Check{{Name: "chaos", Violated: 1, Examples: []string{"worker-1\nfatal\x1b"}}}})
	if want := "\nchaos: worker-1\nchaos: fatal\uFFFD\n"; !strings.Contains(out.String(), want) {
		t.Errorf("got %q, want %q in it", out.String(), want)
	}
}
