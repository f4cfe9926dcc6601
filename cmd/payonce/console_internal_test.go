package main

import (
	"bytes"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/program"
)

// TestConsole_settings reads every setting of payonce console, and refuses each address that other
// machines reach.
func TestConsole_settings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ map[string]string
		says    string // of the error, or of the log
	}{
		"defaults":            {nil, "CONSOLE_ADDR=127.0.0.1:8088"},
		"a loopback address":  {map[string]string{"CONSOLE_ADDR": "[::1]:9000"}, "CONSOLE_ADDR=[::1]:9000"},
		"every address":       {map[string]string{"CONSOLE_ADDR": ":9000"}, "ssh -L"},
		"every IPv4 address":  {map[string]string{"CONSOLE_ADDR": "0.0.0.0:9000"}, "kubectl port-forward"},
		"one of a network":    {map[string]string{"CONSOLE_ADDR": "192.0.2.7:9000", "ALLOW_PLAINTEXT": "1"}, "a loopback address alone"},
		"a name of a network": {map[string]string{"CONSOLE_ADDR": "console.example:9000"}, "a loopback address alone"},
	} {
		environ := map[string]string{"DATABASE_URL": "postgres://u:secret@h/d"}
		maps.Copy(environ, c.environ)
		var log bytes.Buffer
		_, err := program.Settings[consoleSettings](slog.New(slog.NewTextHandler(&log, nil)), environ)
		said := strings.ReplaceAll(log.String(), `"`, "")
		if err != nil {
			said += err.Error()
		}
		if !strings.Contains(said, c.says) || strings.Contains(said, "secret") {
			t.Errorf("%s: %s", name, said)
		}
	}
}
