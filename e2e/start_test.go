package e2e_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// TestStart_unsafeSettings_areRefused: a program that may do more to the database than its role
// logs one sentence, and exits with 1. The tests of the programs have every setting.
func TestStart_unsafeSettings_areRefused(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	server, b := sharedServer(t), binaries(t)
	if _, err := server.template(t.Context(), b); err != nil { // makes the server's roles
		t.Fatal(err)
	}
	database := server.database(t, "start")
	for _, program := range []string{b.API, b.Worker} {
		secret := "sk_test_" + unique()
		var stdout, stderr bytes.Buffer
		command := exec.CommandContext(bounded(t), program)
		command.Env = []string{
			"HTTP_ADDR=127.0.0.1:0", "DATABASE_URL=" + database, "STRIPE_SECRET_KEY=" + secret, "STRIPE_API_BASE=http://127.0.0.1:1",
		}
		command.Stdout, command.Stderr = &stdout, &stderr
		if err := command.Run(); exitCode(err) != 1 || stdout.Len() > 0 {
			t.Errorf("it ended with %v, want exit code 1, and printed %q: %s", err, stdout.String(), stderr.String())
		}
		var last logEntry
		for line := range bytes.Lines(stderr.Bytes()) {
			last = mustBeLog(t, program, line)
		}
		if last.Level != "ERROR" || !strings.Contains(last.Message, "is a superuser") {
			t.Errorf("its last log line is %s %q", last.Level, last.Message)
		}
		if lineWith(stderr.Bytes(), databasePassword) != nil || lineWith(stderr.Bytes(), secret) != nil {
			t.Errorf("it logs a secret: %s", stderr.String())
		}
	}
}

// A wrong command line of a program is refused on stderr with exit code 2.
func TestStart_aWrongCommandLine_isRefused(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	b := binaries(t)
	for _, line := range [][]string{
		{b.Payonce},
		{b.Payonce, "no-such-command"},
		{b.Payonce, "audit", "--no-such-flag"},
		{b.Payonce, "seed"},
		{b.Payonce, "keys", "create", "--merchant=acme", "--scopes=no-such-scope"},
		{b.API, "no-such-argument"},
		{b.Worker, "no-such-argument"},
		{b.Sandbox, "no-such-argument"},
	} {
		var stdout, stderr bytes.Buffer
		command := exec.CommandContext(bounded(t), line[0], line[1:]...)
		command.Stdout, command.Stderr = &stdout, &stderr
		if err := command.Run(); exitCode(err) != 2 || stdout.Len() > 0 || stderr.Len() == 0 {
			t.Errorf("%s ended with %v, want exit code 2, and printed %q: %q", line, err, stdout.String(), stderr.String())
		}
	}
}
