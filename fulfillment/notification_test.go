package fulfillment_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

const shopSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u"

// shop is a merchant's endpoint, and a message that waits to be told to it.
type shop struct {
	*world
	notify  inbox.Handler
	outcome ledger.Recorded

	mu      sync.Mutex
	knows   string             // the secret by which it verifies
	answers []http.HandlerFunc // 204 when there are no more
	got     []receivedWebhook
}

// receivedWebhook is what the shop received.
type receivedWebhook struct{ ID, Body string }

// newShop has a charge that succeeded. allow are the targets beyond public ones.
func newShop(t *testing.T, allow ...netip.Prefix) *shop {
	t.Helper()
	s := &shop{world: newWorld(t), knows: shopSecret}
	server := httptest.NewServer(http.HandlerFunc(s.receive))
	t.Cleanup(server.Close)
	sender := webhook.New(webhook.Config{AllowCIDRs: allow, Now: time.Now})
	t.Cleanup(sender.Close)
	s.notify = handlerFor(fulfillment.New(s.db, fulfillment.Services{Webhooks: sender}, slog.New(slog.DiscardHandler)), fulfillment.NotificationReceiver)
	b := &pgx.Batch{}
	if err := merchants.Register(b, merchants.Merchant{ID: "acme"}, merchants.Webhook{URL: server.URL + "/hooks", Secret: shopSecret}); err != nil {
		t.Fatal(err)
	}
	s.commit(b)
	return s
}

func loopback() netip.Prefix { return netip.MustParsePrefix("127.0.0.0/8") }

// succeed brings the charge to its outcome.
func (s *shop) succeed(first domain.ChargeRequested) ledger.Stream {
	s.Helper()
	return s.tell(s.captured("ch_1", first))
}

func (s *shop) captured(id string, first domain.ChargeRequested) ledger.Stream {
	s.Helper()
	first.Items = nil
	intent := "pi" + strings.TrimPrefix(id, "ch")
	return s.append(ledger.New(id), first,
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: intent, Amount: 1999, Currency: "EUR", Fee: 90},
		domain.ChargeSucceeded{})
}

// tell puts the message about the head of the stream into the inbox.
func (s *shop) tell(stream ledger.Stream) ledger.Stream {
	s.Helper()
	s.outcome = s.load().Head()
	s.put(fulfillment.NotificationReceiver, stream, stream.Charge.Version, s.outcome.ID.String())
	return stream
}

func (s *shop) deliver() error {
	s.Helper()
	return s.deliverAll(fulfillment.NotificationReceiver, s.notify, 1)[0]
}

func (s *shop) answer(answers ...http.HandlerFunc) { s.answers = append(s.answers, answers...) }

func (s *shop) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.Errorf("read the webhook: %v", err)
	}
	s.mu.Lock()
	verifier, err := standardwebhooks.NewWebhook(s.knows)
	if err == nil {
		err = verifier.Verify(body, r.Header)
	}
	if err != nil {
		s.Errorf("the signature: %v", err)
	}
	if err := contracted(r.Header, body); err != nil {
		s.Errorf("it is not in the contract: %v", err)
	}
	s.got = append(s.got, receivedWebhook{ID: r.Header.Get("Webhook-Id"), Body: string(body)})
	answer := says(http.StatusNoContent, "")
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	s.mu.Unlock()
	answer(w, r)
}

// expectTold checks how often the shop was told, each time with the same words
// under the id of the outcome, and what is recorded.
func (s *shop) expectTold(times int, events, message string) {
	s.Helper()
	if len(s.got) != times {
		s.Errorf("the shop was told %d times, want %d", len(s.got), times)
	}
	for _, told := range s.got {
		if told.ID != s.outcome.ID.String() || told.Body != s.got[0].Body {
			s.Errorf("the shop was told %+v, want the id %s and\n%s", told, s.outcome.ID, s.got[0].Body)
		}
	}
	seen := s.see()
	if seen.Events != events || seen.Message != message {
		s.Errorf("recorded are %q and the message is %s, want %q and %s", seen.Events, seen.Message, events, message)
	}
}

const (
	paid = "charge.requested payment.started payment.captured charge.succeeded"
	told = paid + " merchant.notified"
)

func TestNotify(t *testing.T) {
	t.Parallel()

	t.Run("the merchant is told once about the outcome", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		stream := s.succeed(order())
		s.expectKind(s.deliver(), "done")
		s.expectTold(1, told, "done")
		want := map[string]any{
			"id": s.outcome.ID.String(), "type": "charge.succeeded",
			"created_at": s.outcome.RecordedAt.UTC().Format(time.RFC3339Nano),
			"data": map[string]any{
				"id": "ch_1", "order_id": "order 1", "amount": 1999.0, "amount_refunded": 0.0, "currency": "EUR",
				"status": "succeeded", "failure": nil, "metadata": map[string]any{"basket": "7"},
				"steps": []any{
					map[string]any{"name": "inventory", "status": "skipped"},
					map[string]any{"name": "payment", "status": "done"},
					map[string]any{"name": "notification", "status": "pending"},
				},
				"created_at": s.load().At(1).OccurredAt.UTC().Format(time.RFC3339Nano),
			},
		}
		var got map[string]any
		if err := json.Unmarshal([]byte(s.got[0].Body), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the webhook (-want +got):\n%s", diff)
		}
		notified := domain.MerchantNotified{EventID: s.outcome.ID.String(), Type: "charge.succeeded", Version: 4}
		if diff := cmp.Diff(notified, s.load().Head().Event); diff != "" {
			t.Errorf("recorded (-want +got):\n%s", diff)
		}
		s.put(fulfillment.NotificationReceiver, stream, 4, "again")
		s.expectKind(s.deliver(), "done")
		s.expectTold(1, told, "done done")
	})

	t.Run("the merchant is told about a failure", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		first := order()
		first.Items = nil
		why := domain.Failure{Code: domain.CardDeclined, Message: "no money", DeclineCode: "insufficient_funds"}
		s.tell(s.append(ledger.New("ch_1"), first, domain.PaymentDeclined{Failure: why}, domain.ChargeFailed{Failure: why}))
		s.expectKind(s.deliver(), "done")
		s.expectTold(1, "charge.requested payment.declined charge.failed merchant.notified", "done")
		var got struct {
			Type string
			Data struct{ Failure domain.Failure }
		}
		if err := json.Unmarshal([]byte(s.got[0].Body), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(why, got.Data.Failure); diff != "" || got.Type != "charge.failed" {
			t.Errorf("the type is %s and the failure (-want +got):\n%s", got.Type, diff)
		}
	})

	t.Run("a redelivery says the same, whatever has happened since", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		stream := s.succeed(order())
		s.answer(says(http.StatusInternalServerError, ""))
		s.expectKind(s.deliver(), "waits")
		s.expectTold(1, paid, "pending")
		s.append(stream, domain.InventoryReleased{}) // shows in the view of the charge
		s.expectKind(s.deliver(), "done")
		s.expectTold(2, paid+" inventory.released merchant.notified", "done")
	})

	t.Run("a lost race for the version is no reason to tell again", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		stream := s.succeed(order())
		s.answer(meanwhile(func() { s.append(stream, domain.InventoryReleased{}) }, says(http.StatusOK, "")))
		s.expectKind(s.deliver(), "done")
		s.expectTold(1, paid+" inventory.released merchant.notified", "done")
	})

	t.Run("who lost the race to tell records nothing", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		stream := s.succeed(order())
		rival := domain.MerchantNotified{EventID: s.outcome.ID.String(), Type: "charge.succeeded"}
		s.answer(meanwhile(func() { s.append(stream, rival) }, says(http.StatusOK, "")))
		s.expectKind(s.deliver(), "done")
		s.expectTold(1, told, "done")
	})

	t.Run("after the message was taken over nothing is recorded", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.succeed(order())
		s.answer(meanwhile(func() { s.exec(`update inbox set fence = fence + 1`) }, says(http.StatusOK, "")))
		s.expectKind(s.deliver(), "lost")
		s.expectTold(1, paid, "running")
		s.expectKind(s.deliver(), "done")
		s.expectTold(2, told, "done")
	})
}

func TestNotify_refusals(t *testing.T) {
	t.Parallel()

	t.Run("a shop that asks for time gets it, and no attempt is counted", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.succeed(order())
		s.answer(says(http.StatusServiceUnavailable, "", "Retry-After", "86400"))
		var waiting *inbox.WaitError
		if err := s.deliver(); !errors.As(err, &waiting) || waiting.AtLeast != 24*time.Hour {
			t.Errorf("the handler answered %v, want it to wait a day", err)
		}
		if got := s.text(`select format('%s %s %s', attempts, waits, due_at > clock_timestamp() + interval '23 hours') from inbox`); got != "0 1 t" {
			t.Errorf("attempts, waits and whether it is due in a day are %s, want 0 1 t", got)
		}
		s.expectTold(1, paid, "pending")
	})

	for name, answer := range map[string]http.HandlerFunc{
		"a cut":      cut,
		"a 500":      says(http.StatusInternalServerError, ""),
		"a 404":      says(http.StatusNotFound, ""),
		"a redirect": says(http.StatusFound, "", "Location", "/elsewhere"),
	} {
		t.Run("after "+name+" the merchant is told again", func(t *testing.T) {
			t.Parallel()
			s := newShop(t, loopback())
			s.succeed(order())
			s.answer(answer)
			s.expectKind(s.deliver(), "waits")
			s.expectKind(s.deliver(), "done")
			s.expectTold(2, told, "done")
		})
	}

	t.Run("a forbidden target is parked", func(t *testing.T) {
		t.Parallel()
		s := newShop(t) // loopback is not allowed
		s.succeed(order())
		s.expectKind(s.deliver(), "parked")
		s.expectTold(0, paid, "dead")
		if reason := s.text(`select last_error from inbox`); !strings.Contains(reason, "target refused") {
			t.Errorf("the reason is %q", reason)
		}
	})

	t.Run("a merchant that took its endpoint away is parked", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.succeed(order())
		s.exec(`update merchants set webhook_url = null, webhook_generation = null`)
		s.expectKind(s.deliver(), "parked")
		s.expectTold(0, paid, "dead")
	})

	t.Run("a merchant that wanted no webhook gets none", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		first := order()
		first.Notify = false
		s.succeed(first)
		s.expectKind(s.deliver(), "done")
		s.expectTold(0, paid, "done")
	})

	t.Run("a message whose event cannot be read yet waits", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.succeed(order())
		s.exec(`update inbox set payload = convert_to(replace(convert_from(payload, 'UTF8'), '"version":4', '"version":9'), 'UTF8')`)
		s.expectKind(s.deliver(), "waits")
		s.expectTold(0, paid, "pending")
	})

	t.Run("a message that names no event becomes a dead letter", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.succeed(order())
		s.exec(`update inbox set payload = convert_to(replace(convert_from(payload, 'UTF8'), '"version":4', '"version":0'), 'UTF8')`)
		s.expectKind(s.deliver(), "parked")
		s.expectTold(0, paid, "dead")
	})
}

// A shop that does not answer holds its merchant's share of the slots, and the webhook of
// another merchant is delivered meanwhile.
func TestNotification_aSilentShopDelaysNoOtherMerchant(t *testing.T) {
	t.Parallel()
	const slots, share = 8, 7
	s := newShop(t, loopback())
	var asked atomic.Int64
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // before, the server does not see that the client has gone
		asked.Add(1)
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	b := &pgx.Batch{}
	if err := merchants.Register(b, merchants.Merchant{ID: "globex"}, merchants.Webhook{URL: silent.URL, Secret: shopSecret}); err != nil {
		t.Fatal(err)
	}
	s.commit(b)
	for n := range 2 * slots {
		first := order()
		first.MerchantID = "globex"
		stream := s.captured(fmt.Sprintf("ch_globex_%d", n), first)
		s.put(fulfillment.NotificationReceiver, stream, stream.Charge.Version, stream.Head().ID.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := &inbox.Processor{
		DB: s.db, Receiver: fulfillment.NotificationReceiver, Holder: "test", Concurrency: slots, Handle: s.notify,
		Policy: inbox.Policy{Lease: time.Hour, MaxAttempts: 12, GiveUpAfter: time.Hour, BackoffBase: time.Hour, BackoffCap: time.Hour, Parked: inbox.Block},
		Poll:   5 * time.Millisecond, Drain: time.Millisecond, Log: slog.New(slog.DiscardHandler),
	}
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	await.True(t, "the silent shop holds its share", func() bool { return asked.Load() == share })
	s.succeed(order())
	await.True(t, "the other merchant has its webhook", func() bool {
		return s.text(`select status from inbox where ordering_key = 'ch_1'`) == "done"
	})
	if got := asked.Load(); got != share {
		t.Errorf("the silent shop holds %d slots of %d, want %d", got, slots, share)
	}
}
