package arch_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// ignore returns what Docker makes of .dockerignore.
func ignore(t *testing.T) *patternmatcher.PatternMatcher {
	t.Helper()
	patterns, err := ignorefile.ReadAll(strings.NewReader(read(t, ".dockerignore")))
	must(t, err)
	matcher, err := patternmatcher.New(patterns)
	must(t, err)
	return matcher
}

// TestImage_buildsFromWhatDockerignoreLetsThrough builds the programs as if the files that Docker leaves
// out did not exist. The build is of this folder, so it finds in Go's cache what other builds have compiled.
func TestImage_buildsFromWhatDockerignoreLetsThrough(t *testing.T) {
	t.Parallel()
	matcher, replace := ignore(t), make(map[string]string)
	folder, err := filepath.Abs(root)
	must(t, err)
	for at := range readTree(t) {
		out, err := matcher.MatchesOrParentMatches(at)
		must(t, err)
		if out {
			replace[filepath.Join(folder, filepath.FromSlash(at))] = "" // for the go command it does not exist
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	name := filepath.Join(t.TempDir(), "overlay.json")
	must(t, os.WriteFile(name, overlay, 0o600))
	_, err = harness.Build(t.Context(), t.TempDir(), "-buildvcs=false", "-overlay="+name)
	must(t, err)
}

func TestImage_contextHasNoTestAndNoHiddenFile(t *testing.T) {
	t.Parallel()
	matcher := ignore(t)
	for path, want := range map[string]bool{
		"cmd/api/main.go":                   true,
		"internal/console/assets/new.woff2": true,

		"cmd/api/main_test.go":            false,
		"migrations/testdata/rows.sql":    false,
		"docs/images/flow.webp":           false,
		"e2e/docs.go":                     false,
		"dist/payonce.tar.gz":             false,
		"payonce":                         false,
		".env":                            false,
		".git/config":                     false,
		"cmd/worker/.env":                 false,
		"internal/stripe/.cache/key":      false,
		"docs/reference/.settings.md.swp": false,
	} {
		if out, err := matcher.MatchesOrParentMatches(path); err != nil || out == want {
			t.Errorf("%s is in the context: %v (%v), want %v", path, !out, err, want)
		}
	}
}
