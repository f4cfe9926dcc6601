package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
)

// TestAdopt: the money of a lost payment is refunded once, whatever happens to the command, and
// that of a payment which a charge has, or which took no money, is not.
func TestAdopt(t *testing.T) {
	database := testdb.Empty(t)
	testdb.Must(t, sandbox.Migrate(t.Context(), database))
	pool, err := pgxpool.New(t.Context(), database)
	testdb.Must(t, err)
	t.Cleanup(pool.Close)
	provider, err := sandbox.New(pool, sandbox.Options{Now: time.Now})
	testdb.Must(t, err)
	t.Cleanup(provider.Drain)
	intents := map[string]string{}
	var cut atomic.Bool // the answer to the next refund
	var failed atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refund := ""
		if r.Method == http.MethodPost && r.URL.Path == "/v1/refunds" {
			body, err := io.ReadAll(r.Body)
			testdb.Must(t, err)
			refund, r.Body = string(body), io.NopCloser(bytes.NewReader(body))
		}
		switch {
		case refund != "" && cut.Swap(false):
			provider.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case strings.Contains(refund, intents["disputed"]+"&"):
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"type":"invalid_request_error","code":"charge_disputed","message":"disputed"}}`)
		case strings.Contains(refund, intents["broken"]+"&") && strings.HasSuffix(r.Header.Get("Idempotency-Key"), "-0-0"):
			w.Header().Set("Idempotent-Replayed", strconv.FormatBool(failed.Add(1) > 1))
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"error":{"type":"api_error","message":"broken"}}`)
		default:
			provider.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	t.Setenv("STRIPE_SECRET_KEY", "sk_test_1")
	t.Setenv("STRIPE_API_BASE", server.URL)
	client, err := stripe.New(stripe.Config{SecretKey: "sk_test_1", Base: server.URL})
	testdb.Must(t, err)
	t.Cleanup(client.Close)

	db := testdb.Reused(t)
	for _, name := range []string{"lost", "again", "charge's", "unpaid", "broken", "disputed", "late"} {
		in, err := client.CreateIntent(t.Context(), name, stripe.CreateParams{Reference: "ref_" + name, Amount: 1999, Currency: "EUR", PaymentMethod: "pm_card_visa"})
		testdb.Must(t, err)
		if name != "unpaid" {
			_, err = client.ConfirmIntent(t.Context(), name+"-confirm", in.ID, "")
			testdb.Must(t, err)
		}
		intents[name] = in.ID
		if name == "late" || name == "broken" || name == "disputed" {
			continue
		}
		testdb.Exec(t, db.Pool(), `insert into lost_payments values ($1, 'ref_' || $2, 1999, 'EUR', now())`, in.ID, name)
	}
	testdb.Exec(t, db.Pool(), `insert into adoptions (payment_intent, charge_id) values ($1, 'ch_1')`, intents["charge's"])
	owner := testdb.OpenAt(t, db.Pool().Config().ConnString(), postgres.Options{Settings: map[string]string{"payonce.reason": "the server was lost"}, MaxConns: 4})
	adopt := adoptCmd{Refund: true, JSON: true, reasonFlag: reasonFlag{"the server was lost"}}

	refunded := func(want string) {
		t.Helper()
		if got := testdb.One[string](t, pool, `select coalesce(string_agg(payment_intent || ' ' || amount, ',' order by position), '') from refunds`); got != want {
			t.Errorf("the provider refunded %q, want %q", got, want)
		}
	}
	if out := mustExecute(t, owner, adoptCmd{}); strings.Count(out, "ref_") != 2 {
		t.Errorf("the dry run prints\n%s", out)
	}
	refunded("")
	wantRefused(t, owner, adoptCmd{Refund: true}, "--reason")

	cut.Store(true)
	only := adopt
	only.PaymentIntents = []string{intents["again"]}
	if _, _, err := execute(t, owner, only); err == nil {
		t.Error("a refund without an answer is no error")
	}
	var g errgroup.Group
	for range 2 {
		g.Go(func() error {
			if _, _, err := execute(t, owner, adopt); err != nil && !strings.Contains(err.Error(), "is in flight") {
				return err
			}
			return nil // of two requests at once one is refused, and the other refunds
		})
	}
	testdb.Must(t, g.Wait())
	refunded(intents["again"] + " 1999," + intents["lost"] + " 1999")
	if out := mustExecute(t, owner, adopt); strings.Count(out, `"refund":"re_`)+strings.Count(out, `"refund": "re_`) != 2 {
		t.Errorf("afterwards it prints\n%s", out)
	}
	if got := testdb.One[int](t, owner.Pool(), `select count(*)::int from operator_actions where action = 'adopt' and after ->> 'reason' = 'the server was lost'`); got != 4 {
		t.Errorf("%d actions are recorded, want the decision and the end of each", got)
	}
	// A scan of the command itself finds what came later. One refund that fails stops no other.
	only.PaymentIntents = []string{intents["late"]}
	if _, _, err := execute(t, owner, only); err == nil || !strings.Contains(err.Error(), intents["late"]+": it is no lost payment") {
		t.Errorf("of a payment that is not known it says %v", err)
	}
	testdb.Exec(t, owner.Pool(), `update recoveries set history = 'of the old primary'`)
	out, _, err := execute(t, owner, adopt)
	if err == nil || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), intents["disputed"]+": ") || !strings.Contains(err.Error(), intents["broken"]+": ") || !strings.Contains(out, intents["late"]) {
		t.Errorf("of two refunds that fail it says %v, and prints\n%s", err, out)
	}
	if _, _, err := execute(t, owner, adopt); err == nil || strings.Contains(err.Error(), intents["broken"]) {
		t.Errorf("a saved failure keeps the next refund from being made: %v", err)
	}
	refunded(strings.Join([]string{intents["again"], intents["lost"], intents["late"], intents["broken"]}, " 1999,") + " 1999")

	wantRefused(t, owner, adoptCmd{Release: intents["late"], reasonFlag: adopt.reasonFlag}, "is refunded by")
	mustExecute(t, owner, adoptCmd{Release: intents["disputed"], reasonFlag: adopt.reasonFlag})
	if got := testdb.One[int](t, owner.Pool(), `select count(*)::int from operator_actions where action = 'adopt release' and before ->> 'payment_intent' = $1`, intents["disputed"]); got != 1 {
		t.Errorf("%d releases are recorded", got)
	}
}
