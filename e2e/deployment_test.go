package e2e_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// setup says what a deployment is made of. Zero values: no api, no worker, the
// shared server.
type setup struct {
	apis           int
	workers        int
	gate           failpoint.CallHook // of a gate between the workers and the provider; none where nil
	providerEvents bool               // the provider sends its events to the apis
	twice          bool               // clients in flight send each request twice at once
	detectRaces    bool               // with -every the apis and the workers report data races in their logs
	on             *server            // the shared one where nil

	apiEnv    map[string]string
	workerEnv map[string]string
}

// deployment is a payonce of its own: databases, a sandbox, apis and workers, all
// of them real programs.
type deployment struct {
	*world
	setup

	provider string // where the workers call the provider
	client   *client
}

func newSecrets() harness.Secrets {
	return harness.Secrets{
		API:      "sk_test_merchant" + unique(),
		Provider: "sk_test_provider" + unique(),
		Shop:     "whsec_" + base64.StdEncoding.EncodeToString([]byte("webhooks-of-"+unique())),
		Events:   "whsec_events" + unique(),
	}
}

// with is what Up starts of a deployment: a merchant with two articles in stock, and so many apis.
func with(apis int) harness.Setup {
	return harness.Setup{APIs: apis, Merchant: "acme", Stock: []string{"tshirt=100000", "mug=100000"}}
}

// deploy starts a deployment. When the test ends, every invariant is checked and
// the programs are stopped.
func deploy(t *testing.T, s setup) *deployment {
	t.Helper()
	if s.on == nil {
		s.on = made(t, shared)
	}
	d, run := &deployment{setup: s}, programs
	if s.detectRaces && *every {
		run = raceDetecting
	}
	var err error
	d.world, err = s.on.openWorld(t.Context(), made(t, run), t.TempDir())
	t.Cleanup(func() {
		if err := d.close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	t.Cleanup(func() { d.end(t) })
	d.Env = d.settings
	what := with(s.apis)
	what.Events = s.providerEvents
	must(t, d.Up(bounded(t), what))
	d.client, d.provider = newClient(d.Client()), d.Sandbox.URL()
	if s.gate != nil {
		gate, err := failpoint.NewGate(d.provider, func() failpoint.CallHook { return s.gate })
		must(t, err)
		t.Cleanup(gate.Close)
		d.provider = gate.URL
	}
	d.startWorkers(t)
	return d
}

func (d *deployment) startWorkers(t *testing.T) {
	t.Helper()
	var err error
	d.Workers, err = d.StartAll(bounded(t), "worker", d.Worker, d.workers, d.WorkerEnv)
	must(t, err)
}

// settings changes the settings of a program that is started.
func (d *deployment) settings(name string, env map[string]string) {
	switch {
	case strings.Contains(name, "api"):
		d.server.unprivileged(env, "api")
		maps.Copy(env, d.apiEnv)
	case strings.Contains(name, "worker"):
		d.server.unprivileged(env, "worker")
		env["STRIPE_API_BASE"], env["BACKOFF_CAP"] = d.provider, "500ms"
		maps.Copy(env, d.workerEnv)
	}
}

// payonce runs the operator's tool and returns what it printed.
func (d *deployment) payonce(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := d.Run(bounded(t), args...)
	must(t, err)
	return out
}

func kill(t *testing.T, programs ...*harness.Process) {
	t.Helper()
	for _, p := range programs {
		must(t, p.Kill())
	}
}

// restart starts programs after a kill, or stops them first.
func restart(t *testing.T, programs ...*harness.Process) {
	t.Helper()
	for _, p := range programs {
		must(t, errors.Join(p.Restart(bounded(t)), p.WaitReady(bounded(t))))
	}
}

const (
	// stopTime is the contract's: a program drains and exits within 10 s of SIGTERM.
	stopTime = 10 * time.Second
	// abandonsWork is what a program logs that exits before it has drained.
	abandonsWork = "stopped with work unfinished"
)

// stop sends SIGTERM and requires exit code 0. On a busy machine a program may take
// longer than stopTime, unless its own log shows that it has used up its own bound,
// at which it abandons unfinished work.
func stop(t *testing.T, programs ...*harness.Process) {
	t.Helper()
	for _, p := range programs {
		begun := time.Now()
		if err := p.Stop(bounded(t)); err != nil {
			t.Error(err)
		}
		if time.Since(begun) > stopTime && strings.Contains(p.Tail(), abandonsWork) {
			t.Errorf("%s did not drain within %s of SIGTERM", p.Name(), stopTime)
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(path))
	must(t, err)
	return string(text)
}

// querier is a pool, or one connection.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// execute changes tables.
func execute(t *testing.T, q querier, sql string) {
	t.Helper()
	if _, err := q.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// row reads one value of the tables.
func row[T any](t *testing.T, q querier, sql string, args ...any) T {
	t.Helper()
	return rows[T](t, q, sql, args...)[0]
}

// rows reads one column of the tables. It waits for a server that restarts.
func rows[T any](t *testing.T, q querier, sql string, args ...any) []T {
	t.Helper()
	var values []T
	ctx := context.WithoutCancel(t.Context())
	testrun.Progress(t, "the database answers", func() (string, bool) {
		found, err := q.Query(ctx, sql, args...)
		if err == nil {
			values, err = pgx.CollectRows(found, pgx.RowTo[T])
		}
		if refused := new(pgconn.PgError); errors.As(err, &refused) && !strings.HasPrefix(refused.Code, "57") {
			t.Fatalf("%s: %v", sql, err)
		}
		return fmt.Sprint(err), err == nil
	})
	return values
}

// mustRead requires a value of the tables.
func mustRead[T comparable](t *testing.T, q querier, want T, sql string, args ...any) {
	t.Helper()
	if got := row[T](t, q, sql, args...); got != want {
		t.Errorf("%v, want %v, is what the tables have: %s", got, want, strings.TrimSpace(sql))
	}
}

// services are the apis and workers.
func (d *deployment) services() []*harness.Process { return slices.Concat(d.Workers, d.APIs) }
