package fulfillment_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
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

// shop is a merchant's endpoint. It holds each webhook to its signature and to the contract.
type shop struct {
	*httptest.Server

	t        *testing.T
	services fulfillment.Services

	mu       sync.Mutex
	answers  []func(http.ResponseWriter) // 204 when there are no more
	received []receivedWebhook
}

type receivedWebhook struct{ ID, Body string }

// newShop allows targets beyond public ones.
func newShop(t *testing.T, allow ...netip.Prefix) *shop {
	t.Helper()
	s := &shop{t: t}
	s.Server = httptest.NewServer(http.HandlerFunc(s.receive))
	t.Cleanup(s.Close)
	sender := webhook.New(webhook.Config{AllowCIDRs: allow, Now: time.Now, Timeout: time.Minute})
	t.Cleanup(sender.Close)
	s.services = fulfillment.Services{Webhooks: sender}
	return s
}

func loopback() netip.Prefix { return netip.MustParsePrefix("127.0.0.0/8") }

func (s *shop) endpoint() merchants.Endpoint {
	return merchants.Endpoint{URL: s.URL + "/hooks", Secrets: []string{shopSecret}}
}

const shopSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u"

func (s *shop) answer(answers ...func(http.ResponseWriter)) {
	s.answers = append(s.answers, answers...)
}

func status(code int, header ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

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
	answer := status(http.StatusNoContent)
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	s.mu.Unlock()
	answer(w)
}

// notified is a memory whose merchant has a shop.
type notified struct {
	*memory

	shop *shop
}

func newNotified(t *testing.T, history ...domain.Event) *notified {
	t.Helper()
	s := newShop(t, loopback())
	n := &notified{newMemory(t, s.services, history...), s}
	n.endpoint = s.endpoint()
	return n
}

// notify delivers the message about the event at a version, and returns what is recorded and how it ends.
func (n *notified) notify(version int) string {
	n.t.Helper()
	e, from := n.stream.At(version), len(n.stream.Events)
	err := n.receive(fulfillment.NotificationReceiver, e.Type, ledger.Envelope{ID: e.ID.String(), Type: e.Type, ChargeID: "ch_1", Version: version})
	return n.said(from, err)
}

func (m *memory) receive(receiver, messageType string, about ledger.Envelope) error {
	return handlerOf(m.on, receiver)(m.t.Context(), &inbox.Delivery{
		Message: inbox.Message{ID: "m_1", Type: messageType, OrderingKey: "ch_1", Payload: about.Encode()},
	})
}
