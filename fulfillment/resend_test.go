package fulfillment_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
)

// resend requests one more delivery of the webhook about the newest outcome.
func (s *shop) resend() uuid.UUID {
	s.t.Helper()
	id := uuid.New()
	s.commit(s.resendAs(id))
	return id
}

func (s *shop) resendAs(id uuid.UUID) *pgx.Batch {
	s.t.Helper()
	b, e := &pgx.Batch{}, s.outcome
	fulfillment.Resend(b, fulfillment.Outcome{
		EventID: e.ID, ChargeID: "ch_1", MerchantID: "acme", Stored: e.Type, Version: e.Version, Notified: !s.load("ch_1").Charge.NeedsWebhook(e.Version),
	}, id, "cli:test")
	return b
}

// expectResends checks the recorded resends: who requested each, and whether the merchant
// has received it.
func (s *shop) expectResends(delivered ...bool) {
	s.t.Helper()
	want := make([]string, len(delivered))
	for i, yes := range delivered {
		want[i] = fmt.Sprintf("%s ch_1 acme cli:test %.1s", s.outcome.ID, strconv.FormatBool(yes))
	}
	s.expectText(strings.Join(want, ", "), `
select string_agg(concat_ws(' ', event_id, charge_id, merchant_id, requested_by, delivered_at is not null), ', ' order by requested_at)
  from webhook_resends`)
}

// repeat handles the message about a webhook that the merchant has received before.
func (s *shop) repeat() error {
	s.t.Helper()
	return s.deliverAll(fulfillment.ResendReceiver, s.notify, 1)[0]
}

// notifiedShop has received the webhook about ch_1.
func notifiedShop(t *testing.T) *shop {
	t.Helper()
	s := newShop(t, loopback())
	s.succeed(order())
	s.expectEnd(s.deliver(), "done")
	return s
}

func TestResend(t *testing.T) {
	t.Parallel()
	const told = paid + notified

	for name, tc := range map[string]struct {
		answer   func(*shop) // of the first delivery
		ends     []string
		received int
	}{
		"the merchant receives the same body once more, and nothing is recorded but that": {func(*shop) {}, []string{"done"}, 2},
		"a shop that refuses receives it again, and nothing is recorded before": {
			func(s *shop) { s.answer(says(http.StatusInternalServerError, "")) }, []string{"waits", "done"}, 3,
		},
		"after the death of a worker it is redelivered": {
			func(s *shop) { s.answer(s.takeOver(says(http.StatusOK, ""))) }, []string{"lost", "done"}, 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := notifiedShop(t)
			s.resend()
			tc.answer(s)
			for _, end := range tc.ends {
				s.expectResends(false)
				s.expectEnd(s.repeat(), end)
			}
			s.expectReceived(tc.received, told, "done done")
			s.expectResends(true)
		})
	}

	t.Run("two requests are two deliveries, and one that is recorded twice is refused", func(t *testing.T) {
		t.Parallel()
		s := notifiedShop(t)
		id := s.resend()
		s.resend()
		if err := s.db.Commit(t.Context(), s.resendAs(id)); err == nil {
			t.Error("one resend was recorded twice")
		}
		s.deliverAll(fulfillment.ResendReceiver, s.notify, 2)
		s.expectReceived(3, told, "done done done")
		s.expectResends(true, true)
	})

	t.Run("a discarded webhook is delivered after all, and recorded as received", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.succeed(order())
		s.exec(`update inbox set status = 'discarded', first = false, decided_by = 'cli:test', decided_at = now(), finished_at = now()`)
		s.resend()
		s.expectEnd(s.deliver(), "done") // in its turn
		s.expectReceived(1, told, "discarded done")
		s.expectResends(true)
		s.resend()
		s.expectEnd(s.repeat(), "done")
		s.expectReceived(2, told, "discarded done done")
	})
}

// A webhook that is sent once more must not hold up one that the merchant has not received.
func TestResend_delaysNoOtherWebhook(t *testing.T) {
	t.Parallel()
	for how, answer := range map[string]func(*shop){
		"waits": func(s *shop) { s.answer(says(http.StatusGone, "", "Retry-After", "86400")) },
		"dead": func(s *shop) {
			s.exec(`update inbox set payload = convert_to(replace(convert_from(payload, 'UTF8'), '"version":4', '"version":0'), 'UTF8') where type = 'webhook.resend'`)
		},
	} {
		t.Run("one that "+how, func(t *testing.T) {
			t.Parallel()
			s := notifiedShop(t)
			s.resend()
			answer(s)
			s.expectEnd(s.repeat(), how)
			before := len(s.received)
			s.announce(s.append(s.load("ch_1"), domain.RefundRequested{RefundID: "re_1", Amount: 600, Notify: true}, refundedBy()))
			s.expectEnd(s.deliver(), "done")
			if last := s.received[len(s.received)-1]; len(s.received) != before+1 || last.ID != s.outcome.ID.String() {
				t.Errorf("the shop received %+v, want %s", s.received[before:], s.outcome.ID)
			}
		})
	}
}
