package arch_test

import (
	"fmt"
	"slices"
	"strings"
)

// checkRooms returns a sentence for each arrow between two packages of this
// module that the map does not have, and for each difference between the map
// and the tree.
func checkRooms(rooms []room, pkgs []pkg) []string {
	var broken []string
	seen := make(map[string]bool, len(pkgs))
	for _, p := range pkgs {
		at := local(p.ImportPath)
		seen[at] = true
		i := slices.IndexFunc(rooms, func(r room) bool { return r.path == at })
		if i < 0 {
			broken = append(broken, at+" is not on the map: add it to rooms in internal/arch with what it may see and why")
			continue
		}
		broken = append(broken, checkRoom(rooms[i], p)...)
	}
	for _, r := range rooms {
		if !seen[r.path] {
			broken = append(broken, r.path+" is on the map and not in the tree: remove it from rooms in internal/arch")
		}
	}
	return broken
}

func checkRoom(r room, p pkg) []string {
	imports := p.Imports
	if r.tests {
		imports = slices.Concat(p.Imports, p.TestImports, p.XTestImports)
	}
	var broken []string
	refuse := func(path string) {
		broken = append(broken, fmt.Sprintf("%s must not import %s: %s", r.path, path, r.why))
	}
	for _, path := range unique(imports) {
		switch {
		case path == p.ImportPath: // its own external test
		case slices.Contains(testHelpers, local(path)) && !slices.Contains(p.Imports, path):
		case under(path, module):
			if r.never == nil && !slices.Contains(r.sees, local(path)) || slices.Contains(r.never, local(path)) {
				refuse(local(path))
			}
		case r.standard && !standard(path) && slices.Contains(p.Imports, path):
			refuse(path)
		}
	}
	return broken
}

// checkGuests returns a sentence for each third party outside its rooms.
func checkGuests(guests []guest, pkgs []pkg) []string {
	var broken []string
	for _, p := range pkgs {
		for _, path := range unique(slices.Concat(p.Imports, p.TestImports, p.XTestImports)) {
			for _, g := range guests {
				if under(path, g.path) && !slices.Contains(g.rooms, local(p.ImportPath)) {
					broken = append(broken, fmt.Sprintf("%s must not import %s: %s", local(p.ImportPath), path, g.why))
				}
			}
		}
	}
	return broken
}

// checkBans returns a sentence for each thing that program links and must not,
// with the shortest chain of imports that leads there. linked is the program's
// "go list -deps".
func checkBans(bans []ban, program string, linked []pkg) []string {
	imports := make(map[string][]string, len(linked))
	for _, p := range linked {
		imports[p.ImportPath] = p.Imports
	}
	var broken []string
	for _, b := range bans {
		if b.program != program {
			continue
		}
		if c := chain(imports, module+"/"+program, b.path); c != nil {
			broken = append(broken, fmt.Sprintf("%s must not link %s: %s\n\t%s", program, b.path, b.why, strings.Join(c, "\n\timports ")))
		}
	}
	return broken
}

// chain returns the shortest way along imports from one package to target or
// anything below it, or nil if there is none.
func chain(imports map[string][]string, from, target string) []string {
	by := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if under(at, target) {
			var way []string
			for ; at != ""; at = by[at] {
				way = append(way, at)
			}
			slices.Reverse(way)
			return way
		}
		for _, next := range imports[at] {
			if _, ok := by[next]; !ok {
				by[next] = at
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// checkDocs returns a sentence for each package that does not say what it is.
func checkDocs(pkgs []pkg) []string {
	var broken []string
	for _, p := range pkgs {
		switch {
		case p.Doc == "":
			broken = append(broken, local(p.ImportPath)+" has no package doc: say what it promises and what it does not")
		case p.Name != "main" && !strings.HasPrefix(p.Doc, "Package "+p.Name+" "):
			broken = append(broken, fmt.Sprintf("%s: the package doc does not begin with \"Package %s\"", local(p.ImportPath), p.Name))
		}
	}
	return broken
}

// under tells whether path is tree or lies below it.
func under(path, tree string) bool {
	return path == tree || strings.HasPrefix(path, tree+"/")
}

// local is a package of this module as the map writes it.
func local(path string) string {
	return strings.TrimPrefix(path, module+"/")
}

// standard tells whether path is in the standard library: everybody else's
// first element is the name of a host.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func unique(paths []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(paths)))
}
