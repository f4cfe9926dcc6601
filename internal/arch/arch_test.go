package arch_test

import (
	"slices"
	"testing"
)

func TestRooms(t *testing.T) {
	t.Parallel()
	pkgs := list(t, "./...")
	report(t, checkRooms(rooms, pkgs))
	report(t, checkGuests(guests, pkgs))
	t.Logf("%d packages, %d rooms, %d guests", len(pkgs), len(rooms), len(guests))
}

func TestPrograms(t *testing.T) {
	t.Parallel()
	var programs []string
	for _, b := range bans {
		programs = append(programs, b.program)
	}
	for _, program := range unique(programs) {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			linked := list(t, "-deps", "./"+program)
			report(t, checkBans(bans, program, linked))
			t.Logf("%d packages linked", len(linked))
		})
	}
}

func TestDocs(t *testing.T) {
	t.Parallel()
	report(t, checkDocs(list(t, "./...")))
}

// TestMapIsPlain keeps the map itself free of slips that would make a rule
// hold nothing: a room twice, an arrow or a guest's room that is nowhere.
func TestMapIsPlain(t *testing.T) {
	t.Parallel()
	var names []string
	for _, r := range rooms {
		if slices.Contains(names, r.path) {
			t.Errorf("%s is on the map twice", r.path)
		}
		names = append(names, r.path)
	}
	known := func(where string, paths []string) {
		for _, path := range paths {
			if !slices.Contains(names, path) {
				t.Errorf("%s names %s, which is no room", where, path)
			}
		}
	}
	for _, r := range rooms {
		known(r.path+" sees", r.sees)
		known(r.path+" never", r.never)
		if r.why == "" {
			t.Errorf("%s has no reason", r.path)
		}
	}
	for _, g := range guests {
		known(g.path, g.rooms)
	}
	for _, b := range bans {
		known("the ban of "+b.path, []string{b.program})
		if under(b.path, module) {
			known("the ban in "+b.program, []string{local(b.path)})
		}
	}
}

func report(tb testing.TB, broken []string) {
	tb.Helper()
	for _, b := range broken {
		tb.Error(b)
	}
}
