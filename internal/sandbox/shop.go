package sandbox

import (
	"encoding/json"
	"net/http"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// receive serves the merchant's webhook receiver, which meets the faults too.
func (s *Sandbox) receive(w http.ResponseWriter, r *http.Request) {
	c := read(r)
	if c.fault = s.faults.draw(); c.fault.shopDown {
		c.refusal = refuse(http.StatusServiceUnavailable, "", "", "The shop is down (shop_down).")
	}
	s.serve(w, c, s.notify)
}

// notify receives a webhook as Standard Webhooks advises: verify, dedupe by webhook-id, take effect, answer.
func (s *Sandbox) notify(c *call, to *change) (any, error) {
	if s.shop == nil {
		return nil, refuse(http.StatusServiceUnavailable, "", "", "The shop cannot verify anything: SHOP_WEBHOOK_SECRET is not set.")
	}
	if s.shop.Verify(c.body, c.Header) != nil {
		return nil, refuse(http.StatusUnauthorized, "", "", "The signature does not verify.")
	}
	var body struct {
		Type string `json:"type"`
		Data struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(c.body, &body); err != nil || body.Type == "" || body.Data.ID == "" {
		return nil, invalid("", "", "The body is no notification with a type and data.id.")
	}
	webhook := c.Header.Get(standardwebhooks.HeaderWebhookID)
	n := s.books.get("notification", "webhook "+webhook)
	if n == nil {
		n = s.newObject("notification", "", object{"webhook_id": webhook, "reference": body.Data.ID, "type": body.Type, "effects": int64(1)})
		n["id"] = "webhook " + webhook
	}
	n["deliveries"] = n.number("deliveries") + 1
	to.put(n)
	return struct{}{}, nil
}
