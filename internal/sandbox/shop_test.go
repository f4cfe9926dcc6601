package sandbox_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/sandbox"
)

const (
	shopKey    = "a key of the shop, 32 bytes long"
	shopSecret = "whsec_YSBrZXkgb2YgdGhlIHNob3AsIDMyIGJ5dGVzIGxvbmc="
)

// signed are the headers of Standard Webhooks, computed here from its text.
func signed(key, id string, at time.Time, body string) http.Header {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write(fmt.Appendf(nil, "%s.%d.%s", id, at.Unix(), body))
	return http.Header{
		"Content-Type":      {"application/json"},
		"Webhook-Id":        {id},
		"Webhook-Timestamp": {strconv.FormatInt(at.Unix(), 10)},
		"Webhook-Signature": {"v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))},
	}
}

// notice is a merchant's webhook about reference.
func notice(reference string) string {
	return `{"id":"evt_1","type":"charge.succeeded","created_at":"2026-01-02T03:04:05Z","data":{"id":"` + reference + `","amount":1000}}`
}

// notify sends a notification, signed now.
func (f *fixture) notify(id, body string) (answered, error) {
	return f.do(http.MethodPost, "/shop/webhooks", body, signed(shopKey, id, time.Now(), body))
}

func TestShop(t *testing.T) {
	t.Parallel()

	t.Run("each arrival is counted and the effect happens once", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{ShopSecret: shopSecret})
		for _, a := range f.concurrently(20, func(int) (answered, error) { return f.notify("msg_1", notice("ch_1")) }) {
			a.want(t, http.StatusOK, nil)
		}
		f.must(f.notify("msg_2", notice("re_1")))
		b := f.books().Notifications
		if len(b) != 2 || b[0].WebhookID != "msg_1" || b[0].Reference != "ch_1" || b[0].Type != "charge.succeeded" ||
			b[0].Deliveries != 20 || b[0].Effects != 1 || b[1].Reference != "re_1" || b[1].Deliveries != 1 {
			t.Errorf("books %+v", b)
		}
	})

	t.Run("what does not verify or cannot be read leaves nothing", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{ShopSecret: shopSecret})
		now, body := time.Now(), notice("ch_1")
		large := `{"type":"` + strings.Repeat("x", 70_000) + `"}`
		for name, tc := range map[string]struct {
			header http.Header
			body   string
			status int
		}{
			"no headers":       {http.Header{}, body, 401},
			"another key":      {signed("another", "msg_1", now, body), body, 401},
			"not JSON":         {signed(shopKey, "msg_1", now, "x"), "x", 400},
			"no type":          {signed(shopKey, "msg_1", now, `{"data":{"id":"ch_1"}}`), `{"data":{"id":"ch_1"}}`, 400},
			"no data":          {signed(shopKey, "msg_1", now, `{"type":"a"}`), `{"type":"a"}`, 400},
			"a body too large": {signed(shopKey, "msg_1", now, large), large, 413},
			"no body":          {signed(shopKey, "msg_1", now, ""), "", 400},
		} {
			a := f.must(f.do(http.MethodPost, "/shop/webhooks", tc.body, tc.header))
			if a.status != tc.status {
				t.Errorf("%s: answered %d %s, want %d", name, a.status, a.raw, tc.status)
			}
		}
		if came := f.books().Notifications; len(came) != 0 {
			t.Errorf("notifications %v", came)
		}
	})

	t.Run("without a secret it verifies and accepts nothing", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{})
		body := notice("ch_1")
		a := f.must(f.do(http.MethodPost, "/shop/webhooks", body, signed("", "msg_1", time.Now(), body)))
		if a.status != http.StatusServiceUnavailable || len(f.books().Notifications) != 0 {
			t.Errorf("answered %d %s", a.status, a.raw)
		}
	})
}
