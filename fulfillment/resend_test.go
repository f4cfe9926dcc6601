package fulfillment_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/ledger"
)

// notifying is a database with a charge whose merchant has received the webhook about its outcome.
type notifying struct {
	*fixture

	shop    *shop
	notify  inbox.Handler
	outcome ledger.StoredEvent
}

func newNotifying(t *testing.T) *notifying {
	t.Helper()
	n := &notifying{fixture: newFixture(t), shop: newShop(t, loopback())}
	n.notify = n.handler(n.shop.services, fulfillment.NotificationReceiver)
	b := &pgx.Batch{}
	merchants.Register(b, merchants.Merchant{ID: "acme"}, merchants.Webhook{URL: n.shop.endpoint().URL, Secret: shopSecret})
	n.commit(b)
	s := n.append(ledger.New("ch_1"), histories["captured"]...)
	n.outcome = s.Head()
	n.put(fulfillment.NotificationReceiver, s, n.outcome.ID.String())
	n.ends(fulfillment.NotificationReceiver, "done")
	return n
}

// ends delivers the only open message to a receiver.
func (n *notifying) ends(receiver, want string) {
	n.t.Helper()
	if err := n.deliverAll(receiver, n.notify, 1)[0]; endOf(err) != want {
		n.t.Errorf("the handler returned %v, want %s", err, want)
	}
}

// resend requests one more delivery of the webhook.
func (n *notifying) resend(id uuid.UUID) *pgx.Batch {
	n.t.Helper()
	b, e := &pgx.Batch{}, n.outcome
	fulfillment.Resend(b, fulfillment.WebhookEvent{
		EventID: e.ID, ChargeID: "ch_1", MerchantID: "acme", Stored: e.Type, Version: e.Version, Notified: !n.load().Charge.NeedsWebhook(e.Version),
	}, id, "cli:test")
	return b
}

// expectResends checks the recorded resends: who requested each, and whether the merchant has received it.
func (n *notifying) expectResends(received int, delivered ...bool) {
	n.t.Helper()
	want := make([]string, len(delivered))
	for i, yes := range delivered {
		want[i] = fmt.Sprintf("%s ch_1 acme cli:test %.1s", n.outcome.ID, strconv.FormatBool(yes))
	}
	n.expectText(strings.Join(want, ", "), `
select string_agg(concat_ws(' ', event_id, charge_id, merchant_id, requested_by, delivered_at is not null), ', ' order by requested_at)
  from webhook_resends`)
	n.expectText("1", `select count(*)::text from ledger_events where type = 'merchant.notified.v1'`)
	if len(n.shop.received) != received || len(slices.Compact(slices.Clone(n.shop.received))) > 1 {
		n.t.Errorf("the shop received %+v, want the same %d times", n.shop.received, received)
	}
}

func TestResend(t *testing.T) {
	t.Parallel()
	t.Run("the merchant receives the same body once more, and nothing is recorded but that", func(t *testing.T) {
		t.Parallel()
		n := newNotifying(t)
		n.commit(n.resend(uuid.New()))
		n.expectResends(1, false)
		n.shop.answer(status(http.StatusInternalServerError), func(w http.ResponseWriter) {
			n.script.rival("takeover")
			status(http.StatusOK)(w)
		})
		for _, end := range []string{"waits", "lost"} {
			n.ends(fulfillment.ResendReceiver, end)
			n.expectText("f", `select (delivered_at is not null)::text::char(1) from webhook_resends`)
		}
		n.ends(fulfillment.ResendReceiver, "done")
		n.expectResends(4, true)
		await.True(t, "the feed has the same bytes", func() bool { // it waits for open transactions of other tests
			page, err := ledger.ReadFeed(t.Context(), n.db, "acme", "", 100)
			return err == nil && slices.ContainsFunc(page.Data, func(entry json.RawMessage) bool { return string(entry) == n.shop.received[0].Body })
		})
	})
	t.Run("two requests are two deliveries, and one that is recorded twice is refused", func(t *testing.T) {
		t.Parallel()
		n := newNotifying(t)
		id := uuid.New()
		n.commit(n.resend(id))
		n.commit(n.resend(uuid.New()))
		if err := n.db.Commit(t.Context(), n.resend(id)); err == nil {
			t.Error("one resend was recorded twice")
		}
		n.deliverAll(fulfillment.ResendReceiver, n.notify, 2)
		n.expectResends(3, true, true)
	})
	t.Run("a discarded webhook is delivered after all, and recorded as received", func(t *testing.T) {
		t.Parallel()
		n := newNotifying(t)
		n.exec(`delete from inbox`)
		s := n.append(n.load(), requested(), refundedBy())
		n.outcome, n.shop.received = s.Head(), nil
		n.commit(n.resend(uuid.New()))
		n.ends(fulfillment.NotificationReceiver, "done") // in its turn
		n.commit(n.resend(uuid.New()))
		n.ends(fulfillment.ResendReceiver, "done")
		n.expectText("2", `select count(*)::text from ledger_events where type = 'merchant.notified.v1'`)
		if len(n.shop.received) != 2 || n.shop.received[0] != n.shop.received[1] {
			t.Errorf("the shop received %+v", n.shop.received)
		}
	})
}

// TestResend_delaysNoOtherWebhook: a webhook that is sent once more must not hold up one that the merchant has
// not received.
func TestResend_delaysNoOtherWebhook(t *testing.T) {
	t.Parallel()
	n := newNotifying(t)
	n.commit(n.resend(uuid.New()))
	n.shop.answer(status(http.StatusGone, "Retry-After", "86400"))
	n.ends(fulfillment.ResendReceiver, "waits")
	s := n.append(n.load(), requested(), refundedBy())
	n.put(fulfillment.NotificationReceiver, s, s.Head().ID.String())
	n.ends(fulfillment.NotificationReceiver, "done")
	if last := n.shop.received[len(n.shop.received)-1]; len(n.shop.received) != 3 || last.ID != s.Head().ID.String() {
		t.Errorf("the shop received %+v, want %s", n.shop.received, s.Head().ID)
	}
}
