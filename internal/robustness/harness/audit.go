package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Audit is the output of `payonce audit --json`, and of the demo with --json.
type Audit struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
}

// Check is one promise: how many cases of it were examined, and how many of them broke it.
type Check struct {
	Name     string   `json:"name"`
	Checked  int      `json:"checked"`
	Violated int      `json:"violated"`
	Examples []string `json:"examples"`
}

// ReadAudit reads the output of `payonce audit --json`, and the error with which that ended. An
// audit that found something, and ended with an error for it, is no error here.
func ReadAudit(text []byte, ended error) (a Audit, err error) {
	if err := json.Unmarshal(text, &a); err != nil {
		return Audit{}, errors.Join(ended, fmt.Errorf("read the output of payonce audit: %w", err))
	}
	if len(a.Checks) == 0 || a.OK != (a.Violated() == "") || a.OK != (ended == nil) {
		return Audit{}, errors.Join(ended, fmt.Errorf("payonce audit says ok=%v after %d checks, and violated are %q", a.OK, len(a.Checks), a.Violated()))
	}
	return a, nil
}

// Audit runs `payonce audit` on the world's database, against the provider's lists too.
func (w *World) Audit(ctx context.Context) (Audit, error) {
	return ReadAudit(w.Run(ctx, "audit", "--json"))
}

// With returns the audit with further checks. It is OK only if it was, and none of all checks is
// violated.
func (a Audit) With(checks ...Check) Audit {
	for _, c := range checks {
		c.Examples = append([]string{}, c.Examples...) // a list in JSON
		a.Checks = append(a.Checks, c)
	}
	a.OK = a.OK && a.Violated() == ""
	return a
}

// Red are the checks that are violated.
func (a Audit) Red() []Check {
	return slices.DeleteFunc(slices.Clone(a.Checks), func(c Check) bool { return c.Violated == 0 })
}

// Violated names the checks that are violated.
func (a Audit) Violated() string {
	var names []string
	for _, check := range a.Red() {
		names = append(names, check.Name)
	}
	return strings.Join(names, "; ")
}

// Expect examines one case of the promise. Only the first violations are examples.
func (c *Check) Expect(holds bool, complaint string, args ...any) {
	const maxExamples = 5
	c.Checked++
	if holds {
		return
	}
	c.Violated++
	if len(c.Examples) < maxExamples {
		c.Examples = append(c.Examples, fmt.Sprintf(complaint, args...))
	}
}
