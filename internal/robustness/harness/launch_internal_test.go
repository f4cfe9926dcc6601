package harness

import (
	"errors"
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
		p := Process{program: program, life: l}
		for err == nil {
			err = p.signal(l, 0)
		}
		testrun.Same(t, "a program that is done, and whose log is whole", true, errors.Is(err, os.ErrProcessDone) && l.ended())
	}
	log, err := os.ReadFile(program.file(".log"))
	testrun.Same(t, "log", "whole\nwhole\n", string(log))
	testrun.Same(t, "error", nil, err)
}
