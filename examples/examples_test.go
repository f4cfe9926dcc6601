package examples_test

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// prints is the end of a program's package comment: its output, and whether it fails.
var prints = regexp.MustCompile(`(?m)^// It (prints|fails after it prints):\n//\n((?://\t.*\n)+)package main$`)

// limit is far above what a program needs on a busy machine.
const limit = 3 * time.Minute

// Each program checks its own result, so its output says what became true.
func TestPrograms_printWhatTheirCommentsShow(t *testing.T) {
	t.Parallel()
	bin := t.TempDir() + "/"
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./...").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	server := testrun.Server(t, local.Options{Fsync: true, InMemory: true})
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	testrun.Must(t, err)
	defer func() { testrun.Must(t, admin.Close(t.Context())) }()
	programs, err := filepath.Glob("*/main.go")
	testrun.Must(t, err)
	shops, err := filepath.Glob("existing-app/*/main.go")
	testrun.Must(t, err)
	if len(programs) == 0 || len(shops) == 0 {
		t.Fatalf("the programs are %v and %v", programs, shops)
	}
	for _, file := range append(programs, shops...) {
		folder := filepath.Dir(file)
		t.Run(folder, func(t *testing.T) {
			source, err := os.ReadFile(file)
			testrun.Must(t, err)
			said := prints.FindSubmatch(source)
			if said == nil {
				t.Fatal("the package comment does not end with what the program prints")
			}
			if lines := strings.Count(string(source), "\n"); lines > 150 {
				t.Errorf("an example has at most 150 lines, not %d", lines)
			}
			name := strings.ReplaceAll(folder, "/", "-")
			_, err = admin.Exec(t.Context(), "create database "+pgx.Identifier{name}.Sanitize())
			testrun.Must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			var stderr strings.Builder
			c := exec.CommandContext(ctx, filepath.Join(bin, filepath.Base(folder)))
			c.Env = append(os.Environ(), "DATABASE_URL="+server.URL(name))
			c.Stderr = &stderr
			out, err := c.Output()
			if failed := err != nil; failed != (string(said[1]) != "prints") {
				t.Errorf("it ended with %v\n%s", err, &stderr)
			}
			want := strings.ReplaceAll(string(said[2]), "//\t", "")
			if diff := gocmp.Diff(want, string(out)); diff != "" {
				t.Errorf("output (-comment +program)\n%s\n%s", diff, &stderr)
			}
		})
	}
}

// guideLine is a line of the guide's diffs, or of its output.
var guideLine = regexp.MustCompile(`(?m)^(?:([-+])\t+(.+)|12 orders sent.+)$`)

// What the guide takes out is in the shop before, and what it puts in is in the shop after.
func TestGuide_showsLinesOfBothShops(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("existing-app", name))
		testrun.Must(t, err)
		return string(text)
	}
	before, after := read("before/main.go"), read("after/main.go")
	lines := guideLine.FindAllStringSubmatch(read("README.md"), -1)
	if len(lines) < 10 {
		t.Fatalf("the guide shows %d lines", len(lines))
	}
	for _, line := range lines {
		text := map[string]string{"-": before, "+": after, "": before + after}[line[1]]
		if !strings.Contains(text, cmp.Or(line[2], line[0])) {
			t.Errorf("no shop has %q", line[0])
		}
	}
}
