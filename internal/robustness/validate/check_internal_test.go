package validate

import "testing"

func TestAudit_With(t *testing.T) {
	t.Parallel()
	good, bad := Check{Name: "good", Checked: 1}, Check{Name: "bad", Checked: 1, Violated: 1}
	for name, c := range map[string]struct {
		audit   Audit
		further Check
		ok      bool
	}{
		"all in order":              {Audit{OK: true, Checks: []Check{good}}, good, true},
		"a further one is violated": {Audit{OK: true, Checks: []Check{good}}, bad, false},
		"its own is violated":       {Audit{OK: true, Checks: []Check{bad}}, good, false},
		"it reports not ok":         {Audit{OK: false, Checks: []Check{good}}, good, false},
	} {
		if got := c.audit.With(c.further); got.OK != c.ok || len(got.Checks) != 2 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestReadAudit_refusesWhatIsNoAudit(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "every promise held", `{"ok":true,"checks":[]}`} {
		if audit, err := ReadAudit([]byte(text)); err == nil {
			t.Errorf("%q is read as %+v", text, audit)
		}
	}
}
