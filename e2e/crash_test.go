package e2e_test

import (
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// TestCrashLab takes each action of the crash lab in a demo that is kept up. Each says what it
// did, and the audit still holds. When the demo ends, nothing of the guard lab is left.
func TestCrashLab(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	s := newStage(t)
	command := s.demo(t, "--keep")
	commands, err := command.StdinPipe()
	must(t, err)
	must(t, command.Start())
	find := func(pattern string) string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(s.said(t))
		if found == nil {
			return ""
		}
		return found[1]
	}
	await.Progress(t, "the demo lists its actions", func() (string, bool) { return s.said(t), find(`type one of: (.+)\n`) != "" })
	actions := strings.Split(find(`type one of: (.+)\n`), ", ")
	if len(actions) != 10 {
		t.Errorf("there are the actions %q", actions)
	}
	for _, action := range append(actions, "no-such-action") {
		if _, err := fmt.Fprintln(commands, action); err != nil {
			t.Fatal(err)
		}
		await.True(t, action+" says what it did", func() bool { return find(`(?m)^`+action+`: (.+)$`) != "" })
		if said := find(`(?m)^` + action + `: (.+)$`); strings.HasPrefix(said, "failed") != (action == "no-such-action") {
			t.Errorf("%s: %s", action, said)
		}
	}
	if said := find(`(?m)^send-10: (.+)$`); !strings.HasPrefix(said, "10 requests") || !strings.Contains(said, " 1 different answer;") {
		t.Errorf("send-10: %s", said)
	}
	env := map[string]string{
		"DATABASE_URL": find(`(?m)^  database +(\S+)$`), "STRIPE_SECRET_KEY": "sk_test_demo", "STRIPE_API_BASE": find(`(?m)^  sandbox +(\S+)$`),
	}
	audit, err := harness.ReadAudit(harness.Run(t.Context(), env, binaries(t).Payonce, "audit", "--json"))
	if err != nil || !audit.OK {
		t.Errorf("the audit finds %s, %v", audit.Violated(), err)
	}
	const guard = "idempotency_keys_once"
	if _, err := fmt.Fprintln(commands, guard); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the guard lab runs", func() bool { return find(`(?m)^`+guard+`: (without .+)$`) != "" })
	must(t, command.Process.Signal(syscall.SIGINT))
	s.mustBeEmpty(t)
}
