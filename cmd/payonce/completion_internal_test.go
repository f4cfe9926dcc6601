package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestComplete_printsWhatMayFollow(t *testing.T) {
	t.Setenv("COMP_POINT", "")
	for line, want := range map[string]string{
		"payonce in":                                  "inbox",
		"payonce inbox ":                              "list show retry discard",
		"payonce inbox list --st":                     "--status",
		"payonce inbox list --status ":                "dead discarded",
		"payonce inbox list --status dead --status=x": "",
		"payonce inbox retry --charge inbox --al":     "--all",
		"payonce inbox retry --charge --all":          "",
		"payonce completion ":                         "bash zsh fish",
		"payonce export --dry":                        "",
		"payonce healthcheck ":                        "--help --version",
		"payonce no-such ":                            "demo console",
		"payonce complet":                             "completion",
		"":                                            "demo console",
	} {
		var out strings.Builder
		t.Setenv("COMP_LINE", line+" behind the cursor")
		t.Setenv("COMP_POINT", strconv.Itoa(len(line)))
		parsed, err := commandLine(new(commands), strings.Fields("complete payonce --dry export"), kong.Writers(&out, os.Stderr))
		if err == nil {
			err = parsed.Run()
		}
		if got := strings.Join(strings.Fields(out.String()), " "); err != nil || !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q is completed by %q, want %q, %v", line, got, want, err)
		}
	}
}

func TestCommands_printJSON(t *testing.T) {
	t.Parallel()
	parser, err := kong.New(new(commands))
	testdb.Must(t, err)
	var without []string
	for _, command := range parser.Model.Leaves(true) {
		if !slices.ContainsFunc(command.Flags, func(f *kong.Flag) bool { return f.Name == "json" }) {
			without = append(without, command.Name)
		}
	}
	// A program that serves, a file in a format of others, an exit code, a script.
	testrun.Same(t, "without --json", []string{"console", "export", "healthcheck", "completion"}, without)
}
