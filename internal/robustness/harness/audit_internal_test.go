package harness

import (
	"errors"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// TestReadAudit refuses what does not add up: an audit says whether it is ok in its exit code, in
// its verdict, and in its checks.
func TestReadAudit(t *testing.T) {
	t.Parallel()
	errExit := errors.New("exit status 1")
	const good, bad = `{"name":"good","checked":1,"violated":0}`, `{"name":"bad","checked":1,"violated":1}`
	for text, c := range map[string]struct {
		ended      error
		sound, red bool
	}{
		"":                                     {},
		"every promise held":                   {},
		`{"ok":true,"checks":[]}`:              {},
		`{"ok":true,"checks":[` + good + `]}`:  {sound: true},
		`{"ok":true, "checks":[` + bad + `]}`:  {},
		`{"ok":false,"checks":[` + good + `]}`: {ended: errExit},
		`{"ok":false,"checks":[` + bad + `]}`:  {ended: errExit, sound: true, red: true},
		`{"ok":false,"checks":[` + bad + `] }`: {},
	} {
		audit, err := ReadAudit([]byte(text), c.ended)
		if (err == nil) != c.sound || (audit.Violated() == "bad") != c.red {
			t.Errorf("%q, ended with %v, is read as %+v, %v", text, c.ended, audit, err)
		}
	}
	further := Check{Name: "further"}
	further.Expect(true, "")
	sound := Audit{OK: true}.With(further)
	further.Expect(false, "%d of 2", 1)
	if red := sound.With(further); !sound.OK || red.OK || red.Violated() != "further" || red.Checks[1].Examples[0] != "1 of 2" {
		t.Errorf("with another check it is %+v, then %+v", sound, red)
	}
}
