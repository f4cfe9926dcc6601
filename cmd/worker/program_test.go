package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/program/programtest"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// setenv sets the environment of a worker: a database, a provider that is away, any port,
// and pairs of other settings.
func setenv(t *testing.T, url string, pairs ...string) {
	t.Helper()
	variables := map[string]string{
		"DATABASE_URL": url, "HTTP_ADDR": "127.0.0.1:0",
		"STRIPE_SECRET_KEY": "sk_test_hunter2", "STRIPE_API_BASE": "http://127.0.0.1:1",
	}
	for i := 0; i < len(pairs); i += 2 {
		variables[pairs[i]] = pairs[i+1]
	}
	programtest.Setenv[Settings](t, variables)
}

func mustBeRefused(t *testing.T, says string) {
	t.Helper()
	if refusal, _ := programtest.Refusal(t, run); !strings.Contains(refusal, says) {
		t.Error(refusal)
	}
}

func TestRun(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	server := testdb.Server(t, local.Options{Fsync: true, InMemory: true})
	url := testdb.Migrated(t, server, "service")
	db := testdb.Connect(t, url)

	t.Run("it is ready until it is told to stop", func(t *testing.T) {
		setenv(t, url)
		p := programtest.Start(t, run)
		for _, path := range []string{"/healthz", "/readyz"} {
			if status, body := p.Get(t, path); status != http.StatusOK {
				t.Errorf("%s: status %d: %s", path, status, body)
			}
		}
	})
	t.Run("an expired key becomes a tombstone", func(t *testing.T) {
		b := &pgx.Batch{}
		b.Queue(`delete from janitor_lease`) // the worker before this one may have ended without releasing it
		b.Queue(`
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
select 'acme', 'POST /v1/charges', n::text, '', 202, 'application/json', '{}', clock_timestamp() - interval '1 second'
  from generate_series(1, 1200) as n`)
		if err := db.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		setenv(t, url)
		p := programtest.Start(t, run)
		await.RowWith(t, db, p.Log.String, `select count(*) = 0 from idempotency_keys where body is not null`)
	})
	t.Run("a charge comes into the list", func(t *testing.T) {
		b := &pgx.Batch{}
		_, err := ledger.Append(b, ledger.New("ch_1"), ledger.Cause{}, domain.ChargeRequested{
			MerchantID: "acme", OrderID: "17", Amount: 1000, Currency: "EUR", PaymentMethod: "pm_card_visa",
		})
		if err := errors.Join(err, db.Commit(t.Context(), b)); err != nil {
			t.Fatal(err)
		}
		setenv(t, url)
		p := programtest.Start(t, run)
		await.RowWith(t, db, p.Log.String, `select count(*) = 1 from charge_list where charge_id = 'ch_1'`)
	})
	t.Run("a database without the schema is refused", func(t *testing.T) {
		if err := server.CreateDatabase(t.Context(), "bare"); err != nil {
			t.Fatal(err)
		}
		setenv(t, server.URL("bare"))
		mustBeRefused(t, "payonce migrate")
	})
	t.Run("an address that cannot be listened on is refused", func(t *testing.T) {
		setenv(t, url, "HTTP_ADDR", "nonsense")
		mustBeRefused(t, "HTTP_ADDR nonsense")
	})
}

func TestRun_refusesAServerThatMayLoseCommits(t *testing.T) {
	setenv(t, testdb.Server(t, local.Options{InMemory: true}).URL("postgres"))
	mustBeRefused(t, "fsync is off")
}
