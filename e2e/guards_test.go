package e2e_test

import (
	"encoding/json"
	"testing"
)

// TestGuards removes each guard of the lab from a payonce of its own: exactly the checks that
// its entry names are violated, and with all guards none is.
func TestGuards(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	s := newStage(t)
	stdout, err := s.demo(t, "--break", "all", "--json").Output()
	if err != nil {
		t.Errorf("the lab ended with %v and said\n%s", err, s.said(t))
	}
	var report struct {
		Guards []struct {
			Guard      string            `json:"guard"`
			Expected   []string          `json:"expected"`
			Violated   []json.RawMessage `json:"violated"`
			AsExpected bool              `json:"as_expected"`
			Timelines  []struct {
				Entries []json.RawMessage `json:"entries"`
			} `json:"timelines"`
		} `json:"guards"`
	}
	if err := json.Unmarshal(stdout, &report); err != nil {
		t.Fatalf("the lab printed %v: %s", err, stdout)
	}
	const fewest = 8
	needed, sound := 0, 0
	for _, g := range report.Guards {
		switch {
		case !g.AsExpected || len(g.Timelines) == 0 || len(g.Timelines[0].Entries) == 0:
			t.Errorf("without %s: expected %q, violated %s, %d timelines", g.Guard, g.Expected, g.Violated, len(g.Timelines))
		case len(g.Violated) == 0:
			sound++
			continue
		}
		needed++
	}
	if needed < fewest || sound != 2 {
		t.Errorf("%d guards are needed, %d runs sound", needed, sound)
	}
	s.mustBeEmpty(t)
}
