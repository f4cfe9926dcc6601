package demo

import "testing"

func TestJoin(t *testing.T) {
	t.Parallel()
	good, bad := Check{Name: "good", Checked: 1}, Check{Name: "bad", Checked: 1, Violated: 1}
	for _, c := range []struct {
		name  string
		audit Audit
		ours  Check
		ok    bool
	}{
		{"all in order", Audit{OK: true, Checks: []Check{good}}, good, true},
		{"one of ours is not", Audit{OK: true, Checks: []Check{good}}, bad, false},
		{"one of theirs is not", Audit{OK: true, Checks: []Check{bad}}, good, false},
		{"they say no", Audit{OK: false, Checks: []Check{good}}, good, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := join(c.audit, []Check{c.ours}); got.OK != c.ok {
				t.Errorf("ok is %v", got.OK)
			}
		})
	}
}

func TestReadAudit(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":             "",
		"no JSON":             "every promise held",
		"an audit of nothing": `{"ok":true,"checks":[]}`,
	} {
		t.Run(name+" is no audit", func(t *testing.T) {
			t.Parallel()
			if audit, err := readAudit([]byte(text)); err == nil {
				t.Errorf("read %+v", audit)
			}
		})
	}
}
