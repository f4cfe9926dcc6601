package main

import (
	"bytes"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/program"
)

// TestConsole_settings reads every setting of payonce console, and refuses those by which keys
// could be read on the way.
func TestConsole_settings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ map[string]string
		says    string // of the error, or of the log
	}{
		"defaults":                   {nil, "CONSOLE_ADDR=127.0.0.1:8088 CONSOLE_HOSTS=[localhost 127.0.0.1 ::1]"},
		"an address":                 {map[string]string{"CONSOLE_ADDR": "[::1]:9000"}, "CONSOLE_ADDR=[::1]:9000"},
		"a network":                  {map[string]string{"CONSOLE_ADDR": ":9000"}, "reachable over a network"},
		"a proxy that is no network": {map[string]string{"TRUSTED_PROXIES": "10.0.0.1"}, "TRUSTED_PROXIES cannot be read"},
		"an unknown access":          {map[string]string{"CONSOLE_ACCESS": "opn"}, "key, open"},
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
