package audit

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Report is the result of an audit.
type Report struct {
	OK     bool    `json:"ok"` // no check was violated
	Checks []Check `json:"checks"`
}

// Check is one promise: how many cases of it were looked at, and how many of
// them broke it.
type Check struct {
	Name     string   `json:"name"`
	Checked  int64    `json:"checked"`
	Violated int64    `json:"violated"`
	Examples []string `json:"examples"` // of violations, at most 5, never nil
}

const maxExamples = 5

// Add adds checks to the report, which stays in order only if they are.
func (r *Report) Add(checks ...Check) {
	r.Checks = append(r.Checks, checks...)
	r.OK = true
	for _, c := range r.Checks {
		if c.Violated > 0 {
			r.OK = false
		}
	}
}

// WriteTable writes the report for people: a line per check, then the examples
// of what was violated.
func (r Report) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CHECK\tCHECKED\tVIOLATED\tRESULT")
	for _, c := range r.Checks {
		result := "ok"
		if c.Violated > 0 {
			result = "VIOLATED"
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\n", c.Name, c.Checked, c.Violated, result)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the audit's table: %w", err)
	}
	var examples strings.Builder
	for _, c := range r.Checks {
		if len(c.Examples) == 0 {
			continue
		}
		fmt.Fprintf(&examples, "\n%s, for example\n", c.Name)
		for _, example := range c.Examples {
			fmt.Fprintf(&examples, "  %s\n", strings.Map(printable, example))
		}
	}
	if _, err := io.WriteString(w, examples.String()); err != nil {
		return fmt.Errorf("write the audit's examples: %w", err)
	}
	return nil
}

// printable keeps what clients have chosen, such as a SKU, from writing over
// the table.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// newCheck is a check that has looked at nothing yet.
func newCheck(name string) Check { return Check{Name: name, Examples: []string{}} }

// see looks at one case. An empty complaint means that it is in order.
func (c *Check) see(complaint string) {
	c.Checked++
	if complaint == "" {
		return
	}
	c.Violated++
	if len(c.Examples) < maxExamples {
		c.Examples = append(c.Examples, complaint)
	}
}
