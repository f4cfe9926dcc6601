package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/app/worker"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/migrations"
)

const patience = await.Stall // bounds what an HTTP client waits for

// transcript is what was logged.
type transcript struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// address waits for the line that tells where the program listens.
func (l *transcript) address(t *testing.T, ended <-chan error) string {
	t.Helper()
	var address string
	await.Progress(t, "it listens", func() (seen string, done bool) {
		for line := range strings.Lines(l.String()) {
			var fields struct{ Msg, Addr string }
			if err := json.Unmarshal([]byte(line), &fields); err != nil {
				t.Fatalf("a line is not JSON: %s", line)
			}
			if fields.Msg == "listening" {
				address = fields.Addr
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("it does not start: %v\n%s", err, l)
		default:
		}
		return l.String(), address != ""
	})
	return address
}

func start(t *testing.T, fsync bool) *local.Server {
	t.Helper()
	server, err := local.Start(t.Context(), local.Options{Fsync: fsync, InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

func open(t *testing.T, url string) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(t.Context(), url, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

func TestRun(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	server := start(t, true)
	unset(t)
	t.Setenv("HTTP_ADDR", "127.0.0.1:0")
	t.Setenv("STRIPE_SECRET_KEY", "sk_test_1")
	t.Setenv("STRIPE_API_BASE", "http://127.0.0.1:1") // where nobody is
	for _, name := range []string{"bare", "migrated"} {
		if err := server.CreateDatabase(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := migrations.Up(t.Context(), server.URL("migrated")); err != nil {
		t.Fatal(err)
	}

	t.Run("it works until it is told to stop", func(t *testing.T) {
		t.Setenv("DATABASE_URL", server.URL("migrated"))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		log := &transcript{}
		ended := make(chan error, 1)
		go func() { ended <- worker.Run(ctx, program.Logger(log, "worker"), time.Now) }()
		address := log.address(t, ended)
		for _, path := range []string{"/healthz", "/readyz"} {
			if status, body := get(t, "http://"+address+path); status != http.StatusOK {
				t.Errorf("%s: status %d: %s", path, status, body)
			}
		}
		stop()
		if err := await.Receive(t, "the end of the program", ended); err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
	t.Run("an expired key becomes a tombstone", func(t *testing.T) {
		t.Setenv("DATABASE_URL", server.URL("migrated"))
		db := open(t, server.URL("migrated"))
		b := &pgx.Batch{}
		b.Queue(`delete from janitor_lease`) // a worker before this one may have ended too fast to give it back
		b.Queue(`
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
select 'acme', 'POST /v1/charges', n::text, '', 202, 'application/json', '{}', clock_timestamp() - interval '1 second'
  from generate_series(1, 1200) as n`)
		if err := db.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		log := &transcript{}
		ended := make(chan error, 1)
		go func() { ended <- worker.Run(ctx, program.Logger(log, "worker"), time.Now) }()
		log.address(t, ended)
		await.RowWith(t, db, log.String, `select count(*) = 0 from idempotency_keys where body is not null`)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Run("a charge comes into the list", func(t *testing.T) {
		t.Setenv("DATABASE_URL", server.URL("migrated"))
		db := open(t, server.URL("migrated"))
		b := &pgx.Batch{}
		_, err := ledger.Append(b, ledger.New("ch_1"), ledger.Cause{}, domain.ChargeRequested{
			MerchantID: "acme", OrderID: "17", Amount: 1000, Currency: "EUR", PaymentMethod: "pm_card_visa",
		})
		if err := errors.Join(err, db.Commit(t.Context(), b)); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		log := &transcript{}
		ended := make(chan error, 1)
		go func() { ended <- worker.Run(ctx, program.Logger(log, "worker"), time.Now) }()
		log.address(t, ended)
		await.RowWith(t, db, log.String, `select count(*) = 1 from charge_list where charge_id = 'ch_1'`)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Run("a database without the schema is refused", func(t *testing.T) {
		t.Setenv("DATABASE_URL", server.URL("bare"))
		wantRefusal(t, "payonce migrate")
	})
	t.Run("an address that cannot be listened on is refused", func(t *testing.T) {
		t.Setenv("DATABASE_URL", server.URL("migrated"))
		t.Setenv("HTTP_ADDR", "nonsense")
		wantRefusal(t, "HTTP_ADDR nonsense")
	})
}

func TestAServerThatMayLoseCommitsIsRefused(t *testing.T) {
	server := start(t, false)
	unset(t)
	t.Setenv("DATABASE_URL", server.URL("postgres"))
	t.Setenv("STRIPE_SECRET_KEY", "sk_test_1")
	wantRefusal(t, "fsync is off")
}

func wantRefusal(t *testing.T, says string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := worker.Run(ctx, program.Logger(io.Discard, "worker"), time.Now)
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("Run: %v", err)
	}
}

func get(t *testing.T, address string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(raw)
}
