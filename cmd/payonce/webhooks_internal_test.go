package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

const (
	firstSecret  = "whsec_dGhlLWZpcnN0LXNlY3JldC1vZi1hY21lLi4u"
	secondSecret = "whsec_dGhlLXNlY29uZC1zZWNyZXQtb2YtYWNtZS4u"
)

// shopDB has acme with an endpoint.
func shopDB(t *testing.T) *postgres.DB {
	t.Helper()
	db := testdb.Open(t)
	mustExecute(t, db, seedShop("https://shop.example/hooks?token=hush", firstSecret))
	return db
}

func seedShop(url, secret string) seedCmd {
	return seedCmd{Merchant: "acme", APIKey: "sk_test_demo", WebhookURL: url, WebhookSecret: secret}
}

// wantSigned wants a delivery to acme that begins now to be signed by these.
func wantSigned(t *testing.T, db *postgres.DB, url string, secrets ...string) {
	t.Helper()
	got, err := merchants.NewEndpoints(db, 1)(t.Context(), "acme")
	testdb.Must(t, err)
	testrun.Same(t, "the endpoint", merchants.Endpoint{URL: url, Secrets: secrets}, got)
}

func TestSeedWebhook(t *testing.T) {
	t.Parallel()
	const url, other = "https://shop.example/hooks?token=hush", "https://new.example"
	rotate := webhooksRotateCmd{Merchant: "acme", WebhookSecret: secondSecret, Overlap: time.Hour}
	for _, test := range []struct {
		name    string
		rotate  *webhooksRotateCmd // before seed
		seed    seedCmd
		refused string
		url     string
		secrets []string
	}{
		{"the same webhook changes nothing", nil, seedShop(url, firstSecret), "", url, []string{firstSecret}},
		{"a new secret signs beside the old one", nil, seedShop(other, secondSecret), "", other, []string{secondSecret, firstSecret}},
		{
			"a secret that was replaced is refused, and nothing is changed", &rotate, seedShop(other, firstSecret),
			"was replaced", url,
			[]string{secondSecret, firstSecret},
		},
		{"an endpoint moves without its secret", nil, seedShop(other, ""), "", other, []string{firstSecret}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db := shopDB(t)
			if test.rotate != nil {
				mustExecute(t, db, *test.rotate)
			}
			for range 2 { // it may be repeated
				_, _, err := execute(t, db, test.seed)
				if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
					t.Errorf("the error is %v, want %q", err, test.refused)
				}
				wantSigned(t, db, test.url, test.secrets...)
			}
		})
	}
	wantRefused(t, testdb.Open(t), seedShop(url, ""), "needs --webhook-secret")
}

func TestWebhooksRotate(t *testing.T) {
	t.Parallel()
	const url = "https://shop.example/hooks?token=hush"

	t.Run("a new secret is printed once and listed never, and signs beside the old one", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		out, said, err := execute(t, db, webhooksRotateCmd{Merchant: "acme", Overlap: time.Hour})
		testdb.Must(t, err)
		made := strings.TrimSuffix(out, "\n")
		wantSigned(t, db, url, made, firstSecret)
		for _, secret := range []string{"hush", "hooks", "whsec_", firstSecret[6:], made[6:]} {
			if strings.Contains(said, secret) || strings.Count(said, "https://shop.example") != 2 || strings.Count(said, "\n") != 4 {
				t.Errorf("%q may be listed:\n%s", secret, said)
			}
		}
	})

	t.Run("a given secret is not printed", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		for _, c := range []webhooksRotateCmd{
			{Merchant: "acme", WebhookSecret: secondSecret},
			{Merchant: "acme", WebhookSecret: firstSecret, JSON: true},
		} {
			out, said, err := execute(t, db, c)
			if err != nil || strings.Contains(out+said, "whsec_") {
				t.Errorf("%v: %s%s", err, out, said)
			}
			wantSigned(t, db, url, c.WebhookSecret)
		}
	})

	t.Run("JSON has the new secret and all that are stored", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		out, said, err := execute(t, db, webhooksRotateCmd{Merchant: "acme", Overlap: time.Hour, JSON: true})
		if err != nil || said != "" {
			t.Fatalf("%v: %s%s", err, out, said)
		}
		got := decoded[rotated](t, out)
		wantSigned(t, db, url, got.Whole, firstSecret)
		if len(got.Data) != 2 || got.Data[0].EndsAt != nil || got.Data[1].EndsAt == nil || got.Data[0].Origin != "https://shop.example" ||
			!strings.HasPrefix(got.Data[0].CreatedBy, "cli:") {
			t.Errorf("%+v", got.Data)
		}
	})

	t.Run("a secret that was lost is replaced", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		for range 2 { // the first output was lost
			mustExecute(t, db, webhooksRotateCmd{Merchant: "acme", Overlap: time.Hour})
		}
		endpoint, err := merchants.NewEndpoints(db, 1)(t.Context(), "acme")
		if err != nil || len(endpoint.Secrets) != 3 || endpoint.Secrets[2] != firstSecret {
			t.Errorf("%d secrets sign, want the merchant's among three: %v", len(endpoint.Secrets), err)
		}
	})

	t.Run("a bounded number of secrets sign, unless the old ones end at once", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		for range validSecrets - 1 {
			mustExecute(t, db, webhooksRotateCmd{Merchant: "acme", Overlap: time.Hour})
		}
		wantRefused(t, db, webhooksRotateCmd{Merchant: "acme", Overlap: time.Hour}, "--overlap 0s")
		mustExecute(t, db, webhooksRotateCmd{Merchant: "acme", WebhookSecret: secondSecret})
		wantSigned(t, db, url, secondSecret)
	})

	t.Run("a secret that signs already, and a merchant without a webhook, are refused", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		wantRefused(t, db, webhooksRotateCmd{Merchant: "acme", WebhookSecret: firstSecret}, "signs already")
		wantSigned(t, db, url, firstSecret)
		wantRefused(t, db, webhooksRotateCmd{Merchant: "nobody"}, "has no webhook")
	})
}

// deliver records a charge of acme that succeeded, and whose webhook was delivered.
func deliver(t *testing.T, db *postgres.DB, charge string) ledger.Stream {
	t.Helper()
	s := succeed(t, db, charge)
	return record(t, db, s, domain.MerchantNotified{EventID: s.Head().ID.String(), Type: "charge.succeeded", Version: 4})
}

func succeed(t *testing.T, db *postgres.DB, charge string) ledger.Stream {
	t.Helper()
	wanted := requested(charge)
	wanted.Notify, wanted.Steps = true, append(wanted.Steps, domain.Notification)
	return record(t, db, ledger.New(charge), wanted,
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_" + charge},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_" + charge, Amount: 1000, Currency: "USD"},
		domain.ChargeSucceeded{})
}

// messages are the resends that wait in the inbox, in their order.
func messages(t *testing.T, db *postgres.DB) string {
	t.Helper()
	return testdb.One[string](t, db, `
select coalesce(string_agg(concat_ws(' ', i.ordering_key, i.receiver, i.type, i.status, i.message_id = 'resend:' || r.resend_id, i.metadata ->> 'requested_by' = r.requested_by), ', ' order by i.id), '')
  from inbox i
  full join webhook_resends r
    on i.message_id = 'resend:' || r.resend_id`)
}

func TestWebhooksResend(t *testing.T) {
	t.Parallel()
	const waits = " resend webhook.resend pending t t"

	t.Run("an event and a charge are delivered once more", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		one := deliver(t, db, "ch_1").At(4).ID.String()
		deliver(t, db, "ch_2")
		out, said, err := execute(t, db, webhooksResendCmd{Names: []string{one, "ch_2"}})
		if err != nil || said != "" || strings.Count(out, "\n") != 2 || !strings.Contains(out, "charge.succeeded of ch_1 will be delivered once more: event "+one) {
			t.Errorf("%v, said %q:\n%s", err, said, out)
		}
		if got := messages(t, db); got != "ch_1"+waits+", ch_2"+waits {
			t.Errorf("the messages are %s", got)
		}
		tl, err := audit.ReadTimeline(t.Context(), db, "ch_1", "")
		testdb.Must(t, err)
		var shown []string
		for _, e := range tl.Entries {
			if e.Kind == "webhook" {
				shown = append(shown, e.What)
			}
			if e.What == "resend wanted" && (!strings.HasPrefix(e.Who, "cli:") || e.Detail["webhook_id"] != one) {
				t.Errorf("shown: %+v", e)
			}
		}
		testrun.Same(t, "the timeline", []string{"merchant.notified.v1", "resend wanted"}, shown)
	})

	t.Run("an event without a webhook is refused, and the others are not", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		s := deliver(t, db, "ch_1")
		out, _, err := execute(t, db, webhooksResendCmd{
			Names: []string{"ch_nobody", s.At(1).ID.String(), "ch_1", "", "re_1", "order 1", uuid.Nil.String(), "%", "ch_%", "\xff"}, JSON: true,
		})
		if err == nil || strings.Count(err.Error(), "is neither a webhook event") != 9 {
			t.Errorf("the error is %v", err)
		}
		if got := dataOf[resend](t, out); len(got) != 1 || got[0].ChargeID != "ch_1" || got[0].EventID != s.At(4).ID {
			t.Errorf("printed %s", out)
		}
		if got := messages(t, db); got != "ch_1"+waits {
			t.Errorf("the messages are %s", got)
		}
	})

	t.Run("a webhook that was never delivered is refused by name, and left out of a merchant's", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		deliver(t, db, "ch_1")
		s := succeed(t, db, "ch_2")
		refused := func(says string) {
			t.Helper()
			wantRefused(t, db, webhooksResendCmd{Names: []string{"ch_2"}}, says)
		}
		refused("no webhook to send again")
		_, said, err := execute(t, db, webhooksResendCmd{Merchant: "acme", Since: time.Unix(0, 0)})
		if err != nil || strings.Count(said, "left out") != 1 || messages(t, db) != "ch_1"+waits {
			t.Errorf("%v, said %q: %s", err, said, messages(t, db))
		}
		testdb.Exec(t, db.Pool(), `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
values ('notification', $1, 'ch_2', 't', '', '{}', '')`, s.Head().ID.String())
		for status, says := range map[string]string{"pending": "on its way", "running": "on its way", "dead": "payonce inbox retry "} {
			testdb.Exec(t, db.Pool(), `update inbox set status = $1, first = true where ordering_key = 'ch_2'`, status)
			refused(says)
		}
		testdb.Exec(t, db.Pool(), `update merchants set webhook_url = null, webhook_generation = null`)
		refused("no webhook endpoint any more")
	})

	t.Run("all outcomes of a merchant are read page by page", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		testdb.Exec(t, db.Pool(), `
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, webhook, merchant_id, data, metadata, occurred_at)
select md5(n || k)::uuid, 'ch_' || n, case k when 'a' then 1 else 2 end, case k when 'a' then 'charge.failed.v1' else 'merchant.notified.v1' end,
       1, k = 'a', 'acme', case k when 'a' then '{}' else jsonb_build_object('event_id', md5(n || 'a')::uuid) end, '{}', now()
  from generate_series(1, $1::int) n,
       unnest(array['a', 'b']) k
 order by n, k`, 2*resendPage+1)
		out, said, err := execute(t, db, webhooksResendCmd{Merchant: "acme", Since: time.Unix(0, 0), JSON: true})
		if got := dataOf[resend](t, out); err != nil || said != "" || len(got) != 2*resendPage+1 {
			t.Fatalf("%v, said %q, %d resends", err, said, len(got))
		}
		if got := strings.Count(messages(t, db), waits); got != 2*resendPage+1 {
			t.Errorf("%d messages", got)
		}
	})

	t.Run("a time without an outcome is refused", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		deliver(t, db, "ch_1")
		for _, c := range []webhooksResendCmd{
			{Merchant: "nobody", Since: time.Unix(0, 0)},
			{Merchant: "acme", Since: time.Now().Add(time.Hour)},
			{Merchant: "acme", Since: time.Unix(0, 0), Until: time.Unix(1, 0)},
		} {
			wantRefused(t, db, c, "has no webhook event within that time")
		}
	})

	t.Run("what a lost answer leaves open may be asked again", func(t *testing.T) {
		t.Parallel()
		db := shopDB(t)
		deliver(t, db, "ch_1")
		for range 2 {
			mustExecute(t, db, webhooksResendCmd{Names: []string{"ch_1"}})
		}
		if got := messages(t, db); got != "ch_1"+waits+", ch_1"+waits {
			t.Errorf("the messages are %s", got)
		}
	})
}
