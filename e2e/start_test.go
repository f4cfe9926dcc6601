package e2e_test

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/fleet"
)

// TestStart_unsafeSettings_areRefused: a program that cannot run with its settings
// logs one sentence that names the setting, and exits with 1. The tests of the
// programs have every setting.
func TestStart_unsafeSettings_areRefused(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	server, b := sharedServer(t), binaries(t)
	if _, _, err := server.templates(t.Context(), b); err != nil { // makes the server's roles
		t.Fatal(err)
	}
	good := map[string]string{
		"DATABASE_URL":      server.database(t, "start"),
		"STRIPE_SECRET_KEY": "sk_test_" + unique(),
		"STRIPE_API_BASE":   "http://127.0.0.1:1",
	}
	for _, c := range []struct {
		name    string
		program string
		change  map[string]string // of an environment that is good; empty: not set
		says    string
	}{
		{"an api without a database", b.API, map[string]string{"DATABASE_URL": ""}, "DATABASE_URL"},
		{"an api in plain text over a network", b.API, map[string]string{"DATABASE_URL": "postgres://payonce@192.0.2.1/payonce?sslmode=disable"}, "DATABASE_URL"},
		{"an api on an address that is none", b.API, map[string]string{"HTTP_ADDR": "192.0.2.1:1"}, "HTTP_ADDR"},
		{"a worker without the provider's key", b.Worker, map[string]string{"STRIPE_SECRET_KEY": ""}, "STRIPE_SECRET_KEY"},
		{"a worker that forgets messages before they stop coming", b.Worker, map[string]string{"INBOX_RETENTION": "24h", "OUTBOX_RETENTION": "24h"}, "INBOX_RETENTION"},
		{"a worker with a network that is none", b.Worker, map[string]string{"WEBHOOK_ALLOW_CIDRS": "10.0.0.0/8,localhost"}, "WEBHOOK_ALLOW_CIDRS"},
		{"a sandbox without a database", b.Sandbox, map[string]string{"DATABASE_URL": ""}, "DATABASE_URL"},
	} {
		t.Run(c.name+" refuses", func(t *testing.T) {
			t.Parallel()
			env := maps.Clone(good)
			maps.Copy(env, c.change)
			mustRefuse(t, c.program, env, c.says)
		})
	}

	t.Run("a worker on a database without tables refuses", func(t *testing.T) {
		t.Parallel()
		mustRefuse(t, b.Worker, good, "payonce migrate")
	})
	t.Run("an api on a database without tables is alive and not ready", func(t *testing.T) {
		t.Parallel()
		p, err := fleet.Start(bounded(t), fleet.Program{
			Name: "api", Path: b.API, Log: t.TempDir(), Env: map[string]string{"DATABASE_URL": server.database(t, "empty")},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stop(t, p) })
		mustAnswer(t, p, "/healthz", http.StatusOK)
		mustAnswer(t, p, "/readyz", http.StatusServiceUnavailable)
	})
	t.Run("a database that forgets commits is refused", func(t *testing.T) {
		t.Parallel()
		env := maps.Clone(good)
		env["DATABASE_URL"] = withParameters(t, good["DATABASE_URL"], map[string]string{"synchronous_commit": "off"})
		for _, program := range []string{b.API, b.Worker} {
			mustRefuse(t, program, env, "synchronous_commit")
		}
	})
	t.Run("a server that does not force its writes is refused", func(t *testing.T) {
		t.Parallel()
		_, unsafe := ownServer(t, local.Options{})
		env := maps.Clone(good)
		env["DATABASE_URL"] = unsafe.database(t, "unsafe")
		for _, program := range []string{b.API, b.Worker} {
			mustRefuse(t, program, env, "fsync")
		}
		if _, stderr, err := run(t, b.Payonce, env, "migrate"); err == nil || !strings.Contains(stderr.String(), "fsync") {
			t.Errorf("migrate ended with %v and printed %q", err, stderr.String())
		}
	})
}

// run runs a program that ends by itself.
func run(t *testing.T, program string, env map[string]string, args ...string) (stdout, stderr *bytes.Buffer, err error) {
	t.Helper()
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	command := exec.CommandContext(bounded(t), program, args...)
	command.Env = []string{"HTTP_ADDR=127.0.0.1:0", "HOME=" + os.Getenv("HOME"), "PATH=" + os.Getenv("PATH")}
	for name, value := range env {
		if value != "" {
			command.Env = append(command.Env, name+"="+value)
		}
	}
	command.Stdout, command.Stderr = stdout, stderr
	return stdout, stderr, command.Run()
}

func mustRefuse(t *testing.T, program string, env map[string]string, says string) {
	t.Helper()
	stdout, stderr, err := run(t, program, env)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it ended with %v, want exit code 1: %s", err, stderr.String())
	}
	if stdout.Len() > 0 {
		t.Errorf("it printed on stdout: %s", stdout.String())
	}
	var last logEntry
	for line := range bytes.Lines(stderr.Bytes()) {
		last = mustBeLog(t, program, line)
		for _, secret := range []string{databasePassword, env["STRIPE_SECRET_KEY"]} {
			if secret != "" && bytes.Contains(line, []byte(secret)) {
				t.Errorf("it logs a secret: %s", line)
			}
		}
	}
	if last.Level != "ERROR" || !strings.Contains(last.Message, says) {
		t.Errorf("its last log line is %s %q, want a sentence with %s", last.Level, last.Message, says)
	}
}
