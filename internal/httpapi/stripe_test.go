package httpapi_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

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

// refundOf is a refund of a charge; it names the intent alone.
func refundOf(charge string) string {
	return fmt.Sprintf(`{"id":"re_1","object":"refund","charge":"ch_provider","payment_intent":"pi_%s",%s,"metadata":{"refund_id":"re_ours"}}`, charge, private)
}

// chargeOf is the provider's charge of one of ours.
func chargeOf(charge, metadata string) string {
	return fmt.Sprintf(`{"id":"ch_provider","object":"charge","payment_intent":"pi_%s","refunded":true,%s,"metadata":%s}`, charge, private, metadata)
}

// sent is an event in the outbox.
type sent struct{ Topic, MessageID, Payload, Metadata string }

// sentEvents are the provider's events in the outbox.
func sentEvents(t *testing.T, db *postgres.DB) []sent {
	t.Helper()
	found, err := db.Query(t.Context(), `
select topic, message_id, convert_from(payload, 'UTF8') as payload, metadata::text
  from outbox
 where metadata ->> 'type' like 'stripe.%'
 order by id`)
	testdb.Must(t, err)
	all, err := pgx.CollectRows(found, pgx.RowToStructByName[sent])
	testdb.Must(t, err)
	return all
}

// news is an event in the outbox, about a charge of a merchant.
func news(id, kind, merchant, charge, object string) sent {
	return sent{
		Topic: "charges", MessageID: id,
		Metadata: fmt.Sprintf(`{"type": "stripe.%s", "ordering_key": %q, "partition_key": %q}`, kind, charge, merchant),
		Payload:  fmt.Sprintf(`{"id":%q,"type":%q,"charge_id":%q,"object":%q}`, id, kind, charge, object),
	}
}

func idOf(location string) string { return strings.TrimPrefix(location, "/v1/charges/") }

func wantReceived(t *testing.T, a answer) {
	t.Helper()
	if a.status != http.StatusOK || a.body != "{\"received\":true}\n" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("status %d, %s: %s", a.status, a.header.Get("Content-Type"), a.body)
	}
}

func TestStripeEvent(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, kind, object string
		build              func(charge string) string
	}{
		{"an intent", "payment_intent.succeeded", "pi_%s", intentOf},
		{"a refund names the captured intent", "refund.created", "re_1", refundOf},
		{"a refund that failed", "refund.failed", "re_1", refundOf},
		{"the provider's charge names the intent", "charge.refunded", "ch_provider", func(charge string) string { return chargeOf(charge, "{}") }},
		{"a dispute names the intent", "charge.dispute.created", "re_1", refundOf},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := serve(t, takesEvents)
			charge := idOf(w.captured(t, "key-1"))
			w.captured(t, "key-2")
			before := rows(t, w.db)
			wantReceived(t, w.send(t, signed(event("evt_1", test.kind, test.build(charge)))))
			want := news("evt_1", test.kind, "acme", charge, strings.Replace(test.object, "%s", charge, 1))
			testrun.Same(t, "outbox", []sent{want}, sentEvents(t, w.db))
			wantRows(t, w.db, before, map[string]int64{"outbox": 1})
		})
	}
}

// Whatever its id, an event is of the merchant of the charge that it is about.
func TestStripeEvent_isOfTheMerchantOfItsCharge(t *testing.T) {
	t.Parallel()
	w := serve(t, takesEvents)
	ours := idOf(w.accept(t, "key-1", body()).header.Get("Location"))
	theirs := idOf(w.accepted(t, post("key-1", body()).as(strangerKey)).header.Get("Location"))
	var want []sent
	for _, about := range []struct{ merchant, charge string }{{"acme", ours}, {"globex", theirs}} {
		w.happen(t, about.charge, happens(domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_" + about.charge}))
		wantReceived(t, w.send(t, signed(event("evt_1", "payment_intent.succeeded", intentOf(about.charge)))))
		want = append(want, news("evt_1", "payment_intent.succeeded", about.merchant, about.charge, "pi_"+about.charge))
	}
	testrun.Same(t, "outbox", want, sentEvents(t, w.db))
}

func TestStripeEvent_ofNoUseIsAccepted(t *testing.T) {
	t.Parallel()
	w := serve(t, takesEvents)
	captured := idOf(w.captured(t, "key-1"))
	accepted := idOf(w.accept(t, "key-2", body()).header.Get("Location"))
	before := rows(t, w.db)
	for name, e := range map[string]string{
		"of another kind":                event("evt_1", "customer.created", intentOf(captured)),
		"of a charge's other news":       event("evt_1", "charge.succeeded", chargeOf(captured, "{}")),
		"of a charge that is not ours":   event("evt_1", "payment_intent.succeeded", intentOf("ch_of_another_shop")),
		"of a refund without intent":     event("evt_1", "refund.created", `{"id":"re_1","object":"refund","payment_intent":null}`),
		"of a refund before the capture": event("evt_1", "refund.created", refundOf(accepted)),
		"of a charge id without end":     event("evt_1", "payment_intent.succeeded", strings.Replace(intentOf("x"), `"x"`, `"`+strings.Repeat("c", 300)+`"`, 1)),
	} {
		t.Run(name, func(t *testing.T) {
			wantReceived(t, w.send(t, signed(e)))
			wantRows(t, w.db, before, nil)
		})
	}
}

// A signed event may still be nonsense.
func TestStripeEvent_isRefusedIfUnreadable(t *testing.T) {
	t.Parallel()
	w := serve(t, takesEvents)
	charge := idOf(w.captured(t, "key-1"))
	right := event("evt_1", "payment_intent.succeeded", intentOf(charge))
	large := func(bytes int) call { return signed(right + strings.Repeat(" ", bytes-len(right))) }
	wantReceived(t, w.send(t, large(1<<20))) // with the evidence of a dispute
	faults := []faulty{{"more than 1 MiB", large(1<<20 + 1), "/problems/too-large"}}
	for name, e := range map[string]string{
		"nothing":                  "",
		"not JSON":                 right[1:],
		"NUL":                      right + "\x00",
		"a member twice":           strings.Replace(right, `"livemode":false`, `"id":"evt_2"`, 1),
		"no id":                    strings.Replace(right, `"id":"evt_1"`, `"no":1`, 1),
		"an id of 256 characters":  event(strings.Repeat("e", 256), "payment_intent.succeeded", intentOf(charge)),
		"a type of 101 characters": event("evt_1", "payment_intent."+strings.Repeat("a", 86), intentOf(charge)),
		"no data":                  `{"id":"evt_1","type":"payment_intent.succeeded"}`,
		"an object without id":     event("evt_1", "payment_intent.succeeded", `{}`),
		"lists within lists":       event("evt_1", "payment_intent.succeeded", strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000)),
	} {
		faults = append(faults, faulty{name, signed(e), "/problems/malformed"})
	}
	w.refuses(t, faults)
}

// The signature decides alone, about this path alone.
func TestStripeEvent_needsASignatureAlone(t *testing.T) {
	t.Parallel()
	w := serve(t, takesEvents)
	right := signed(`{"id":"evt_1","type":"a"}`)
	at := func(path string) call { c := right; c.path = path; return c }
	w.refuses(t, []faulty{
		{"the signature beats the body", unsigned("{"), "/problems/webhook-signature"},
		{"an API key is no signature", unsigned("{").with("Authorization", "Bearer "+apiKey), "/problems/webhook-signature"},
		{"an idempotency key is no signature", unsigned("{}").with("Idempotency-Key", "key-1"), "/problems/webhook-signature"},
		{"only POST brings events", right.like(http.MethodPut), "/problems/method-not-allowed"},
		{"no path below is open", at("/v1/webhooks/stripe/x"), "/problems/unauthorized"},
	})
	wantReceived(t, w.send(t, right.with("Authorization", "Bearer nobody")))
	wantReceived(t, w.send(t, right.with("Content-Type")))
	for _, keys := range [][]string{{"key-1"}, {`"`}, {"a", "b"}} {
		a := w.send(t, right.with("Idempotency-Key", keys...))
		wantReceived(t, a)
		if a.header.Get("Idempotency-Key") != "" || a.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("headers: %v", a.header)
		}
	}
}

// TestStripeEvent_isReceivedOnce delivers one event hundreds of times, many at once and each
// with a signature and a count of its own, as the provider does. The worker's inbox has one message.
func TestStripeEvent_isReceivedOnce(t *testing.T) {
	testdb.Long(t, "it does the same in many ways")
	t.Parallel()
	w := serve(t, takesEvents)
	location := w.captured(t, "key-1")
	before := rows(t, w.db)
	stream := w.send(t, get(location+"/events")).body
	const replays = 300
	e := event("evt_1", "payment_intent.succeeded", intentOf(idOf(location)))
	var calls []call
	for i := range replays {
		calls = append(calls, signed(strings.Replace(e, `"pending_webhooks":1`, `"pending_webhooks":`+strconv.Itoa(i), 1)))
	}
	answers := w.sendAll(t, calls...)
	for range replays {
		wantReceived(t, <-answers)
	}
	wantRows(t, w.db, before, map[string]int64{"outbox": replays})
	if after := w.send(t, get(location+"/events")).body; after != stream {
		t.Errorf("the charge has other events now:\n%s%s", stream, after)
	}

	var handled atomic.Int64
	work(t, w.db, func(_ context.Context, d *inbox.Delivery) error {
		if d.ID == "evt_1" {
			handled.Add(1)
		}
		return nil
	})
	await.Row(t, w.db, `select count(*) = 0 from outbox`)
	await.Row(t, w.db, `select count(*) = 1 and max(duplicates) >= 299 and bool_and(status = 'done') from inbox where message_id = 'evt_1'`)
	if n := handled.Load(); n != 1 {
		t.Errorf("the event was handled %d times", n)
	}
}

// work receives the messages of the outbox and handles them, until the test ends.
func work(t *testing.T, db *postgres.DB, handle inbox.Handler) {
	t.Helper()
	p, err := inbox.New(inbox.Options{DB: db, Receiver: "fulfillment", Handle: handle, Log: slog.New(slog.DiscardHandler)})
	testdb.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var both sync.WaitGroup
	both.Go(func() { _ = p.Run(ctx) })
	both.Go(func() { // what the test waits for does not come if it ends early
		_ = p.Consume(ctx, outbox.NewSubscriber(db.Pool(), outbox.Options{Log: slog.New(slog.DiscardHandler)}), domain.Topic, nil)
	})
	t.Cleanup(func() { cancel(); both.Wait() })
}
