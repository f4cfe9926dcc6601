package harness

import (
	"os"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

// A kill cuts a line: the next life does not go on in it.
func TestLaunch_endsTheLogWithAWholeLine(t *testing.T) {
	t.Parallel()
	program := Program{Name: "killed", Path: "sh", Args: []string{"-c", `printf 'whole\nhal' >&2; kill -s KILL $$`}, Log: t.TempDir()}
	for range 2 {
		l, err := launch(program, "")
		if err != nil {
			t.Fatal(err)
		}
		<-l.exited
	}
	log, err := os.ReadFile(program.file(".log"))
	testrun.Same(t, "log", "whole\nwhole\n", string(log))
	testrun.Same(t, "error", nil, err)
}
