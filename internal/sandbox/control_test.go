package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

func TestFaults(t *testing.T) {
	t.Parallel()

	t.Run("error_500 is saved, half before the effect and half after it", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{ShopSecret: shopSecret})
		f.faults(`{"seed":7,"error_500":1}`)
		const tries = 60
		pay := func(key string) answered {
			return f.post(intents, eur("700", "payment_method=pm_card_visa", "confirm=true", "Idempotency-Key="+key)...)
		}
		for i := range tries {
			key := fmt.Sprint("k", i)
			first := pay(key)
			first.want(t, 500, "error.type=api_error")
			if second := pay(key); !replayed(first, second) {
				t.Fatalf("a saved 500 was answered %d %s", second.status, second.raw)
			}
			f.must(f.notify(shopSecret, key, notice("ch_1"))).want(t, 500)
		}
		f.get(intents).want(t, 500, "error.type=api_error")
		f.post(intents, "amount=0").want(t, 400)
		f.faults(`{}`)
		for what, n := range map[string]int{"captures": len(f.books().Captures), "notifications": len(f.books().Notifications)} {
			if n < tries/4 || n > 3*tries/4 {
				t.Errorf("%d %s of %d took effect", n, what, tries)
			}
		}
		pay("k0").want(t, 500)
	})

	t.Run("slow delays, and a client that leaves changes nothing", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{})
		id := f.create("pm_card_visa")
		f.faults(`{"slow":{"p":1,"ms":300}}`)
		before := f.books().Requests
		for f.books().Requests == before { // a busy machine may not have read the request in time
			f.client.Timeout = 50 * time.Millisecond
			if a, err := f.tryPost(confirmation(id), key); err == nil {
				t.Errorf("answered %d before the delay: %s", a.status, a.raw)
			}
			f.client.Timeout = testrun.Stall
		}
		testrun.True(t, "the request is carried out", func() bool { return len(f.books().Captures) == 1 })
		f.faults(`{"slow":{"p":1,"ms":60000}}`)
		f.client.Timeout = 30 * time.Second
		f.stop() // which ends all delays
		f.create("")
	})
}

// The n-th request meets the n-th draw of the seed, and one probability moves no other fault.
func TestFaults_areDeterminedByTheirSeed(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	met := func(plan string) (statuses []int) { // 0 where the connection was cut
		f.faults(plan)
		for range 30 {
			a, _ := f.do(http.MethodGet, "/v1/refunds", "", bearer())
			statuses = append(statuses, a.status)
		}
		return statuses
	}
	first, without := met(`{"seed":1,"drop_before":0.2,"error_500":0.3}`), met(`{"seed":1,"error_500":0.3}`)
	for i := range first {
		if first[i] == 0 {
			without[i] = 0
		}
	}
	testrun.Same(t, "what the same seed meets", first, without)
	if other := met(`{"seed":2,"drop_before":0.2,"error_500":0.3}`); slices.Equal(first, other) {
		t.Error("another seed met the same faults")
	}
}

func TestMain(m *testing.M) { testrun.Main(m) }

// run is the program, as cmd/sandbox runs it.
func run(ctx context.Context, log *slog.Logger, environ map[string]string) error {
	return sandbox.Run(ctx, log, environ, time.Now)
}

func TestRun_refusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	notes := filepath.Join(t.TempDir(), "notes")
	testrun.Must(t, os.WriteFile(notes, []byte("bread\nmilk\n"), 0o600))
	for want, variables := range map[string][]string{
		"SANDBOX_FILE cannot be opened":    {"SANDBOX_FILE=/dev/null/x"},
		"SANDBOX_FILE is no journal":       {"SANDBOX_FILE=" + notes},
		"STRIPE_WEBHOOK_URL is":            {"STRIPE_WEBHOOK_URL=here", "STRIPE_WEBHOOK_SECRET=hunter2"},
		"STRIPE_WEBHOOK_SECRET is not set": {"STRIPE_WEBHOOK_URL=http://127.0.0.1:1/"},
		"SHOP_WEBHOOK_SECRET cannot":       {"SHOP_WEBHOOK_SECRET=whsec_!"},
		"HTTP_ADDR 127.0.0.1:99999 cannot": {"HTTP_ADDR=127.0.0.1:99999"},
	} {
		env := map[string]string{}
		for _, variable := range variables {
			name, value, _ := strings.Cut(variable, "=")
			env[name] = value
		}
		testrun.Refusal(t, run, env, want)
	}
	if kept, err := os.ReadFile(notes); err != nil || string(kept) != "bread\nmilk\n" {
		t.Errorf("the file is %q now, %v", kept, err)
	}
}

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
