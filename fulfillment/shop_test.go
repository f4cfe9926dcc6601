package fulfillment_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/openapi"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

// contract is what merchants may rely on, read once.
var contract = sync.OnceValues(func() (*openapi.Contract, error) {
	document, err := os.ReadFile("../internal/httpapi/openapi.yaml")
	if err != nil {
		return nil, err
	}
	return openapi.Read(document, nil)
})

const (
	shopSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u"

	notified = " merchant.notified"
)

// shop is a merchant's endpoint, and the outcome about which it is notified.
type shop struct {
	*fixture

	notify  inbox.Handler
	outcome ledger.StoredEvent

	mu       sync.Mutex
	answers  []http.HandlerFunc // 204 when there are no more
	received []receivedWebhook
}

type receivedWebhook struct{ ID, Body string }

// newShop allows targets beyond public ones.
func newShop(t *testing.T, allow ...netip.Prefix) *shop {
	t.Helper()
	s := &shop{fixture: newFixture(t)}
	server := httptest.NewServer(http.HandlerFunc(s.receive))
	t.Cleanup(server.Close)
	sender := webhook.New(webhook.Config{AllowCIDRs: allow, Now: time.Now, Timeout: time.Minute})
	t.Cleanup(sender.Close)
	s.notify = s.handler(fulfillment.Services{Webhooks: sender}, fulfillment.NotificationReceiver)
	b := &pgx.Batch{}
	merchants.Register(b, merchants.Merchant{ID: "acme"}, merchants.Webhook{URL: server.URL + "/hooks", Secret: shopSecret})
	s.commit(b)
	return s
}

func loopback() netip.Prefix { return netip.MustParsePrefix("127.0.0.0/8") }

// removeEndpoint is what a merchant does that wants no webhooks any more.
func (s *shop) removeEndpoint() {
	s.t.Helper()
	s.exec(`update merchants set webhook_url = null, webhook_generation = null`)
}

// succeed brings the charge to its outcome.
func (s *shop) succeed(first domain.ChargeRequested) {
	s.t.Helper()
	s.announce(s.capture(first))
}

// requestRefund is a captured charge without a webhook of its own, and a refund of it.
func (s *shop) requestRefund(notify bool, outcomes ...domain.Event) ledger.Stream {
	s.t.Helper()
	first := order()
	first.Notify = false
	stream := s.append(s.capture(first), domain.RefundRequested{RefundID: "re_1", Amount: 600, Notify: notify})
	if len(outcomes) == 0 {
		return stream
	}
	return s.append(stream, outcomes...)
}

// announce puts the message about the head of the stream into the inbox.
func (s *shop) announce(stream ledger.Stream) {
	s.t.Helper()
	s.outcome = s.load(stream.ID).Head()
	s.put(fulfillment.NotificationReceiver, stream, stream.Charge.Version, s.outcome.ID.String())
}

func (s *shop) deliver() error {
	s.t.Helper()
	return s.deliverAll(fulfillment.NotificationReceiver, s.notify, 1)[0]
}

func (s *shop) answer(answers ...http.HandlerFunc) { s.answers = append(s.answers, answers...) }

// rival appends an event while the webhook is in flight.
func (s *shop) rival(e domain.Event) { s.answer(s.fixture.rival(says(http.StatusOK, ""), e)) }

func (s *shop) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Errorf("read the webhook: %v", err)
	}
	s.mu.Lock()
	verifier, err := standardwebhooks.NewWebhook(shopSecret)
	if err == nil {
		err = verifier.Verify(body, r.Header)
	}
	if err != nil {
		s.t.Errorf("the signature: %v", err)
	}
	var about struct{ Type string }
	err = json.Unmarshal(body, &about)
	if err != nil {
		s.t.Errorf("the body: %v", err)
	}
	c, err := contract()
	if err == nil {
		name, _, _ := strings.Cut(about.Type, ".")
		err = c.CheckWebhook(name, r.Header, body)
	}
	if err != nil {
		s.t.Errorf("the contract: %v", err)
	}
	s.received = append(s.received, receivedWebhook{ID: r.Header.Get("Webhook-Id"), Body: string(body)})
	answer := says(http.StatusNoContent, "")
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	s.mu.Unlock()
	answer(w, r)
}

// expectReceived checks how often the shop received the webhook, each time with the same
// body under the id of the outcome, and what is recorded.
func (s *shop) expectReceived(times int, events, message string) {
	s.t.Helper()
	if len(s.received) != times {
		s.t.Errorf("the shop received %d webhooks, want %d", len(s.received), times)
	}
	for _, got := range s.received {
		if got.ID != s.outcome.ID.String() || got.Body != s.received[0].Body {
			s.t.Errorf("the shop received %+v, want the id %s and\n%s", got, s.outcome.ID, s.received[0].Body)
		}
	}
	if seen := s.snapshot(); seen.Events != events || seen.Message != message {
		s.t.Errorf("recorded are %q and the message is %s, want %q and %s", seen.Events, seen.Message, events, message)
	}
}

// notice is an outcome from its beginning over some deliveries to what the shop received.
type notice struct {
	begin    func(*shop)
	ends     string // of the deliveries; one that is done where empty
	received int
	events   string
	message  string // "done" where empty
	check    func(*shop)
}

func runNotices(t *testing.T, notices map[string]notice) {
	t.Helper()
	for name, n := range notices {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, loopback())
			n.begin(s)
			if n.ends == "" {
				n.ends = "done"
			}
			if n.message == "" {
				n.message = "done"
			}
			for end := range strings.FieldsSeq(n.ends) {
				s.expectEnd(s.deliver(), end)
			}
			s.expectReceived(n.received, n.events, n.message)
			for _, got := range s.received {
				await.True(t, "the feed has the same bytes", func() bool { // it waits for open transactions of other tests
					page, err := ledger.ReadFeed(t.Context(), s.db, "acme", "", 100)
					return err == nil && slices.ContainsFunc(page.Data, func(entry json.RawMessage) bool { return string(entry) == got.Body })
				})
			}
			if n.check != nil {
				n.check(s)
			}
		})
	}
}
