package main

import (
	"io"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestGone_saysWhatTookThePlace reads the command lines as main does, which ends with exit code 2.
func TestGone_saysWhatTookThePlace(t *testing.T) {
	t.Parallel()
	for _, g := range goneCommands() {
		line := strings.Fields(g.line)
		for _, args := range [][]string{line, append(line, "--json"), append(line, "--merchant", "acme")} {
			_, err := commandLine(new(commands), args, kong.Writers(io.Discard, io.Discard))
			if want := "payonce " + g.line + " is gone: " + g.instead; err == nil || err.Error() != want {
				t.Errorf("payonce %s: %v, want %s", strings.Join(args, " "), err, want)
			}
		}
	}
	for _, line := range []string{"outbox repair --fast", "stock", "keys", "nothing", "keys list --addresses"} {
		if err := refuseGone(strings.Fields(line)); err != nil {
			t.Errorf("payonce %s: %v", line, err)
		}
	}
}
