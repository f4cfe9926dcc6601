package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testdb"
)

// childVariable makes TestRun the program itself, in a process that can be
// killed.
const childVariable = "PAYONCE_SANDBOX_CHILD"

// child is the program, as cmd/sandbox runs it.
func child() {
	logger := program.Logger(os.Stderr, "sandbox")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := sandbox.Run(ctx, logger, program.Environ(), time.Now)
	stop()
	if err != nil {
		logger.Error(err.Error()) //nolint:sloglint // as the program says it
		os.Exit(1)
	}
	os.Exit(0)
}

// process is the sandbox in a process of its own.
type process struct {
	*fixture
	cmd    *exec.Cmd
	stdout bytes.Buffer
	lines  chan string
}

// launch starts the program with these variables and no others.
func launch(t *testing.T, variables ...string) *process {
	t.Helper()
	p := &process{fixture: &fixture{t: t, client: newClient()}, lines: make(chan string, 1000)}
	p.cmd = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRun$")
	p.cmd.Env = append(variables, childVariable+"=1")
	p.cmd.Stdout = &p.stdout
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		for range p.lines { // until the pipe is closed
		}
		_ = p.cmd.Wait() // killed, unless it ended by itself
	})
	go func() {
		defer close(p.lines)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	return p
}

// serve launches the program and waits until it listens.
func serve(t *testing.T, database string) *process {
	t.Helper()
	p := launch(t, "DATABASE_URL="+database, "HTTP_ADDR=127.0.0.1:0")
	for line := range p.lines {
		var entry struct{ Msg, Addr string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("a line that is not JSON: %s", line)
		}
		if entry.Msg == "listening" {
			p.url = "http://" + entry.Addr
			return p
		}
	}
	t.Fatal("it ended before it listened")
	return nil
}

// wait reads the rest of the log and returns its last line and the exit code.
func (p *process) wait() (string, int) {
	p.t.Helper()
	var last string
	for line := range p.lines {
		last = line
	}
	err := p.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	if p.stdout.Len() > 0 {
		p.t.Errorf("stdout: %s", p.stdout.String())
	}
	return last, p.cmd.ProcessState.ExitCode()
}

func TestRun(t *testing.T) {
	t.Parallel()
	if os.Getenv(childVariable) != "" {
		child()
	}

	t.Run("refuses what it cannot use in one sentence", func(t *testing.T) {
		t.Parallel()
		database := "DATABASE_URL=" + testdb.Empty(t)
		for want, variables := range map[string][]string{
			"DATABASE_URL is not set":          nil,
			"STRIPE_WEBHOOK_URL is":            {database, "STRIPE_WEBHOOK_URL=here", "STRIPE_WEBHOOK_SECRET=x"},
			"STRIPE_WEBHOOK_SECRET is not set": {database, "STRIPE_WEBHOOK_URL=http://127.0.0.1:1/"},
			"SHOP_WEBHOOK_SECRET cannot":       {database, "SHOP_WEBHOOK_SECRET=whsec_!"},
			"HTTP_ADDR 127.0.0.1:99999 cannot": {database, "HTTP_ADDR=127.0.0.1:99999"},
		} {
			last, code := launch(t, variables...).wait()
			var entry struct{ Level, Msg string }
			if err := json.Unmarshal([]byte(last), &entry); err != nil || entry.Level != "ERROR" || !strings.HasPrefix(entry.Msg, want) || code != 1 {
				t.Errorf("exit code %d, %s; want 1 and %q", code, last, want)
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
			a, err := p.tryPost("/v1/payment_intents", "k", "amount", "7", "currency", "eur")
			if err != nil {
				t.Error(err)
			}
			delayed <- a
		}()
		await.True(t, "the request is in flight", func() bool { return p.books().Requests == 1 })
		signaled := time.Now()
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if a := <-delayed; a.status != http.StatusOK || time.Since(signaled) >= delay {
			t.Errorf("answered %d %s, want 200 before the delay of %v is over", a.status, a.raw, delay)
		}
		if last, code := p.wait(); code != 0 {
			t.Errorf("exit code %d: %s", code, last)
		}
	})

	t.Run("its books survive SIGKILL, and every key still means one effect", func(t *testing.T) {
		testdb.Long(t, "it starts programs")
		t.Parallel()
		database := testdb.Empty(t)
		p := serve(t, database)
		const charges = 60
		pay := func(p *process, n int) (answered, error) {
			return p.tryPost("/v1/payment_intents", fmt.Sprint("key ", n), "amount", "7", "currency", "eur",
				"payment_method", "pm_card_visa", "confirm", "true", "metadata[charge_id]", fmt.Sprint("ch_", n))
		}
		var mu sync.Mutex
		acknowledged := make(map[int]answered)
		enough := make(chan struct{}, charges)
		var senders sync.WaitGroup
		for n := range charges {
			senders.Go(func() {
				if a, err := pay(p, n); err == nil {
					mu.Lock()
					defer mu.Unlock()
					acknowledged[n] = a
					enough <- struct{}{}
				}
			})
		}
		for range charges / 4 {
			<-enough
		}
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		senders.Wait()
		p.wait()
		p = serve(t, database)
		if before := len(p.books().Captures); before < len(acknowledged) {
			t.Errorf("%d of %d acknowledged captures are in the books", before, len(acknowledged))
		}
		for n := range charges {
			a := p.must(pay(p, n))
			if first, known := acknowledged[n]; a.status != http.StatusOK || (known && !replayed(first, a)) {
				t.Errorf("charge %d: %d %v", n, a.status, a.header)
			}
		}
		seen := make(map[string]bool)
		b := p.books()
		for _, i := range b.Intents {
			if i.Captures != 1 || seen[i.Reference] {
				t.Errorf("%s has %d captures, or two intents", i.Reference, i.Captures)
			}
			seen[i.Reference] = true
		}
		if len(b.Captures) != charges || len(seen) != charges {
			t.Errorf("%d captures for %d of %d charges", len(b.Captures), len(seen), charges)
		}
	})
}
