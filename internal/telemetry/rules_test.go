package telemetry_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
)

const observability = "../../observability/"

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// matches are the first groups of all matches, each once.
func matches(t *testing.T, text, pattern string) []string {
	t.Helper()
	var found []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	if len(found) == 0 {
		t.Fatalf("nothing matches %s", pattern)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func alerts(t *testing.T) []string {
	t.Helper()
	return matches(t, read(t, observability+"rules.yml"), `(?m)^ +- alert: (\w+)$`)
}

// TestEveryAlertHasARunbook checks that each alert names a section of its own in
// docs/operations.md, and that each such section is of an alert.
func TestEveryAlertHasARunbook(t *testing.T) {
	t.Parallel()
	rules, manual := read(t, observability+"rules.yml"), read(t, "../../docs/operations.md")
	_, manual, found := strings.Cut(manual, "\n## Alerts\n")
	if !found {
		t.Fatal("the manual has no section of alerts")
	}
	manual, _, _ = strings.Cut(manual, "\n## ")
	sections := matches(t, manual, `(?m)^### (\w+)$`)
	for _, name := range alerts(t) {
		if !slices.Contains(sections, name) {
			t.Errorf("%s has no runbook", name)
		}
		_, rule, _ := strings.Cut(rules, "- alert: "+name+"\n")
		rule, _, _ = strings.Cut(rule, "- alert: ")
		if want := "runbook: docs/operations.md#" + strings.ToLower(name) + "\n"; !strings.Contains(rule, want) {
			t.Errorf("%s does not name its runbook", name)
		}
		if !strings.Contains(rule, "summary: ") || !regexp.MustCompile(`severity: (page|ticket)`).MatchString(rule) {
			t.Errorf("%s lacks a summary or a severity", name)
		}
	}
	for _, name := range sections {
		if !slices.Contains(alerts(t), name) {
			t.Errorf("the runbook of %s is of no alert", name)
		}
	}
}

// TestEveryAlertFires has promtool make the condition of every alert true.
func TestEveryAlertFires(t *testing.T) {
	t.Parallel()
	tested := matches(t, read(t, observability+"rules_test.yml"), `(?m)^  - name: (\w+)$`)
	for _, name := range alerts(t) {
		if !slices.Contains(tested, name) {
			t.Errorf("nothing makes %s fire", name)
		}
	}
	testdb.Long(t, "promtool works for seconds")
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("not run: promtool, of the Debian package prometheus, is not installed")
	}
	command := exec.CommandContext(t.Context(), promtool, "test", "rules", "rules_test.yml")
	command.Dir = observability
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// named are the metrics that a text of queries names.
func named(t *testing.T, text string) []string {
	t.Helper()
	return matches(t, text, `\b(payonce_\w+)\b`)
}

// queries are those of the dashboard.
func queries(t *testing.T) string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, observability+"grafana/dashboards/payonce.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			text.WriteString(target.Expr + "\n")
		}
	}
	return text.String()
}

func TestDashboard_usesRulesThatExist(t *testing.T) {
	t.Parallel()
	records := matches(t, read(t, observability+"rules.yml"), `(?m)^ +- record: (\S+)$`)
	for _, name := range matches(t, queries(t), `\b(payonce:[\w:]+)`) {
		if !slices.Contains(records, name) {
			t.Errorf("no rule records %s", name)
		}
	}
}
