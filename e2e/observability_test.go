package e2e_test

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

const observability = "../deploy/observability/"

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(path))
	must(t, err)
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
	return matches(t, readFile(t, observability+"rules.yml"), `(?m)^ +- alert: (\w+)$`)
}

// TestEveryAlertHasARunbook checks that each alert names a section of its own in
// docs/reference/alerts.md, and that each such section is of an alert.
func TestEveryAlertHasARunbook(t *testing.T) {
	t.Parallel()
	rules, manual := readFile(t, observability+"rules.yml"), readFile(t, "../docs/reference/alerts.md")
	sections := matches(t, manual, `(?m)^## (\w+)$`)
	for _, name := range alerts(t) {
		if !slices.Contains(sections, name) {
			t.Errorf("%s has no runbook", name)
		}
		_, rule, _ := strings.Cut(rules, "- alert: "+name+"\n")
		rule, _, _ = strings.Cut(rule, "- alert: ")
		if want := "runbook: docs/reference/alerts.md#" + strings.ToLower(name) + "\n"; !strings.Contains(rule, want) {
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

// TestEveryAlertFires looks that something makes the condition of every alert true. With -every promtool does.
func TestEveryAlertFires(t *testing.T) {
	t.Parallel()
	tested := matches(t, readFile(t, observability+"rules_test.yml"), `(?m)^  - name: (\w+)$`)
	for _, name := range alerts(t) {
		if !slices.Contains(tested, name) {
			t.Errorf("nothing makes %s fire", name)
		}
	}
	if !*every {
		t.Skip("not run: promtool, which works for seconds (-every)")
	}
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

// queries are those of the dashboard.
func queries(t *testing.T) string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal([]byte(readFile(t, observability+"grafana/dashboards/payonce.json")), &dashboard))
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

// TestPrograms_serveWhatTheRulesQuery checks that the api or the worker serves every metric
// that a rule or the dashboard names, with every value of a label that is named without a
// pattern, and that a rule records what the dashboard takes from rules.
func TestPrograms_serveWhatTheRulesQuery(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1})
	d.payonce(t, "audit")
	fetch(t, d.APIs[0].URL()+"/v1/charges/ch_1") // a request that can be counted
	// The worker has read its figures.
	testrun.True(t, "the worker reads the outbox", func() bool {
		return strings.Contains(fetch(t, d.Workers[0].URL()+"/metrics"), "payonce_outbox_unread_")
	})
	var all strings.Builder
	for _, p := range d.services() {
		body := fetch(t, p.URL()+"/metrics")
		all.WriteString(body)
		if !strings.Contains(body, "\ngo_goroutines ") || !strings.Contains(body, "\nprocess_resident_memory_bytes ") {
			t.Errorf("%s serves nothing about the process", p.Name())
		}
	}
	text := all.String()
	served := matches(t, text, `(?m)^(payonce_\w+)`)
	rules, shown := readFile(t, observability+"rules.yml"), queries(t)
	records := matches(t, rules, `(?m)^ +- record: (\S+)$`)
	for _, name := range matches(t, shown, `\b(payonce:[\w:]+)`) {
		if !slices.Contains(records, name) {
			t.Errorf("no rule records %s", name)
		}
	}
	for _, name := range matches(t, rules+shown, `\b(payonce_\w+)\b`) {
		if !slices.Contains(served, name) {
			t.Errorf("no program serves %s", name)
		}
	}
	for _, queried := range regexp.MustCompile(`(payonce_\w+)\{(\w+="\w+")`).FindAllStringSubmatch(rules, -1) {
		if !regexp.MustCompile(`(?m)^` + queried[1] + `\{.*\b` + queried[2]).MatchString(text) {
			t.Errorf("no program serves %s with %s", queried[1], queried[2])
		}
	}
}

// fetch reads what needs no API key. It is "" unless the status is 200.
func fetch(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(bounded(t), http.MethodGet, url, http.NoBody)
	must(t, err)
	request.Close = true
	got, err := harness.Exchange(http.DefaultClient, request)
	if err != nil || got.Status != http.StatusOK {
		return ""
	}
	return string(got.Body)
}
