package program_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/program"
)

func TestMain_answersArgumentsWithoutRunning(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args   string
		code   int
		stdout string // a part of it; "": there is nothing
		stderr string
	}{
		{"--version", 0, "sample ", ""},
		{"--version", 0, runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + "\n", ""},
		{"--help", 0, "Usage: sample", ""},
		{"--stripe-key=sk_live_hunter2", 2, "", "sample: unknown arguments\nUsage: sample"},
		{"--version --now", 2, "", "Usage: sample"},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr strings.Builder
			code := program.Main(strings.Fields(test.args), &stdout, &stderr, "sample", func(context.Context, *slog.Logger, map[string]string) error {
				return errors.New("it ran")
			})
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for got, want := range map[*strings.Builder]string{&stdout: test.stdout, &stderr: test.stderr} {
				if !strings.Contains(got.String(), want) || want == "" && got.Len() > 0 || strings.Contains(got.String(), "hunter2") {
					t.Errorf("printed %q, want %q in it", got, want)
				}
			}
		})
	}
}
