package main

import (
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/program/programtest"
	"github.com/payonce/payonce/internal/testdb"
)

// TestRun_isOfOneAccount starts workers of several accounts, one after another. The message is
// about a refund that the provider does not have, so it is done once the provider is asked.
func TestRun_isOfOneAccount(t *testing.T) {
	t.Parallel()
	url := testdb.Migrated(t, testdb.Server(t, local.Options{Fsync: true, InMemory: true}), "service")
	db := testdb.Connect(t, url)
	var status atomic.Int64
	var asked atomic.Int64
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		code := int(status.Load())
		if r.URL.Path != "/v1/account" {
			if code != http.StatusOK {
				t.Errorf("%s was asked for with a key of an unknown account", r.URL.Path)
			}
			code = http.StatusNotFound
		}
		w.WriteHeader(code)
		if code != http.StatusOK {
			_, _ = w.Write([]byte(`{"error":{"type":"invalid_request_error"}}`))
			return
		}
		_, _ = w.Write([]byte(`{"object":"account","id":"` + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer sk_test_") + `"}`))
	}))
	t.Cleanup(provider.Close)
	of := func(account string) map[string]string {
		return environ(url, "STRIPE_API_BASE", provider.URL, "STRIPE_SECRET_KEY", "sk_test_"+account)
	}
	const (
		message = `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash) values ('fulfillment', '%', 'stripe:re_1', 'stripe.refund.updated', '{}', '{}', '')`
		open    = `select count(*) = 1 from inbox where status = 'pending' and attempts = 0`
		done    = `select count(*) = 0 from inbox where status <> 'done'`
	)
	unready := func(p *programtest.Running, why string) {
		t.Helper()
		await.True(t, "it is not ready: "+why, func() bool {
			got := p.Get(t, "/readyz")
			return got.Status == http.StatusServiceUnavailable && strings.Contains(got.Body, why)
		})
		await.Row(t, db, open)
	}

	testdb.Exec(t, db.Pool(), strings.Replace(message, "%", "1", 1))
	testdb.Exec(t, db.Pool(), `update numbering_mark set written_in = written_in`)
	status.Store(http.StatusOK)
	p := programtest.Start(t, run, of("acct_1"))
	unready(p, "payonce outbox repair")
	if asked.Load() > 0 {
		t.Error("a worker of a copy called the provider")
	}
	p.Stop()

	status.Store(http.StatusUnauthorized)
	testdb.Exec(t, db.Pool(), `update numbering_mark set written_in = pg_current_xact_id()`)
	p = programtest.Start(t, run, of("acct_1"))
	unready(p, "STRIPE_SECRET_KEY")
	status.Store(http.StatusOK)
	await.Row(t, db, done)
	await.True(t, "it is ready", func() bool { return p.Get(t, "/readyz").Status == http.StatusOK })
	p.Stop()

	testdb.Exec(t, db.Pool(), strings.Replace(message, "%", "2", 1))
	programtest.Refusal(t, run, of("acct_2"), "belongs to another account")
	await.Row(t, db, open)
}

func TestShare_countsTheLivingWorkers(t *testing.T) {
	t.Parallel()
	url := testdb.Migrated(t, testdb.Server(t, local.Options{Fsync: true, InMemory: true}), "service")
	count := func(db *postgres.DB, want int) {
		t.Helper()
		await.True(t, "the workers are counted", func() bool {
			var workers int
			testdb.Must(t, db.QueryRow(t.Context(), countWorkers, application+" %").Scan(&workers))
			return workers == want
		})
	}
	var all []*postgres.DB
	testdb.Exec(t, testdb.Connect(t, url).Pool(), `create role client login in role payonce_api`)
	address, err := neturl.Parse(url)
	testdb.Must(t, err)
	address.User = neturl.User("client")
	client, err := postgres.Open(t.Context(), address.String(), postgres.Options{Application: application + " c:1", Role: postgres.RoleAPI})
	testdb.Must(t, err)
	t.Cleanup(client.Close)
	testdb.Must(t, client.QueryRow(t.Context(), `select`).Scan())
	for i, host := range []string{"a:1", "b:1"} {
		db, err := postgres.Open(t.Context(), url, postgres.Options{Application: application + " " + host, Role: postgres.RoleWorker})
		testdb.Must(t, err)
		t.Cleanup(db.Close)
		all = append(all, db)
		count(db, i+1)
	}
	all[0].Close()
	count(all[1], 1)
}
