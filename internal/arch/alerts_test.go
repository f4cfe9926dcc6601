package arch_test

import (
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/payonce/payonce/internal/stripe"
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
	for _, group := range observed[ruleFile](t, "rules.yml").Groups {
		for _, r := range group.Rules {
			if r.Alert == "" {
				continue
			}
			alerts = append(alerts, r.Alert)
			if r.Annotations["runbook"] != "docs/reference/alerts.md#"+strings.ToLower(r.Alert) {
				t.Errorf("%s does not name its runbook", r.Alert)
			}
			if r.Annotations["summary"] == "" || !has("page ticket", r.Labels["severity"]) {
				t.Errorf("%s lacks a summary or a severity", r.Alert)
			}
		}
	}
	for _, test := range observed[struct{ Tests []struct{ Name string } }](t, "rules_test.yml").Tests {
		tested = append(tested, test.Name)
	}
	sections := firsts(read(t, "docs/reference/alerts.md"), `(?m)^## (\w+)$`)
	testrun.Same(t, "sections of the manual, with the alerts as wanted", unique(alerts), unique(sections))
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

// firsts are the first groups of all matches.
func firsts(text, pattern string) (found []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	return found
}

// TestQueries_nameWhatIsServed: each metric that a rule or the dashboard queries is one that metrics.md lists, which is what
// the programs serve, with the value of its label, or is recorded by a rule.
func TestQueries_nameWhatIsServed(t *testing.T) {
	t.Parallel()
	served, queries := read(t, "docs/reference/metrics.md")+"\n- `state`: "+strings.Join(stripe.Circuits(), " "), ""
	for _, group := range observed[ruleFile](t, "rules.yml").Groups {
		for _, r := range group.Rules {
			queries += r.Expr + "\n"
			served += "\n- `" + r.Record + "`: "
		}
	}
	for _, p := range observed[struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}](t, "grafana/dashboards/payonce.json").Panels {
		for _, target := range p.Targets {
			queries += target.Expr + "\n"
		}
		if len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
	}
	values := regexp.MustCompile(`\b(payonce[:_][\w:]+)(?:\{(\w+)="(\w+)"\})?`)
	for _, query := range values.FindAllStringSubmatch(queries, -1) {
		name, label, value := strings.TrimSuffix(query[1], "_bucket"), query[2], query[3]
		if !strings.Contains(served, "\n- `"+name+"`: ") {
			t.Errorf("no program serves %s", name)
		}
		listed := regexp.MustCompile("\n- .*`" + label + "`.*\\b" + value + "\\b")
		if value != "" && label != "pool" && !listed.MatchString(served) { // there is one pool
			t.Errorf("no program serves %s", query[0])
		}
	}
}
