package arch_test

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/payonce/payonce/internal/testrun"
)

const observability = "deploy/observability/"

// observed is a file of observability, in YAML or JSON.
func observed[T any](t *testing.T, file string) (v T) {
	t.Helper()
	must(t, yaml.Unmarshal([]byte(read(t, observability+file)), &v))
	return v
}

type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Alert, Record, Expr string
			Labels, Annotations map[string]string
		}
	}
}

// TestAlerts: each alert says how urgent it is and names its section of the manual, which has no others, and a
// test of the rules makes it fire. Promtool runs these tests.
func TestAlerts(t *testing.T) {
	t.Parallel()
	var alerts, tested []string
	manual := read(t, "docs/reference/alerts.md")
	for _, group := range observed[ruleFile](t, "rules.yml").Groups {
		for _, r := range group.Rules {
			if r.Alert == "" {
				continue
			}
			alerts = append(alerts, r.Alert)
			section := strings.ToLower(r.Alert)
			if r.Annotations["runbook"] != "docs/reference/alerts.md#"+section || !slices.Contains(anchors(manual), section) {
				t.Errorf("%s does not name its runbook, or has none", r.Alert)
			}
			if r.Annotations["summary"] == "" || !has("page ticket", r.Labels["severity"]) {
				t.Errorf("%s lacks a summary or a severity", r.Alert)
			}
		}
	}
	for _, test := range observed[struct{ Tests []struct{ Name string } }](t, "rules_test.yml").Tests {
		tested = append(tested, test.Name)
	}
	if n := strings.Count(manual, "\n## "); n != len(alerts) {
		t.Errorf("there are %d runbooks of %d alerts", n, len(alerts))
	}
	testrun.Same(t, "alerts that fire in a test, with all as wanted", unique(alerts), unique(tested))

	promtool, err := exec.LookPath("promtool")
	if err != nil || testing.Short() {
		t.Skip("not run: promtool, of the Debian package prometheus, which works for seconds")
	}
	command := exec.CommandContext(t.Context(), promtool, "test", "rules", "rules_test.yml")
	command.Dir = path.Join(root, observability)
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// TestQueries_nameWhatIsServed: each metric that a rule or the dashboard queries is one that metrics.md lists, which is what
// the programs serve, with the value of its label, or is recorded by a rule.
func TestQueries_nameWhatIsServed(t *testing.T) {
	t.Parallel()
	listed, queries := []string{
		read(t, "docs/reference/metrics.md"), // which says these elsewhere or not at all:
		"- of `payonce_audit_finished_timestamp_seconds` by `scope`: tables",
		"- of `payonce_db_connections_max` by `pool`: main",
	}, []string{}
	for _, group := range observed[ruleFile](t, "rules.yml").Groups {
		for _, r := range group.Rules {
			queries, listed = append(queries, r.Expr), append(listed, "- `"+r.Record+"`: ")
		}
	}
	for _, p := range observed[struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}](t, "grafana/dashboards/payonce.json").Panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
		if len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
	}
	served := strings.Join(listed, "\n")
	values := regexp.MustCompile(`\b(payonce[:_][\w:]+)(?:\{(\w+)="(\w+)"\})?`)
	for _, query := range values.FindAllStringSubmatch(strings.Join(queries, "\n"), -1) {
		name, label, value := strings.TrimSuffix(query[1], "_bucket"), query[2], query[3]
		if !strings.Contains(served, "\n- `"+name+"`: ") {
			t.Errorf("no program serves %s", name)
		}
		hasValue := regexp.MustCompile("\n- .*`" + name + "`.*`" + label + "`.*\\b" + value + "\\b")
		if value != "" && !hasValue.MatchString(served) {
			t.Errorf("no program serves %s", query[0])
		}
	}
}
