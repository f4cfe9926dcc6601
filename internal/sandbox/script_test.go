package sandbox_test

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// script is what a script works with: a sandbox that sends events, and the last two answers.
type script struct {
	*fixture

	receiver     *receiver
	before, last answered
}

// TestScripts runs the scripts of testdata, each against a sandbox of its own. A command that sends a request begins with
// the status that is wanted, or with cut, where the connection ends without an answer.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			tb, ok := e.T().(testing.TB)
			if !ok {
				return errors.New("the scripts run outside of a test")
			}
			r, o := receive(tb)
			o.ProcessingTime = time.Hour
			s := &script{fixture: start(tb, o), receiver: r}
			e.Values["script"] = s
			e.Setenv("URL", s.url)
			e.Setenv("LARGE", strings.Repeat("x", 70_000))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"get": sends(func(s *script, args []string) (answered, error) { return s.do(http.MethodGet, args[0], "", bearer()) }),
			"post": sends(func(s *script, args []string) (answered, error) {
				return s.tryPost(args[0], args[1:]...)
			}),
			"control": sends(func(s *script, args []string) (answered, error) {
				return s.do(args[0], args[1], strings.Join(args[2:], ""), http.Header{})
			}),
			"notify": sends(func(s *script, args []string) (answered, error) {
				if !strings.HasPrefix(args[1], "{") {
					args[1] = notice(args[1])
				}
				return s.notify(append(args, shopSecret)[2], args[0], args[1])
			}),
			"refuses": holds((*script).refuses),
			"intent": holds(func(s *script, ts *testscript.TestScript, args []string) bool {
				ts.Setenv("ID", s.create(strings.Join(args, "")))
				return true
			}),
			"keep": holds(func(s *script, ts *testscript.TestScript, args []string) bool {
				ts.Setenv(args[0], s.last.text(args[1]))
				return true
			}),
			"has": holds(func(s *script, ts *testscript.TestScript, args []string) bool {
				lacks := s.last.lacks(args...)
				ts.Logf("%s", lacks)
				return lacks == ""
			}),
			"same":    holds(func(s *script, _ *testscript.TestScript, _ []string) bool { return s.last.raw == s.before.raw }),
			"replays": holds(func(s *script, _ *testscript.TestScript, _ []string) bool { return replayed(s.before, s.last) }),
			"pass": holds(func(s *script, _ *testscript.TestScript, args []string) bool {
				d, err := time.ParseDuration(args[0])
				s.pass(d)
				return err == nil
			}),
			"events": holds(func(s *script, _ *testscript.TestScript, args []string) bool { s.receiver.sent(args...); return true }),
		},
	})
}

// holds makes a command that fails unless it holds or, behind a !, if it does.
func holds(does func(*script, *testscript.TestScript, []string) bool) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		s, _ := ts.Value("script").(*script)
		if does(s, ts, args) == neg {
			ts.Fatalf("the answer, after %s, is %d %v %s", s.before.raw, s.last.status, s.last.header, s.last.raw)
		}
	}
}

// sends makes a command that sends a request, and wants what its first argument says.
func sends(send func(*script, []string) (answered, error)) func(*testscript.TestScript, bool, []string) {
	return holds(func(s *script, ts *testscript.TestScript, args []string) bool {
		s.before = s.last
		var err error
		s.last, err = send(s, args[1:])
		if args[0] == "cut" {
			return err != nil
		}
		ts.Check(err)
		return strconv.Itoa(s.last.status) == args[0]
	})
}

// refuses sends PARAM CODE PATH and a form twice under a key, which both are refused with this code for this parameter.
// The key stays free.
func (s *script) refuses(ts *testscript.TestScript, args []string) bool {
	s.t.Helper()
	key := "Idempotency-Key=" + url.QueryEscape(strings.Join(args, " "))
	for range 2 {
		s.last = s.post(args[2], append(args[3:], key)...)
		lacks := s.last.lacks("error.type=invalid_request_error", "error.param="+args[0], "error.code="+args[1])
		ts.Logf("%s", lacks)
		if s.last.status != http.StatusBadRequest || s.last.text("error.message") == "" || s.last.header.Get("Idempotent-Replayed") != "" || lacks != "" {
			return false
		}
	}
	s.last = s.post(intents, key, "amount=100", "currency=eur")
	return s.last.status == http.StatusOK
}
