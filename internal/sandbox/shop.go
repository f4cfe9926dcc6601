package sandbox

import (
	"encoding/json"
	"io"
	"net/http"
	"unicode/utf8"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// notification is what the merchant reads of a webhook.
type notification struct {
	webhookID string
	Type      string `json:"type"`
	Data      struct {
		ID string `json:"id"`
	} `json:"data"`
}

const shopTextMax = 255

// receiveNotification is the merchant's webhook receiver, as Standard Webhooks
// advises to write one: verify, dedupe by webhook-id, take effect, answer.
func (s *Sandbox) receiveNotification(r *http.Request) (answer, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyLimit+1))
	fault := s.faults.draw()
	s.delay(fault.slow)
	switch {
	case fault.shopDown:
		return answer{}, refused(http.StatusServiceUnavailable, "the shop is down (shop_down)")
	case fault.dropBefore:
		return answer{}, errCut
	case fault.errorBefore:
		return answer{}, refused(http.StatusInternalServerError, "the shop failed before its effect (error_500)")
	case s.shop == nil:
		return answer{}, refused(http.StatusServiceUnavailable, "the shop cannot verify anything: SHOP_WEBHOOK_SECRET is not set")
	case err != nil || len(body) > bodyLimit:
		return answer{}, refused(http.StatusRequestEntityTooLarge, "the body must be readable and at most %d bytes", bodyLimit)
	case s.shop.Verify(body, r.Header) != nil:
		return answer{}, refused(http.StatusUnauthorized, "the signature does not verify")
	}
	n, err := readNotification(body, r.Header)
	if err != nil {
		return answer{}, err
	}
	if _, err := s.decide(func(to *change) (answer, error) {
		to.Webhook = &effect{ID: n.webhookID, Reference: n.Data.ID, Type: n.Type}
		return answer{}, nil
	}); err != nil {
		return answer{}, err
	}
	switch {
	case fault.dropAfter:
		return answer{}, errCut
	case fault.errorAfter:
		return answer{}, refused(http.StatusInternalServerError, "the shop failed after its effect (error_500)")
	}
	return object(http.StatusOK, struct{}{}), nil
}

func readNotification(body []byte, header http.Header) (notification, error) {
	n := notification{webhookID: header.Get(standardwebhooks.HeaderWebhookID)}
	if err := json.Unmarshal(body, &n); err != nil {
		return n, refused(http.StatusBadRequest, "the body is not a notification: %v", err)
	}
	for _, part := range []struct{ name, value string }{
		{standardwebhooks.HeaderWebhookID, n.webhookID}, {"type", n.Type}, {"data.id", n.Data.ID},
	} {
		if part.value == "" || len(part.value) > shopTextMax || !utf8.ValidString(part.value) {
			return n, refused(http.StatusBadRequest, "%s must be 1 to %d bytes of text", part.name, shopTextMax)
		}
	}
	return n, nil
}
