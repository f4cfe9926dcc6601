package sandbox_test

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// run is the program, as cmd/sandbox runs it.
func run(ctx context.Context, log *slog.Logger, environ map[string]string) error {
	return sandbox.Run(ctx, log, environ, time.Now)
}

func TestRun(t *testing.T) {
	t.Parallel()

	t.Run("refuses what it cannot use in one sentence", func(t *testing.T) {
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
	})

	t.Run("its end finishes the requests in flight, whose keys are refused until then", func(t *testing.T) {
		t.Parallel()
		p := testrun.Start(t, run, map[string]string{"HTTP_ADDR": "127.0.0.1:0"})
		f := &fixture{t: t, client: newClient(), url: p.URL}
		f.client.Timeout = 0
		const delay = time.Minute
		f.faults(`{"slow":{"p":1,"ms":60000}}`)
		delayed := f.meanwhile(intents, "k", eur("700")...)
		testrun.True(t, "the request is in flight", func() bool { return f.books().Requests == 1 })
		f.post(intents, "k", eur("700")...).want(t, http.StatusConflict, members{"error.code": "idempotency_key_in_use"})
		ends := time.Now()
		p.Stop()
		if a := <-delayed; a.status != http.StatusOK || time.Since(ends) >= delay {
			t.Errorf("answered %d %s, want 200 before the delay of %v is over", a.status, a.raw, delay)
		}
	})
}
