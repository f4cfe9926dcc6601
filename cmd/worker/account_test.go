package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestRun_isOfOneAccount starts workers of several accounts, one after another. The message is
// an event of an unknown charge, so it is done once the worker handles messages.
func TestRun_isOfOneAccount(t *testing.T) {
	t.Parallel()
	url := testdb.Migrated(t, testrun.Server(t, local.Options{Fsync: true, InMemory: true}), "service")
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
		message = `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
			values ('fulfillment', '%', 'ch_1', 'stripe.refund.updated', '{}', '{}', '')`
		open = `select count(*) = 1 from inbox where status = 'pending' and attempts = 0`
		done = `select count(*) = 0 from inbox where status <> 'done'`
	)
	unready := func(p *testrun.Running, why string) {
		t.Helper()
		testrun.True(t, "it is not ready: "+why, func() bool {
			got := p.Get(t, "/readyz")
			return got.Status == http.StatusServiceUnavailable && strings.Contains(got.Body, why)
		})
		testrun.Row(t, db, open)
	}

	testdb.Exec(t, db.Pool(), strings.Replace(message, "%", "1", 1))
	testdb.Exec(t, db.Pool(), `update restore_mark set written_in = written_in`)
	status.Store(http.StatusOK)
	testrun.Refusal(t, run, of("acct_1"), "payonce outbox repair")
	if asked.Load() > 0 {
		t.Error("a worker of a copy called the provider")
	}
	testrun.Row(t, db, open)

	status.Store(http.StatusUnauthorized)
	testdb.Exec(t, db.Pool(), `update restore_mark set written_in = pg_current_xact_id()`)
	p := testrun.Start(t, run, of("acct_1"))
	unready(p, "STRIPE_SECRET_KEY")
	status.Store(http.StatusOK)
	testrun.Row(t, db, done)
	testrun.True(t, "it is ready", func() bool { return p.Get(t, "/readyz").Status == http.StatusOK })
	p.Stop()

	testdb.Exec(t, db.Pool(), strings.Replace(message, "%", "3", 1))
	status.Store(http.StatusForbidden) // as for a restricted key that may not read its account
	named := of("restricted")
	named["STRIPE_ACCOUNT"] = "acct_1"
	before := asked.Load()
	p = testrun.Start(t, run, named)
	testrun.Row(t, db, done)
	testrun.True(t, "it is ready", func() bool { return p.Get(t, "/readyz").Status == http.StatusOK })
	p.Stop()
	if asked.Load() > before {
		t.Error("a worker asked for the account that its setting names")
	}
	named["STRIPE_ACCOUNT"] = "acct_2"
	testrun.Refusal(t, run, named, "belongs to another account")
	named["STRIPE_ACCOUNT"] = "none"
	testrun.Refusal(t, run, named, "STRIPE_ACCOUNT is no id of an account")
	status.Store(http.StatusOK)

	testdb.Exec(t, db.Pool(), strings.Replace(message, "%", "2", 1))
	testrun.Refusal(t, run, of("acct_2"), "belongs to another account")
	testrun.Row(t, db, open)
}
