package arch_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// ignore returns what Docker makes of .dockerignore with more patterns at its end.
func ignore(t *testing.T, patterns ...string) *patternmatcher.PatternMatcher {
	t.Helper()
	all, err := ignorefile.ReadAll(strings.NewReader(read(t, ".dockerignore")))
	must(t, err)
	matcher, err := patternmatcher.New(append(all, patterns...))
	must(t, err)
	return matcher
}

// ignored returns the files of the tree that Docker leaves out of the context of a build.
func ignored(t *testing.T, patterns ...string) (files []string) {
	t.Helper()
	matcher := ignore(t, patterns...)
	must(t, fs.WalkDir(os.DirFS(root), ".", func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case at == ".git" && entry.IsDir():
			return fs.SkipDir // git writes in it at any time
		case entry.IsDir():
			return nil
		}
		out, err := matcher.MatchesOrParentMatches(at)
		if out {
			files = append(files, at)
		}
		return err
	}))
	return files
}

// buildWithout builds the programs as if the files did not exist. The build is of this folder,
// so it finds in Go's cache what other builds have compiled.
func buildWithout(t *testing.T, files []string) error {
	t.Helper()
	folder, err := filepath.Abs(root)
	must(t, err)
	replace := make(map[string]string)
	for _, file := range files {
		replace[filepath.Join(folder, filepath.FromSlash(file))] = "" // for the go command it does not exist
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	name := filepath.Join(t.TempDir(), "overlay.json")
	must(t, os.WriteFile(name, overlay, 0o600))
	_, err = harness.Build(t.Context(), t.TempDir(), "-buildvcs=false", "-overlay="+name)
	return err
}

func TestImage_buildsFromWhatDockerignoreLetsThrough(t *testing.T) {
	t.Parallel()
	must(t, buildWithout(t, ignored(t)))
}

// TestImage_needsWhatDockerignoreLetsThrough shows that the build notices what is left out.
func TestImage_needsWhatDockerignoreLetsThrough(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"go.sum":            "missing go.sum entry",
		"ledger":            "no required module provides package github.com/payonce/payonce/ledger",
		"**/*.json":         "pattern assets/tour.json: no matching files found",
		"internal/**/*.svg": "pattern assets/lanes.svg: no matching files found",
		"docs/**/*.md":      "pattern settings.md: no matching files found",
	} {
		t.Run(strings.ReplaceAll(pattern, "/", " "), func(t *testing.T) {
			t.Parallel()
			if err := buildWithout(t, ignored(t, pattern)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the build's error is %v, want one with %q", err, want)
			}
		})
	}
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
