package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Audit is what `payonce audit --json` prints, and the demo with --json.
type Audit struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
}

// Check is one promise: how many cases of it were looked at, and how many of
// them broke it.
type Check struct {
	Name     string `json:"name"`
	Checked  int    `json:"checked"`
	Violated int    `json:"violated"`
	Examples []any  `json:"examples"`

	notRun bool
}

// maxExamples is how many violations a check shows.
const maxExamples = 5

// examine is the service's own audit, reconciled with the provider, and after it
// what the demo found from outside.
func examine(ctx context.Context, stage stage, seen evidence) (Audit, error) {
	text, err := stage.audit(ctx)
	if err == nil || len(text) > 0 {
		audit, unreadable := readAudit(text)
		if unreadable == nil && (err == nil || !audit.OK) {
			return join(audit, judge(seen)), nil
		}
		err = errors.Join(err, unreadable)
	}
	return Audit{}, fmt.Errorf("audit: %w", err)
}

func readAudit(text []byte) (Audit, error) {
	var audit Audit
	if err := json.Unmarshal(text, &audit); err != nil {
		return Audit{}, fmt.Errorf("read what payonce audit printed: %w", err)
	}
	if len(audit.Checks) == 0 {
		return Audit{}, errors.New("payonce audit checked nothing")
	}
	return audit, nil
}

// join adds checks to an audit. It is in order only if all of them are, whatever
// it said of itself.
func join(audit Audit, checks []Check) Audit {
	audit.Checks = append(audit.Checks, checks...)
	for _, check := range audit.Checks {
		if check.Violated > 0 {
			audit.OK = false
		}
	}
	return audit
}

// violated names what did not hold.
func (a Audit) violated() string {
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
