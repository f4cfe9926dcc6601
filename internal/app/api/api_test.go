package api_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/app/api"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/migrations"
)

const (
	patience = await.Stall // bounds what an HTTP client waits for
	apiKey   = "sk_test_of_acme"
	charge   = `{"order_id":"order-1","amount":2000,"currency":"USD","payment_method":"pm_card_visa"}`
)

// start starts a server. The program refuses the one that other tests share,
// since that one may lose commits.
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

// database makes a migrated database with one merchant.
func database(t *testing.T, server *local.Server, name string) (address string, db *postgres.DB) {
	t.Helper()
	address = server.URL(name)
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.WithoutCancel(t.Context())) }()
	var migrated bool
	err = admin.QueryRow(t.Context(), `select exists (select from pg_database where datname = 'migrated')`).Scan(&migrated)
	if err != nil {
		t.Fatal(err)
	}
	if !migrated {
		if err := server.CreateDatabase(t.Context(), "migrated"); err != nil {
			t.Fatal(err)
		}
		if err := migrations.Up(t.Context(), server.URL("migrated")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.Exec(t.Context(), "create database "+pgx.Identifier{name}.Sanitize()+" template migrated strategy file_copy"); err != nil {
		t.Fatal(err)
	}
	db, err = postgres.Open(t.Context(), address, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	b := &pgx.Batch{}
	if err := merchants.Register(b, merchants.Merchant{ID: "acme"}, merchants.Webhook{}); err != nil {
		t.Fatal(err)
	}
	merchants.AddKey(b, "acme", apiKey)
	if err := db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return address, db
}

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

// running is a program that runs until it is stopped.
type running struct {
	url   string
	stop  context.CancelFunc
	ended chan error
}

// run starts the program and waits until it listens.
func run(t *testing.T) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	log := &transcript{}
	p := &running{stop: stop, ended: make(chan error, 1)}
	go func() { p.ended <- api.Run(ctx, program.Logger(log, "api"), time.Now) }()
	await.Progress(t, "the program listens", func() (seen string, done bool) {
		for line := range strings.Lines(log.String()) {
			var fields struct{ Msg, Addr string }
			if err := json.Unmarshal([]byte(line), &fields); err != nil {
				t.Fatalf("a line is not JSON: %s", line)
			}
			if fields.Msg == "listening" {
				p.url = "http://" + fields.Addr
			}
		}
		select {
		case err := <-p.ended:
			t.Fatalf("it does not start: %v\n%s", err, log)
		default:
		}
		return log.String(), p.url != ""
	})
	return p
}

// end stops the program, which must go in peace.
func (p *running) end(t *testing.T) {
	t.Helper()
	p.stop()
	if err := await.Receive(t, "the end of the program", p.ended); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func (p *running) send(t *testing.T, method, path, body string) (status int, header http.Header, answer string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, p.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.GetBody = nil
	request.Header.Set("Authorization", "Bearer "+apiKey)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", "key-1")
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
	return response.StatusCode, response.Header, string(raw)
}

func TestRun(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	server := start(t, true)
	unset(t)
	t.Setenv("HTTP_ADDR", "127.0.0.1:0")

	t.Run("it serves until it is told to stop", func(t *testing.T) {
		address, _ := database(t, server, "serves")
		t.Setenv("DATABASE_URL", address)
		t.Setenv("IDEMPOTENCY_RETENTION", "1h")
		p := run(t)
		if status, _, body := p.send(t, http.MethodGet, "/readyz", ""); status != http.StatusOK {
			t.Errorf("readyz: status %d: %s", status, body)
		}
		status, header, first := p.send(t, http.MethodPost, "/v1/charges", charge)
		expires, err := time.Parse(http.TimeFormat, header.Get("Idempotency-Expires"))
		if status != http.StatusAccepted || err != nil || time.Until(expires) > time.Hour || time.Until(expires) < 50*time.Minute {
			t.Errorf("status %d, %v: %s", status, header, first)
		}
		p.end(t)

		p = run(t)
		if _, _, again := p.send(t, http.MethodPost, "/v1/charges", charge); again != first {
			t.Errorf("the next program gives another answer:\n%s%s", first, again)
		}
		p.end(t)
	})

	t.Run("without a schema it is alive and not ready", func(t *testing.T) {
		database(t, server, "beside") // the roles are the server's
		if err := server.CreateDatabase(t.Context(), "bare"); err != nil {
			t.Fatal(err)
		}
		t.Setenv("DATABASE_URL", server.URL("bare"))
		p := run(t)
		for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
			if status, _, body := p.send(t, http.MethodGet, path, ""); status != want {
				t.Errorf("%s: status %d, want %d: %s", path, status, want, body)
			}
		}
		p.end(t)
	})

	for policy, want := range map[string]struct {
		status int
		wait   time.Duration // at least
	}{
		"wait": {http.StatusConflict, 600 * time.Millisecond},
		"409":  {http.StatusConflict, 0},
		"425":  {http.StatusTooEarly, 0},
		"202":  {http.StatusAccepted, 0},
	} {
		t.Run("IN_FLIGHT="+policy, func(t *testing.T) {
			address, db := database(t, server, "policy_"+policy)
			t.Setenv("DATABASE_URL", address)
			t.Setenv("IN_FLIGHT", policy)
			t.Setenv("IN_FLIGHT_WAIT", "600ms")
			p := run(t)
			hold(t, db)
			began := time.Now()
			status, header, body := p.send(t, http.MethodPost, "/v1/charges", charge)
			if status != want.status || header.Get("Retry-After") != "1" {
				t.Errorf("status %d, want %d: %s", status, want.status, body)
			}
			if waited := time.Since(began); waited < want.wait {
				t.Errorf("answered after %s", waited)
			}
			if status == http.StatusAccepted && (body != "{}" || header.Get("Location") != "") {
				t.Errorf("a pending answer: %v %s", header, body)
			}
			p.end(t)
		})
	}

	t.Run("IDEMPOTENCY_KEY_MODE=natural", func(t *testing.T) {
		address, _ := database(t, server, "natural")
		t.Setenv("DATABASE_URL", address)
		t.Setenv("IDEMPOTENCY_KEY_MODE", "natural")
		p := run(t)
		status, header, _ := p.send(t, http.MethodPost, "/v1/charges", charge)
		if status != http.StatusAccepted || header.Get("Idempotency-Key") != "order-1:charge:v1" {
			t.Errorf("status %d, %v", status, header)
		}
		p.end(t)
	})

	t.Run("STRIPE_WEBHOOK_SECRET may hold two secrets", func(t *testing.T) {
		address, _ := database(t, server, "events")
		t.Setenv("DATABASE_URL", address)
		t.Setenv("STRIPE_WEBHOOK_SECRET", "whsec_new, whsec_old")
		p := run(t)
		for secret, want := range map[string]int{"whsec_new": http.StatusOK, "whsec_old": http.StatusOK, "whsec_other": http.StatusBadRequest, "": http.StatusBadRequest} {
			const event = `{"id":"evt_1","type":"payout.paid"}`
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/webhooks/stripe", strings.NewReader(event))
			if err != nil {
				t.Fatal(err)
			}
			at := strconv.FormatInt(time.Now().Unix(), 10)
			mac := hmac.New(sha256.New, []byte(secret))
			mac.Write([]byte(at + "." + event))
			request.Header.Set("Stripe-Signature", "t="+at+",v1="+hex.EncodeToString(mac.Sum(nil)))
			response, err := (&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("signed by %q: status %d, want %d", secret, response.StatusCode, want)
			}
		}
		p.end(t)
	})

	t.Run("RATE_LIMIT=1", func(t *testing.T) {
		address, _ := database(t, server, "rated")
		t.Setenv("DATABASE_URL", address)
		t.Setenv("RATE_LIMIT", "1")
		p := run(t)
		if status, _, body := p.send(t, http.MethodPost, "/v1/charges", charge); status != http.StatusAccepted {
			t.Errorf("the first request: status %d: %s", status, body)
		}
		await.Progress(t, "two requests come within a second", func() (seen string, done bool) {
			status, _, body := p.send(t, http.MethodPost, "/v1/charges", charge)
			return body, status == http.StatusTooManyRequests
		})
		p.end(t)
	})

	t.Run("REDIS_URL that is no address is refused", func(t *testing.T) {
		address, _ := database(t, server, "cached")
		t.Setenv("DATABASE_URL", address)
		t.Setenv("REDIS_URL", "localhost:6379")
		err := api.Run(t.Context(), program.Logger(io.Discard, "api"), time.Now)
		if err == nil || !strings.Contains(err.Error(), "REDIS_URL") {
			t.Errorf("Run: %v", err)
		}
	})

	t.Run("REDIS_URL of nobody changes nothing", func(t *testing.T) {
		address, _ := database(t, server, "uncached")
		t.Setenv("DATABASE_URL", address)
		t.Setenv("REDIS_URL", "redis://127.0.0.1:1")
		p := run(t)
		_, _, first := p.send(t, http.MethodPost, "/v1/charges", charge)
		if _, header, again := p.send(t, http.MethodPost, "/v1/charges", charge); again != first || header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("not the first answer: %s", again)
		}
		p.end(t)
	})

	t.Run("an address that cannot be listened on is refused", func(t *testing.T) {
		t.Setenv("DATABASE_URL", server.URL("postgres"))
		t.Setenv("HTTP_ADDR", "nonsense")
		err := api.Run(t.Context(), program.Logger(io.Discard, "api"), time.Now)
		if err == nil || !strings.HasPrefix(err.Error(), "HTTP_ADDR nonsense ") {
			t.Errorf("Run: %v", err)
		}
	})
}

// hold takes the key in a transaction that lasts as long as the test.
func hold(t *testing.T, db *postgres.DB) {
	t.Helper()
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	_, err = tx.Exec(t.Context(), `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
values ('acme', 'POST /v1/charges', 'key-1', 'another', 202, 'application/json', '{}', clock_timestamp() + interval '1 hour')`)
	if err != nil {
		t.Fatal(err)
	}
}

func TestAServerThatMayLoseCommitsIsRefused(t *testing.T) {
	server := start(t, false)
	unset(t)
	t.Setenv("DATABASE_URL", server.URL("postgres"))
	err := api.Run(t.Context(), program.Logger(io.Discard, "api"), time.Now)
	if err == nil || !strings.HasPrefix(err.Error(), "fsync ") {
		t.Errorf("Run: %v", err)
	}
}

func TestAServerWithoutTheRoleIsRefused(t *testing.T) {
	server := start(t, true)
	unset(t)
	t.Setenv("DATABASE_URL", server.URL("postgres"))
	err := api.Run(t.Context(), program.Logger(io.Discard, "api"), time.Now)
	if err == nil || err.Error() != "the database has no role payonce_api: run payonce migrate" {
		t.Errorf("Run: %v", err)
	}
}
