package browser_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

var must = testrun.Must

// world is a demo that stays up.
type world struct {
	harness.Binaries

	browser context.Context

	url      string // of the console
	merchant *harness.Client
	data     string // URL of the database
	db       *pgx.Conn
	faults   harness.Sandbox
	orders   int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	folder := t.TempDir()
	must(t, os.Chmod(folder, 0o755)) // PostgreSQL may run as another user
	built, err := harness.Build(t.Context(), folder)
	must(t, err)
	w := &world{Binaries: built}
	stderr, err := os.Create(filepath.Join(folder, "stderr"))
	must(t, err)
	demo := exec.CommandContext(context.WithoutCancel(t.Context()), built.Payonce, "demo", "--keep", "--charges", "12", "--seed", "7")
	demo.Dir, demo.Stderr, demo.WaitDelay = folder, stderr, time.Second
	demo.Env = append(os.Environ(), "CONSOLE_ADDR=127.0.0.1:0")
	must(t, demo.Start())
	ended := make(chan error, 1)
	go func() { ended <- demo.Wait() }()
	t.Cleanup(func() {
		_ = demo.Process.Signal(syscall.SIGINT)
		if !testrun.Within(time.Minute, func() bool { return len(ended) == 1 }) {
			t.Error("the demo does not end")
			_ = demo.Process.Kill()
		}
		_ = stderr.Close()
	})
	said := func() string {
		text, err := os.ReadFile(stderr.Name())
		must(t, err)
		return string(text)
	}
	testrun.Progress(t, "the demo stays up", func() (string, bool) {
		if len(ended) == 1 {
			t.Fatalf("the demo ended: %s", said())
		}
		return said(), strings.Contains(said(), "everything stays up")
	})
	find := func(name string) string {
		found := regexp.MustCompile(`(?m)^ *` + name + `:? +(\S.*)$`).FindStringSubmatch(said())
		if found == nil {
			t.Fatalf("the demo does not say its %s:\n%s", name, said())
		}
		return found[1]
	}
	w.url, w.data, w.faults = find("console"), find("database"), harness.Sandbox(find("sandbox"))
	w.merchant = harness.NewClient(find("API key"), find("api-1"))
	w.db, err = pgx.Connect(t.Context(), w.data)
	must(t, err)
	t.Cleanup(func() { _ = w.db.Close(context.WithoutCancel(t.Context())) })
	return w
}

// charge sends a charge and returns its id.
func (w *world) charge(t *testing.T) string {
	t.Helper()
	w.orders++
	order := fmt.Sprintf("browser-%d", w.orders)
	body := fmt.Sprintf(`{"order_id":%q,"amount":1250,"currency":"EUR","payment_method":"pm_card_visa","items":[{"sku":"mug","quantity":1}]}`, order)
	answer := w.merchant.PostAll(t.Context(), 1, "/v1/charges", order, []byte(body))[0]
	if answer.Status != http.StatusAccepted {
		t.Fatalf("the charge was answered %d %s", answer.Status, answer.Body)
	}
	return strings.TrimPrefix(answer.Location, "/v1/charges/")
}

func (w *world) mustSucceed(t *testing.T, charge string) {
	t.Helper()
	testrun.Row(t, w.db, `select exists (select from ledger_events where stream_id = $1 and type = 'charge.succeeded.v1')`, charge)
}

// setFaults breaks the provider until the subtest ends.
func (w *world) setFaults(t *testing.T, f harness.Faults) {
	t.Helper()
	must(t, w.faults.SetFaults(t.Context(), f))
	t.Cleanup(func() { must(t, w.faults.SetFaults(context.WithoutCancel(t.Context()), harness.Faults{})) })
}

// payonce runs the operator's tool.
func (w *world) payonce(t *testing.T, args ...string) string {
	t.Helper()
	out, err := harness.Run(t.Context(), map[string]string{"DATABASE_URL": w.data}, w.Payonce, args...)
	must(t, err)
	return string(out)
}
