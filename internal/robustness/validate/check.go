package validate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Audit is the output of `payonce audit --json`, and of the demo with --json.
type Audit struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
}

// Check is one promise: how many cases of it were examined, and how many of them
// broke it.
type Check struct {
	Name     string `json:"name"`
	Checked  int    `json:"checked"`
	Violated int    `json:"violated"`
	Examples []any  `json:"examples"`

	// NotRun says that the check has no meaning in this run.
	NotRun bool `json:"-"`
}

// ReadAudit reads the output of `payonce audit --json`.
func ReadAudit(text []byte) (Audit, error) {
	var audit Audit
	if err := json.Unmarshal(text, &audit); err != nil {
		return Audit{}, fmt.Errorf("read the output of payonce audit: %w", err)
	}
	if len(audit.Checks) == 0 {
		return Audit{}, errors.New("payonce audit checked nothing")
	}
	return audit, nil
}

// With returns the audit with further checks. It is OK only if it was, and none of
// all checks is violated.
func (a Audit) With(checks ...Check) Audit {
	a.Checks = append(a.Checks, checks...)
	for _, check := range a.Checks {
		a.OK = a.OK && check.Violated == 0
	}
	return a
}

// Violated names the checks that are violated.
func (a Audit) Violated() string {
	var names []string
	for _, check := range a.Checks {
		if check.Violated > 0 {
			names = append(names, check.Name)
		}
	}
	if len(names) == 0 {
		return "the audit says so without saying why"
	}
	return strings.Join(names, "; ")
}

// violate counts a violation beside the cases. Only the first are examples.
func (c *Check) violate(format string, args ...any) {
	const maxExamples = 5
	c.Violated++
	if len(c.Examples) < maxExamples {
		c.Examples = append(c.Examples, fmt.Sprintf(format, args...))
	}
}
