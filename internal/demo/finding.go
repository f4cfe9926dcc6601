package demo

import "fmt"

// finding is a check in the making.
type finding struct {
	check Check
	least int
}

// about begins a check that has to look at this many cases at least: a check
// that looked at fewer proves nothing, and fails.
func about(name string, least int) *finding {
	return &finding{check: Check{Name: name, Examples: []any{}}, least: least}
}

// see looks at one case; without a complaint it is in order.
func (f *finding) see(complaint string) {
	f.check.Checked++
	if complaint != "" {
		f.violate(complaint)
	}
}

// violate is for what is wrong beside the cases.
func (f *finding) violate(complaint string) {
	f.check.Violated++
	if len(f.check.Examples) < maxExamples {
		f.check.Examples = append(f.check.Examples, complaint)
	}
}

func (f *finding) result() Check {
	if f.check.Checked < f.least {
		f.violate(fmt.Sprintf("looked at %d, expected %d", f.check.Checked, f.least))
	}
	return f.check
}
