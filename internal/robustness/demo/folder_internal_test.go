package demo

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/traffic"
	"github.com/payonce/payonce/internal/robustness/validate"
)

func TestFolder(t *testing.T) {
	t.Parallel()

	t.Run("one in use is left alone, one that was left behind is removed", func(t *testing.T) {
		t.Parallel()
		parent := t.TempDir()
		used, err := newFolder(parent)
		if err != nil {
			t.Fatal(err)
		}
		left, err := newFolder(parent)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(left.path, "api"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := left.lock.Close(); err != nil { // as a kill does
			t.Fatal(err)
		}
		third, err := newFolder(parent)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(used.path); err != nil {
			t.Errorf("one in use: %v", err)
		}
		if _, err := os.Stat(left.path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("one left behind: %v", err)
		}
		for _, f := range []*folder{used, third} {
			if err := f.remove(); err != nil {
				t.Error(err)
			}
		}
		if rest, err := os.ReadDir(parent); err != nil || len(rest) != 0 {
			t.Errorf("in the end: %v, %v", rest, err)
		}
	})
}

func TestInDatabase(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"postgres://me:pw@db:5433/mine?sslmode=require": "postgres://me:pw@db:5433/other?sslmode=require",
		"postgresql:///mine?host=%2Ftmp&dbname=x":       "postgresql:///other?host=%2Ftmp",
		"postgres://db":              "postgres://db/other",
		"host=/tmp user=me dbname=x": "host=/tmp user=me dbname=x dbname=other",
	} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			got, err := inDatabase(server, "other")
			if err != nil || got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
}

func TestRunName_hasNoDigit(t *testing.T) {
	t.Parallel()
	for range 100 {
		for _, letter := range newRunName() {
			if letter < 'a' || letter > 'z' {
				t.Fatalf("%q: a digit could make it look like a card number", letter)
			}
		}
	}
}

func TestStrikes_breakEnoughWhileChargesFlow(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 5, 200, 2000} {
		length := traffic.NewPlan(11, n, "run").Length
		counts, last := map[strikeKind]int{}, time.Duration(0)
		for _, s := range newStrikes(11, length) {
			counts[s.kind]++
			if s.at < last || s.at > length {
				t.Errorf("%s at %s, after %s, in a run of %s", s.kind, s.at, last, length)
			}
			last = s.at
		}
		if counts[killWorker] < validate.LeastWorkerKills || counts[killAPI] != 1 || counts[restartDatabase] != 1 {
			t.Errorf("strikes: %v", counts)
		}
	}
}
