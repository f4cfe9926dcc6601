package fulfillment_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// outcomes are those that a name means.
func (s *shop) outcomes(name string) []fulfillment.Outcome {
	s.Helper()
	found, err := fulfillment.OutcomesOf(s.Context(), s.db, name)
	if err != nil {
		s.Fatal(err)
	}
	return found
}

// resend asks for the webhook about the newest outcome once more.
func (s *shop) resend() uuid.UUID {
	s.Helper()
	found := s.outcomes(s.outcome.ID.String())
	if len(found) != 1 || found[0].Refusal() != nil {
		s.Fatalf("the outcomes are %+v", found)
	}
	return s.wish(found[0])
}

func (s *shop) wish(o fulfillment.Outcome) uuid.UUID {
	s.Helper()
	b, id := &pgx.Batch{}, uuid.New()
	if err := fulfillment.Resend(b, o, id, "cli:test"); err != nil {
		s.Fatal(err)
	}
	s.commit(b)
	return id
}

// wishes tells of each that was recorded who wanted it, and whether the merchant
// has it.
func (s *shop) wishes() string {
	s.Helper()
	return s.text(`
select coalesce(string_agg(concat_ws(' ', event_id, charge_id, merchant_id, requested_by, delivered_at is not null), ', ' order by requested_at), 'none')
  from webhook_resends`)
}

func (s *shop) expectWishes(delivered ...bool) {
	s.Helper()
	want := make([]string, len(delivered))
	for i, yes := range delivered {
		want[i] = fmt.Sprintf("%s ch_1 acme cli:test %.1s", s.outcome.ID, strconv.FormatBool(yes))
	}
	if got := s.wishes(); got != strings.Join(want, ", ") {
		s.Errorf("the wishes are %s\nwant %s", got, strings.Join(want, ", "))
	}
}

// rotate replaces acme's webhook secret.
func (s *shop) rotate(next string, overlap time.Duration) {
	s.Helper()
	secrets, err := merchants.ListSecrets(s.Context(), s.db, "acme")
	if err != nil || len(secrets) == 0 {
		s.Fatalf("the secrets are %+v: %v", secrets, err)
	}
	b := &pgx.Batch{}
	merchants.RotateSecret(b, secrets[0], next, overlap, "cli:test")
	s.commit(b)
}

func (s *shop) learn(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.knows = secret
}

// repeat works on a webhook that is told once more.
func (s *shop) repeat() error {
	s.Helper()
	return s.deliverAll(fulfillment.ResendReceiver, s.notify, 1)[0]
}

// toldShop is a shop that was told of ch_1.
func toldShop(t *testing.T) *shop {
	t.Helper()
	s := newShop(t, loopback())
	s.succeed(order())
	s.expectKind(s.deliver(), "done")
	return s
}

func TestResend(t *testing.T) {
	t.Parallel()

	t.Run("the merchant is told once more with the same words, and nothing else is recorded than that", func(t *testing.T) {
		t.Parallel()
		s := toldShop(t)
		s.resend()
		s.expectWishes(false)
		s.expectKind(s.repeat(), "done")
		s.expectTold(2, told, "done done")
		s.expectWishes(true)
	})

	t.Run("a wish that is wanted twice is two, and one that comes twice is one", func(t *testing.T) {
		t.Parallel()
		s := toldShop(t)
		id := s.resend()
		s.resend()
		b := &pgx.Batch{}
		if err := fulfillment.Resend(b, s.outcomes("ch_1")[0], id, "cli:test"); err != nil {
			t.Fatal(err)
		}
		if err := s.db.Commit(t.Context(), b); err == nil {
			t.Error("one wish was recorded twice")
		}
		s.deliverAll(fulfillment.ResendReceiver, s.notify, 2)
		s.expectTold(3, told, "done done done")
		s.expectWishes(true, true)
	})

	t.Run("a shop that refuses is asked again, and nothing is recorded before", func(t *testing.T) {
		t.Parallel()
		s := toldShop(t)
		s.resend()
		s.answer(says(http.StatusInternalServerError, ""))
		s.expectKind(s.repeat(), "waits")
		s.expectWishes(false)
		s.expectTold(2, told, "done pending")
		s.expectKind(s.repeat(), "done")
		s.expectTold(3, told, "done done")
		s.expectWishes(true)
	})

	t.Run("who dies after the merchant took it has it delivered again", func(t *testing.T) {
		t.Parallel()
		s := toldShop(t)
		s.resend()
		s.answer(meanwhile(func() { s.exec(`update inbox set fence = fence + 1 where status = 'running'`) }, says(http.StatusOK, "")))
		s.expectKind(s.repeat(), "lost")
		s.expectWishes(false)
		s.expectKind(s.repeat(), "done")
		s.expectTold(3, told, "done done")
		s.expectWishes(true)
	})

	t.Run("what was discarded is told after all, and recorded as told", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.succeed(order())
		s.exec(`update inbox set status = 'discarded', decided_by = 'cli:test', decided_at = now(), finished_at = now()`)
		s.resend()
		s.expectKind(s.deliver(), "done") // in its turn, as news
		s.expectTold(1, told, "discarded done")
		s.expectWishes(true)
		s.resend()
		s.expectKind(s.repeat(), "done")
		s.expectTold(2, told, "discarded done done")
	})

	t.Run("it goes to where the merchant is told now, signed by what is valid now", func(t *testing.T) {
		t.Parallel()
		s := toldShop(t)
		const next = "whsec_dGhlLW5leHQtc2VjcmV0LW9mLXRoZS1zaG9w"
		s.rotate(next, time.Hour)
		s.resend()
		s.expectKind(s.repeat(), "done") // by who knows the old one
		s.learn(next)
		s.resend()
		s.expectKind(s.repeat(), "done") // and by who knows the new one
		s.exec(`update webhook_secrets set ends_at = now() where ends_at is not null`)
		s.resend()
		s.expectKind(s.repeat(), "done")
		s.expectTold(4, told, "done done done done")
		s.resend()
		s.exec(`update merchants set webhook_url = null, webhook_generation = null`)
		s.expectKind(s.repeat(), "parked")
		s.expectWishes(true, true, true, false)
	})
}

// A webhook that is told once more must not hold up one that was never told.
func TestResend_holds_up_no_news(t *testing.T) {
	t.Parallel()
	for how, answer := range map[string]func(*shop){
		"waits": func(s *shop) { s.answer(says(http.StatusGone, "", "Retry-After", "86400")) },
		"parked": func(s *shop) {
			s.exec(`update inbox set payload = convert_to(replace(convert_from(payload, 'UTF8'), '"version":4', '"version":0'), 'UTF8') where type = $1`, "webhook.resend")
		},
	} {
		t.Run("one that "+how, func(t *testing.T) {
			t.Parallel()
			s := toldShop(t)
			s.resend()
			answer(s)
			s.expectKind(s.repeat(), how)
			stream := s.append(s.load(),
				domain.RefundRequested{RefundID: "re_1", Amount: 600, Notify: true},
				domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600})
			before := len(s.got)
			s.tell(stream)
			s.expectKind(s.deliver(), "done")
			if last := s.got[len(s.got)-1]; len(s.got) != before+1 || last.ID != s.outcome.ID.String() {
				t.Errorf("the shop was told %+v, want %s", s.got[before:], s.outcome.ID)
			}
		})
	}

	t.Run("and stays its charge's for whoever looks", func(t *testing.T) {
		t.Parallel()
		s := toldShop(t)
		s.resend()
		s.exec(`update inbox set status = 'dead' where type = $1`, "webhook.resend")
		api := testdb.As(t, s.db, postgres.RoleAPI)
		for merchant, want := range map[string]int{"acme": 1, "globex": 0} {
			found, err := inbox.List(t.Context(), api.Tenant(merchant), inbox.StatusDead, 0, 10)
			if err != nil || len(found) != want {
				t.Errorf("%s is shown %+v, %v, want %d messages", merchant, found, err, want)
			}
			for _, m := range found {
				if m.OrderingKey != "ch_1" || m.Receiver != fulfillment.ResendReceiver {
					t.Errorf("shown is %+v", m)
				}
			}
		}
	})
}

func TestRotation_while_deliveries_run(t *testing.T) {
	t.Parallel()
	const next = "whsec_dGhlLW5leHQtc2VjcmV0LW9mLXRoZS1zaG9w"

	t.Run("one that began before is believed, and so is its repetition", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.succeed(order())
		s.answer(meanwhile(func() { s.rotate(next, time.Hour) }, says(http.StatusServiceUnavailable, "")))
		s.expectKind(s.deliver(), "waits")
		s.learn(next)
		s.expectKind(s.deliver(), "done")
		s.expectTold(2, told, "done")
	})

	t.Run("a secret that ends during a delivery signs no repetition", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.succeed(order())
		s.rotate(next, time.Hour)
		s.answer(meanwhile(func() { s.exec(`update webhook_secrets set ends_at = now() where ends_at is not null`) },
			says(http.StatusServiceUnavailable, "")))
		s.expectKind(s.deliver(), "waits")
		endpoint, err := merchants.ReadWebhook(t.Context(), s.db, "acme")
		if err != nil || len(endpoint.Secrets) != 1 || endpoint.Secrets[0] != next {
			t.Errorf("the next delivery is signed by %d secrets: %v", len(endpoint.Secrets), err)
		}
		s.learn(next)
		s.expectKind(s.deliver(), "done")
		s.expectTold(2, told, "done")
	})
}

func TestOutcomesOf(t *testing.T) {
	t.Parallel()
	gave := domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600}

	t.Run("a charge means all that its merchant is told of, an event itself", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.tell(s.append(s.quiet(), gave))
		s.expectKind(s.deliver(), "done")
		found := s.outcomes("ch_1")
		if len(found) != 2 || found[0].Type != "charge.succeeded" || found[0].Refusal() == nil || found[1].Type != "refund.succeeded" || found[1].Refusal() != nil {
			t.Fatalf("ch_1 means %+v", found)
		}
		byID := s.outcomes(s.outcome.ID.String())
		if len(byID) != 1 || byID[0].EventID != found[1].EventID {
			t.Errorf("%s means %+v", s.outcome.ID, byID)
		}
		s.resend()
		s.expectKind(s.repeat(), "done")
		s.expectTold(2, paid+refunded+" merchant.notified", "done done")
	})

	t.Run("what is no outcome means nothing", func(t *testing.T) {
		t.Parallel()
		s := toldShop(t)
		for _, name := range []string{
			"", "ch_2", "re_1", "order 1", s.load().At(1).ID.String(), s.load().Head().ID.String(), uuid.NewString(), uuid.Nil.String(), "%", "ch_%", "\xff",
		} {
			if found := s.outcomes(name); len(found) != 0 {
				t.Errorf("%q means %+v", name, found)
			}
		}
	})

	t.Run("a merchant whose endpoint is gone is told nothing again", func(t *testing.T) {
		t.Parallel()
		s := toldShop(t)
		s.exec(`update merchants set webhook_url = null, webhook_generation = null`)
		found := s.outcomes("ch_1")
		if len(found) != 1 || found[0].Refusal() == nil || !strings.Contains(found[0].Refusal().Error(), "no webhook endpoint any more") {
			t.Errorf("%+v, want it refused", found)
		}
	})

	for status, says := range map[string]string{
		"pending": "on its way", "running": "on its way", "dead": "payonce inbox retry 1", "": "not been received",
	} {
		t.Run("a webhook that was never taken and is "+status+" is not sent again", func(t *testing.T) {
			t.Parallel()
			s := newShop(t, loopback())
			s.succeed(order())
			if status == "" {
				s.exec(`delete from inbox`)
			} else {
				s.exec(`update inbox set status = $1`, status)
			}
			found := s.outcomes("ch_1")
			if len(found) != 1 || found[0].Refusal() == nil || !strings.Contains(found[0].Refusal().Error(), says) {
				t.Errorf("%+v, want it refused with %q", found, says)
			}
		})
	}
}

func TestOutcomesSince(t *testing.T) {
	t.Parallel()
	s := toldShop(t)
	at := s.outcome.RecordedAt
	page := func(p fulfillment.Page) []fulfillment.Outcome {
		p.Limit = max(p.Limit, 1)
		found, err := fulfillment.OutcomesSince(t.Context(), s.db, p)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	first := page(fulfillment.Page{Merchant: "acme", Since: at})
	if len(first) != 1 || first[0].EventID != s.outcome.ID {
		t.Fatalf("found %+v", first)
	}
	for name, p := range map[string]fulfillment.Page{
		"after it":         {Merchant: "acme", Since: at.Add(time.Microsecond)},
		"until it":         {Merchant: "acme", Since: at.Add(-time.Hour), Until: at},
		"of nobody":        {Merchant: "nobody", Since: at},
		"on the next page": {Merchant: "acme", Since: at, After: &first[0]},
	} {
		if found := page(p); len(found) != 0 {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
