package sandbox_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/robustness/fleet"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// childVariable makes the tests' binary the program itself, as cmd/sandbox runs it.
const childVariable = "PAYONCE_SANDBOX_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		testrun.Main(m)
		return
	}
	os.Exit(program.Main(nil, os.Stdout, os.Stderr, "sandbox", func(ctx context.Context, log *slog.Logger, environ map[string]string) error {
		return sandbox.Run(ctx, log, environ, time.Now)
	}))
}

// process is the sandbox in a process of its own.
type process struct {
	*fixture
	*fleet.Process
}

func serve(t *testing.T, database string) *process {
	t.Helper()
	p, err := fleet.Start(t.Context(), fleet.Program{
		Name: "sandbox", Path: os.Args[0], Log: t.TempDir(),
		Env: map[string]string{"DATABASE_URL": database, childVariable: "1"},
	})
	testdb.Must(t, err)
	t.Cleanup(func() { _ = p.Kill() }) // unless it has ended
	return &process{fixture: &fixture{t: t, client: newClient(), url: p.URL()}, Process: p}
}

func TestRun(t *testing.T) {
	t.Parallel()

	t.Run("refuses what it cannot use in one sentence", func(t *testing.T) {
		t.Parallel()
		database := testdb.Empty(t)
		for want, variables := range map[string][]string{
			"DATABASE_URL is empty":            {"DATABASE_URL="},
			"STRIPE_WEBHOOK_URL is":            {"STRIPE_WEBHOOK_URL=here", "STRIPE_WEBHOOK_SECRET=x"},
			"STRIPE_WEBHOOK_SECRET is not set": {"STRIPE_WEBHOOK_URL=http://127.0.0.1:1/"},
			"SHOP_WEBHOOK_SECRET cannot":       {"SHOP_WEBHOOK_SECRET=whsec_!"},
			"HTTP_ADDR 127.0.0.1:99999 cannot": {"HTTP_ADDR=127.0.0.1:99999"},
		} {
			env := map[string]string{"DATABASE_URL": database, childVariable: "1"}
			for _, variable := range variables {
				name, value, _ := strings.Cut(variable, "=")
				env[name] = value
			}
			out, err := fleet.Run(t.Context(), env, os.Args[0])
			exit, _ := errors.AsType[*exec.ExitError](err)
			if exit == nil || exit.ExitCode() != 1 || !strings.Contains(err.Error(), `"level":"ERROR","msg":"`+want) || len(out) > 0 {
				t.Errorf("%v, stdout %q; want exit code 1 and %q", err, out, want)
			}
		}
	})

	t.Run("SIGTERM finishes the requests in flight and exits 0", func(t *testing.T) {
		testdb.Long(t, "it starts programs")
		t.Parallel()
		p := serve(t, testdb.Empty(t))
		p.client.Timeout = 0
		const delay = time.Minute
		p.faults(`{"slow":{"p":1,"ms":60000}}`)
		delayed := make(chan answered)
		go func() {
			a, err := p.tryPost("/v1/payment_intents", "k", "amount", "700", "currency", "eur")
			if err != nil {
				t.Error(err)
			}
			delayed <- a
		}()
		await.True(t, "the request is in flight", func() bool { return p.books().Requests == 1 })
		signaled := time.Now()
		if err := p.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if a := <-delayed; a.status != http.StatusOK || time.Since(signaled) >= delay {
			t.Errorf("answered %d %s, want 200 before the delay of %v is over", a.status, a.raw, delay)
		}
	})
}
