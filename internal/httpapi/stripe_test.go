package httpapi_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

const (
	stripeSecret = "whsec_of_the_endpoint"
	olderSecret  = "whsec_before_it_was_changed"
)

// noon is the time of every API that receives events here.
func noon() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// takesEvents has an API take events under two secrets.
func takesEvents(api *httpapi.Config) {
	api.StripeSecrets, api.Now = []string{stripeSecret, olderSecret}, noon
}

// mac is the signature of a body at a time.
func mac(secret, at, body string) string {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(at + "." + body))
	return hex.EncodeToString(h.Sum(nil))
}

// unix is a time so many seconds after noon.
func unix(seconds int64) string { return strconv.FormatInt(noon().Unix()+seconds, 10) }

// signed delivers an event as the provider does.
func signed(body string) call {
	return unsigned(body).with("Stripe-Signature", "t="+unix(0)+",v1="+mac(stripeSecret, unix(0), body))
}

func unsigned(body string) call {
	return call{
		method: http.MethodPost, path: "/v1/webhooks/stripe", body: body,
		header: http.Header{"Content-Type": {"application/json; charset=utf-8"}},
	}
}

// event is one as the provider writes it, with members that payonce does not know.
func event(id, kind, object string) string {
	return fmt.Sprintf(`{"id":%q,"object":"event","api_version":"2026-03-25.dahlia","created":1772366400,
"data":{"object":%s,"previous_attributes":{"status":"processing"}},"livemode":false,"pending_webhooks":1,
"request":{"id":"req_1","idempotency_key":null},"type":%q}`, id, object, kind)
}

// private is what an event tells about a customer.
const private = `"billing_details":{"name":"Ada private-qwx7","address":{"line1":"private-qwx7"}},` +
	`"payment_method_details":{"card":{"last4":"4242","exp_year":2031}}`

// intentOf is the payment intent of a charge.
func intentOf(charge string) string {
	return fmt.Sprintf(`{"id":"pi_%s","object":"payment_intent","amount":2000,"status":"succeeded",%s,"metadata":{"charge_reference":"ref_1"}}`, charge, private)
}

// otherOf is another object of the provider about a charge; it names the intent alone.
func otherOf(kind, charge string) string {
	return fmt.Sprintf(`{"id":"%s_1","object":%q,"charge":"ch_provider","payment_intent":"pi_%s",%s,"metadata":{"refund_id":"re_ours"}}`,
		kind, kind, charge, private)
}

func idOf(location string) string { return strings.TrimPrefix(location, "/v1/charges/") }

func wantReceived(t *testing.T, a answer) {
	t.Helper()
	if a.status != http.StatusOK || a.body != "{\"received\":true}\n" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("status %d, %s: %s", a.status, a.header.Get("Content-Type"), a.body)
	}
}

// TestStripeEvent: an event about a charge of ours is one message, of the merchant of that charge
// whatever the event's id is. One that is of no use is thanked for, and leaves none.
func TestStripeEvent(t *testing.T) {
	t.Parallel()
	w := serve(t, takesEvents)
	ours, accepted := idOf(w.captured(t, "key-1")), idOf(w.accept(t, "key-2", body()).header.Get("Location"))
	theirs := idOf(w.accepted(t, post("key-1", body()).as(globexKey)).header.Get("Location"))
	w.happen(t, theirs, happens(domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_" + theirs}))
	testdb.Exec(t, w.db.Pool(), `delete from outbox`)
	before := rows(t, w.db)
	var want []string
	for _, test := range []struct{ kind, object, merchant, charge, id string }{
		{"payment_intent.succeeded", intentOf(ours), "acme", ours, "pi_" + ours},
		{"payment_intent.succeeded", intentOf(theirs), "globex", theirs, "pi_" + theirs},
		{"refund.created", otherOf("refund", ours), "acme", ours, "refund_1"},
		{"refund.failed", otherOf("refund", ours), "acme", ours, "refund_1"},
		{"charge.refunded", otherOf("charge", ours), "acme", ours, "charge_1"},
		{"charge.dispute.created", otherOf("dispute", ours), "acme", ours, "dispute_1"},

		{"customer.created", intentOf(ours), "", "", ""},
		{"charge.succeeded", otherOf("charge", ours), "", "", ""},
		{"payment_intent.succeeded", intentOf("ch_of_another_shop"), "", "", ""},
		{"refund.created", `{"id":"re_1","object":"refund","payment_intent":null}`, "", "", ""},
		{"refund.created", otherOf("refund", accepted), "", "", ""}, // before its payment has begun
		{"payment_intent.succeeded", strings.Replace(intentOf("x"), `"x"`, `"`+strings.Repeat("c", 300)+`"`, 1), "", "", ""},
	} {
		wantReceived(t, w.send(t, signed(event("evt_1", test.kind, test.object))))
		if test.merchant != "" {
			want = append(want, fmt.Sprintf(`charges evt_1 {"type": "stripe.%[1]s", "ordering_key": %[2]q, "partition_key": %[3]q} {"id":"evt_1","type":%[1]q,"charge_id":%[2]q,"object":%[4]q}`,
				test.kind, test.charge, test.merchant, test.id))
		}
	}
	again := strings.Replace(event("evt_1", "payment_intent.succeeded", intentOf(ours)), `"pending_webhooks":1`, `"pending_webhooks":2`, 1)
	wantReceived(t, w.send(t, signed(again))) // the same message, which the worker's inbox stores once
	want = append(want, want[0])
	got := testdb.All[string](t, w.db, `
select concat_ws(' ', topic, message_id, metadata, convert_from(payload, 'UTF8')) from outbox order by id`)
	testrun.Same(t, "outbox", want, got)
	wantRows(t, w.db, before, map[string]int64{"outbox": int64(len(want))})
}

// A signed event may still be nonsense. The signature decides alone, about this path alone. The log holds
// nothing of an event.
func TestStripeEvent_isRefused(t *testing.T) {
	t.Parallel()
	w := serve(t, takesEvents)
	charge := idOf(w.captured(t, "key-1"))
	right := event("evt_1", "payment_intent.succeeded", intentOf(charge))
	wantReceived(t, w.send(t, signed(padded(right, 1<<20)))) // with the evidence of a dispute
	before := rows(t, w.db)
	at := func(path string) call {
		c := signed(right)
		c.path = path
		return c
	}
	const unsignedEvent, malformed = "/problems/webhook-signature", "/problems/malformed"
	for name, test := range map[string]struct {
		call call
		kind string
	}{
		"the signature beats the body":       {unsigned("{"), unsignedEvent},
		"an API key is no signature":         {unsigned("{").with("Authorization", "Bearer "+apiKey), unsignedEvent},
		"an idempotency key is no signature": {unsigned("{}").with("Idempotency-Key", "key-1"), unsignedEvent},
		"only POST brings events":            {signed(right).like(http.MethodPut), "/problems/method-not-allowed"},
		"no path below is open":              {at("/v1/webhooks/stripe/x"), "/problems/unauthorized"},
		"no other spelling is open":          {at("/v1/webhooks%2Fstripe"), "/problems/unauthorized"},
		"more than 1 MiB":                    {signed(padded(right, 1<<20+1)), "/problems/too-large"},
		"nothing":                            {signed(""), malformed},
		"not JSON":                           {signed(right[1:]), malformed},
		"NUL":                                {signed(right + "\x00"), malformed},
		"a member twice":                     {signed(strings.Replace(right, `"livemode":false`, `"id":"evt_2"`, 1)), malformed},
		"no id":                              {signed(strings.Replace(right, `"id":"evt_1"`, `"no":1`, 1)), malformed},
		"an id of 256 characters":            {signed(event(strings.Repeat("e", 256), "payment_intent.succeeded", intentOf(charge))), malformed},
		"a type of 101 characters":           {signed(event("evt_1", "payment_intent."+strings.Repeat("a", 86), intentOf(charge))), malformed},
		"no data":                            {signed(`{"id":"evt_1","type":"payment_intent.succeeded"}`), malformed},
		"a type that is no ASCII":            {signed(event("evt_1", "payment_intent.\ufffd", intentOf(charge))), malformed},
		"half a surrogate pair":              {signed(strings.Replace(right, "ref_1", `\ud800`, 1)), malformed},
		"an object without id":               {signed(event("evt_1", "payment_intent.succeeded", `{}`)), malformed},
		"lists within lists": {
			signed(event("evt_1", "payment_intent.succeeded", strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000))), malformed,
		},
	} {
		t.Run(name, func(t *testing.T) { wantProblem(t, w.send(t, test.call), test.kind) })
	}
	wantRows(t, w.db, before, nil)
	wantReceived(t, w.send(t, signed(right).with("Authorization", "Bearer unknown").with("Content-Type")))
	for _, keys := range [][]string{{"key-1"}, {`"`}, {"a", "b"}} {
		a := w.send(t, signed(right).with("Idempotency-Key", keys...))
		wantReceived(t, a)
		if a.header.Get("Idempotency-Key")+a.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("headers: %v", a.header)
		}
	}
	testdb.Exec(t, w.db.Pool(), `alter table outbox add constraint planted check (message_id = '') not valid`)
	wantProblem(t, w.send(t, signed(right)), "/problems/unavailable")
	// What the provider sends is its customers' business: no line of the log holds any of it.
	wantNoneOf(t, w, "evt_", "qwx7", "billing_details", stripeSecret, olderSecret, mac(stripeSecret, unix(0), right))
}

// TestSignature: internal/stripe compares more headers with what Stripe's own code accepts.
func TestSignature(t *testing.T) {
	t.Parallel()
	w := serve(t, takesEvents)
	news := event("evt_1", "customer.created", "{}")
	now := unix(0)
	right := mac(stripeSecret, now, news)
	at := func(moment, secret string) []string {
		return []string{"t=" + moment + ",v1=" + mac(secret, moment, news)}
	}
	for _, headers := range [][]string{at(now, olderSecret), at(unix(-300), stripeSecret), at(unix(300), stripeSecret)} {
		wantReceived(t, w.send(t, unsigned(news).with("Stripe-Signature", headers...)))
	}
	for name, headers := range map[string][]string{
		"a repeated header": {"t=" + now + ",v1=" + right, "t=" + now + ",v1=" + right},
		"301 seconds old":   at(unix(-301), stripeSecret),
		"301 seconds ahead": at(unix(301), stripeSecret),
	} {
		a := w.send(t, unsigned(news).with("Stripe-Signature", headers...))
		wantProblem(t, a, "/problems/webhook-signature")
		says := strings.Contains(a.body, "5m1s from this server's time: the server's clock is wrong")
		if says != strings.HasPrefix(name, "301 seconds") || strings.Contains(a.body, right) {
			t.Errorf("%s: whether it names the clock: %v: %s", name, says, a.body)
		}
	}
}
