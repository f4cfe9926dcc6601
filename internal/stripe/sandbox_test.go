package stripe_test

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	stripego "github.com/stripe/stripe-go/v85"
	"github.com/stripe/stripe-go/v85/webhook"

	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// newSandbox runs a sandbox, and returns its origin.
func newSandbox(t *testing.T) string {
	t.Helper()
	return testrun.Start(t, func(ctx context.Context, log *slog.Logger, environ map[string]string) error {
		return sandbox.Run(ctx, log, environ, time.Now)
	}, map[string]string{"HTTP_ADDR": "127.0.0.1:0"}).URL
}

var node = flag.String("node", "", "the version of Stripe's SDK for Node that TestSDK installs and runs; none where empty")

// TestSDK: Stripe's own SDKs find in the sandbox what they find at Stripe. Both run the same
// script, with the same transcript.
func TestSDK(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("testdata/sdk.txt")
	testdb.Must(t, err)
	for name, run := range map[string]func(*testing.T, string) string{"Go": runGo, "Node": runNode} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testrun.Same(t, "the transcript", string(want), run(t, newSandbox(t)))
		})
	}
}

func runNode(t *testing.T, origin string) string {
	t.Helper()
	if *node == "" {
		t.Skip("not run: -node names no version")
	}
	folder := t.TempDir()
	install := exec.CommandContext(t.Context(), "npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "stripe@"+*node)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	script, err := os.ReadFile("testdata/sdk.mjs")
	testdb.Must(t, err)
	testdb.Must(t, os.WriteFile(filepath.Join(folder, "sdk.mjs"), script, 0o600))
	out, err := exec.CommandContext(t.Context(), "node", filepath.Join(folder, "sdk.mjs"), origin).CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	return string(out)
}

func runGo(t *testing.T, origin string) string {
	t.Helper()
	backend := stripego.GetBackendWithConfig(stripego.APIBackend, &stripego.BackendConfig{
		URL: &origin, MaxNetworkRetries: new(int64(0)), LeveledLogger: &stripego.LeveledLogger{Level: stripego.LevelNull},
	})
	c, ctx := stripego.NewClient("sk_test_1", stripego.WithBackends(&stripego.Backends{API: backend})), t.Context()
	var said strings.Builder
	say := func(words ...any) { fmt.Fprintln(&said, words...) }
	intent := func(change func(*stripego.PaymentIntentCreateParams)) (*stripego.PaymentIntent, error) {
		p := &stripego.PaymentIntentCreateParams{Amount: new(int64(1999)), Currency: new("eur"), PaymentMethod: new("pm_card_visa")}
		change(p)
		return c.V1PaymentIntents.Create(ctx, p)
	}
	refused := func(name string, err error) {
		var e *stripego.Error
		if !errors.As(err, &e) {
			say(name, "was not refused")
			return
		}
		status := "-"
		if e.PaymentIntent != nil {
			status = string(e.PaymentIntent.Status)
		}
		say(name, e.Type, cmp.Or(string(e.Code), "-"), cmp.Or(string(e.DeclineCode), "-"), cmp.Or(e.Param, "-"), status)
	}

	i, err := intent(func(p *stripego.PaymentIntentCreateParams) {
		p.Metadata = map[string]string{"charge_id": "ch_1"}
		p.SetIdempotencyKey("create")
	})
	testdb.Must(t, err)
	say("create", i.Status, i.Amount, i.Currency, i.Metadata["charge_id"])
	_, err = intent(func(p *stripego.PaymentIntentCreateParams) {
		p.Amount = new(int64(2000))
		p.SetIdempotencyKey("create")
	})
	refused("key", err)
	i, err = c.V1PaymentIntents.Confirm(ctx, i.ID, nil)
	testdb.Must(t, err)
	say("confirm", i.Status, i.AmountReceived)
	charge, err := c.V1Charges.Retrieve(ctx, i.LatestCharge.ID, nil)
	testdb.Must(t, err)
	say("charge", charge.Status, charge.Paid, charge.AmountCaptured, charge.PaymentMethodDetails.Card.Last4)
	r, err := c.V1Refunds.Create(ctx, &stripego.RefundCreateParams{PaymentIntent: &i.ID, Amount: new(int64(600))})
	testdb.Must(t, err)
	r, err = c.V1Refunds.Retrieve(ctx, r.ID, nil)
	testdb.Must(t, err)
	say("refund", r.Status, r.Amount, cmp.Or(string(r.Reason), "null"))
	refunds := c.V1Refunds.List(ctx, &stripego.RefundListParams{PaymentIntent: &i.ID})
	testdb.Must(t, refunds.Err())
	say("refunds", "list", refunds.Meta().URL, refunds.Meta().HasMore, len(refunds.Data()))
	charge, err = c.V1Charges.Retrieve(ctx, i.LatestCharge.ID, nil)
	testdb.Must(t, err)
	say("charge", charge.AmountRefunded, charge.Refunded)

	for _, wrong := range []struct {
		name   string
		change func(*stripego.PaymentIntentCreateParams)
	}{
		{"decline", func(p *stripego.PaymentIntentCreateParams) {
			p.PaymentMethod, p.Confirm = new("pm_card_chargeDeclinedInsufficientFunds"), new(true)
		}},
		{"amount", func(p *stripego.PaymentIntentCreateParams) { p.Amount = new(int64(49)) }},
		{"currency", func(p *stripego.PaymentIntentCreateParams) { p.Currency = new("xyz") }},
		{"method", func(p *stripego.PaymentIntentCreateParams) { p.PaymentMethod = new("pm_none") }},
		{"parameter", func(p *stripego.PaymentIntentCreateParams) { p.AddExtra("colour", "red") }},
	} {
		_, err := intent(wrong.change)
		refused(wrong.name, err)
	}
	_, err = c.V1PaymentIntents.Retrieve(ctx, "pi_none", nil)
	refused("intent", err)

	listed := []any{"intents"}
	for i, err := range c.V1PaymentIntents.List(ctx, &stripego.PaymentIntentListParams{ListParams: stripego.ListParams{Limit: new(int64(1))}}).All(ctx) {
		testdb.Must(t, err)
		listed = append(listed, i.Status)
	}
	say(listed...)
	events := c.V1Events.List(ctx, &stripego.EventListParams{ListParams: stripego.ListParams{Limit: new(int64(3)), Single: true}})
	testdb.Must(t, events.Err())
	kinds := []any{"events", events.Meta().HasMore}
	for _, e := range events.Data() {
		kinds = append(kinds, e.Type)
	}
	say(kinds...)
	e, err := c.V1Events.Retrieve(ctx, events.Data()[2].ID, nil)
	testdb.Must(t, err)
	say("event", e.Data.Object["amount_refunded"])
	return said.String()
}

// FuzzSignature compares the api, which must not link stripe-go, with the provider's own code: for any header over any
// body both accept or both refuse, but for the empty secret, which the api refuses. In a header {t} stands for the time
// of the api, {v1} for the right signature at that time, and {V1} for the same in capitals.
// internal/httpapi.TestSignature has signatures that are accepted, and those of other times.
func FuzzSignature(f *testing.F) {
	wrong := strings.Repeat("0", 64)
	for _, header := range []string{
		"t={t},v1={v1}", "v1={v1},t={t}", "t={t},v1={V1}", "t={t},v1=" + wrong + ",v1={v1},v0=" + wrong, "t={t},v1=zz,v1={v1}", "t={t},v1=,v1={v1}",
		"t=1,t={t},v1={v1}", "t=+{t},v1={v1}", "t=00{t},v1={v1}", "t={t},v1={v1},x=", "t={t},v1={v1},=x", "", ",", "=", "t={t}", "v1={v1}", "t={t},v1=",
		"t={t},v1=" + wrong, "t={t},v1={v1}00", "t={t},v1=0{v1}", "t={t},v1={v1} ", "t={t}, v1={v1}", " t={t},v1={v1}", "t={t},v0={v1}", "t={t},V1={v1}",
		"T={t},v1={v1}", "t={t},t=1,v1={v1}", "t=,v1={v1}", "t=x,t={t},v1={v1}", "t={t}.0,v1={v1}", "t=1_0,v1={v1}", "t=9223372036854775807,v1={v1}",
		"t=9223372036854775808,v1={v1}", "t=-9223372036854775808,v1={v1}", "t={t},v1={v1},x", "t={t},v1={v1},x=y=z", "t={t},v1={v1},", "t={t}&v1={v1}",
	} {
		f.Add(header, `{"id":"evt_1"}`, "whsec_1")
	}
	f.Add("t={t},v1={v1}", "", "\x00")
	f.Add("t={t},v1={v1}", "\xff", "\xff")
	f.Add("t={t},v1={v1}", "{}", "")
	at := time.Unix(1_800_000_000, 0)
	api := httpapi.New(httpapi.Config{
		DB: (*postgres.DB)(nil), Intake: &intake.Intake{}, Now: func() time.Time { return at }, Log: slog.New(slog.DiscardHandler),
	})
	f.Fuzz(func(t *testing.T, header, body, secret string) {
		if len(body) > 64<<10 {
			t.Skip("too large whatever its signature is")
		}
		right := hex.EncodeToString(webhook.ComputeSignature(at, []byte(body), secret))
		signed := strings.NewReplacer(
			"{t}", strconv.FormatInt(at.Unix(), 10), "{v1}", right, "{V1}", strings.ToUpper(right),
		).Replace(header)
		theirs := webhook.ValidatePayloadIgnoringTolerance([]byte(body), signed, secret) == nil
		api.StripeSecrets = []string{secret}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/webhooks/stripe", strings.NewReader(body))
		r.Header["Stripe-Signature"] = []string{signed}
		recorder := httptest.NewRecorder()
		api.Handler().ServeHTTP(recorder, r)
		ours := !strings.Contains(recorder.Body.String(), "/problems/webhook-signature")
		if ours != (theirs && secret != "") {
			t.Errorf("we accept: %t, Stripe accepts: %t", ours, theirs)
		}
	})
}
