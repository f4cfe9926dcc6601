package fulfillment_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/stripe"
)

// sandboxed is a memory whose provider is the sandbox, with its own records of the money.
type sandboxed struct {
	*memory

	provider *provider
	client   *stripe.Client
}

func newSandboxed(t *testing.T, first domain.ChargeRequested) *sandboxed {
	t.Helper()
	p := newProvider(t)
	client := newClient(t, p.URL)
	return &sandboxed{newMemory(t, fulfillment.Services{Provider: client, ActionTimeout: time.Hour}, first), p, client}
}

// ends delivers the message about the newest request, and checks how each delivery ends.
func (s *sandboxed) ends(want ...string) {
	s.t.Helper()
	for _, end := range want {
		if err := s.deliver(""); endOf(err) != end {
			s.t.Errorf("the handler returned %v, want %s", err, end)
		}
	}
}

// moved checks the money that the provider has moved, and that the ledger has the same.
func (s *sandboxed) moved(captures int, refunds ...movement) {
	s.t.Helper()
	r := s.provider.records(s.t)
	if diff := cmp.Diff(append([]movement{}, refunds...), r.Refunds); diff != "" || len(r.Captures) != captures {
		s.t.Errorf("the provider captured %+v, want %d, and refunded (-want +got):\n%s", r.Captures, captures, diff)
	}
	var refunded int64
	for _, m := range refunds {
		refunded += m.Amount
	}
	if c := s.stream.Charge; !c.Terminal() || (c.StepStatus(domain.Payment) == domain.StepDone) != (captures > 0) || c.AmountRefunded() != refunded {
		s.t.Errorf("the charge is %s, and %d of it are refunded", c.Status, c.AmountRefunded())
	}
}

// TestFaults are calls that the provider executes when their worker has stopped waiting, or whose answer it breaks.
// The next worker brings the charge or the refund to its outcome, and the money moves once, whether the provider
// still knows the keys or not. What can be drawn at any call is in TestStore.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"create", "confirm", "refund", "refunds"} {
		for _, late := range []bool{false, true} {
			for _, forgets := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s: late %t, and the keys are forgotten %t", op, late, forgets), func(t *testing.T) {
					t.Parallel()
					s := newSandboxed(t, order())
					var refunds []movement
					if strings.HasPrefix(op, "refund") {
						refunds = []movement{{"re_1", 600}}
						s.ends("done")
						s.append(requested())
					}
					answer := s.provider.cutBefore
					if !late {
						answer = func(w http.ResponseWriter, r *http.Request) {
							s.provider.sandbox.ServeHTTP(httptest.NewRecorder(), r)
							breaks(w, r)
						}
					}
					s.provider.expect(fault{1, op, answer})
					s.ends("waits")
					if forgets {
						s.provider.forgetKeys()
					}
					switch {
					case !late:
					case op == "refund" && !forgets: // with forgotten keys, see Limits in docs/reference/provider.md
						s.provider.expect(fault{1, "refunds", func(w http.ResponseWriter, r *http.Request) {
							s.provider.sandbox.ServeHTTP(w, r)
							s.provider.executeLate(t)
						}})
					default:
						s.provider.executeLate(t)
					}
					for range 3 {
						if endOf(s.deliver("")) == "done" {
							break
						}
					}
					s.moved(1, refunds...)
				})
			}
		}
	}
}

// TestOtherParameters: the key of an attempt belongs to a request with other parameters, which had its effect, as
// a program of another version sends it. The worker looks for that effect before it uses the next key. A
// charge whose first creation is answered so fails instead, with an intent that nothing confirms.
func TestOtherParameters(t *testing.T) {
	t.Parallel()
	for op, test := range map[string]struct {
		parameters string
		ends       []string
		captures   int
	}{
		"create":  {"&description=old", []string{"done"}, 0},
		"confirm": {"&use_stripe_sdk=true", []string{"waits", "done"}, 1},
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			s := newSandboxed(t, order())
			var refunds []movement
			if op == "refund" {
				s.ends("done")
				s.append(requested())
				refunds = []movement{{"re_1", 600}}
			}
			s.provider.expect(fault{1, op, func(w http.ResponseWriter, r *http.Request) {
				s.provider.sandbox.ServeHTTP(httptest.NewRecorder(), again(r, test.parameters))
				s.provider.sandbox.ServeHTTP(w, r)
			}})
			s.ends(test.ends...)
			s.moved(test.captures, refunds...)
			if intents := s.provider.records(t).Intents; len(intents) != 1 {
				t.Errorf("the provider's intents are %+v, want one", intents)
			}
		})
	}
}

// TestResentKey: a database has lost a charge, and the client sends its key again. The provider has the first
// payment intent under the key, until it forgets the key. Of another payment's key the charge fails.
func TestResentKey(t *testing.T) {
	t.Parallel()
	dearer, declined := order(), order()
	dearer.Amount, declined.PaymentMethod = 2999, "pm_card_chargeDeclined"
	for name, test := range map[string]struct {
		first    domain.ChargeRequested
		forgets  bool
		again    domain.ChargeRequested
		captures int
		failure  domain.FailureCode
	}{
		"the payment was captured":                              {order(), false, order(), 1, ""},
		"the payment was declined":                              {declined, false, declined, 0, domain.CardDeclined},
		"the key is forgotten, so the audit has two captures":   {order(), true, order(), 2, ""},
		"another amount":                                        {order(), false, dearer, 1, domain.ProviderRefused},
		"the second charge expires before it asks the provider": {order(), false, until(nine), 1, domain.Expired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSandboxed(t, test.first)
			s.ends("done")
			first := s.stream.Charge.PaymentIntent
			if test.forgets {
				s.provider.forgetKeys()
			}
			s.memory = newMemory(t, fulfillment.Services{Provider: s.client}, test.again)
			s.ends("done")
			c, captures := s.stream.Charge, s.provider.records(t).Captures
			if len(captures) != test.captures || (c.Failure == nil) != (test.failure == "") || c.Failure != nil && c.Failure.Code != test.failure {
				t.Errorf("the charge is %s %v, want %q; the captures are %+v, want %d", c.Status, c.Failure, test.failure, captures, test.captures)
			}
			if same := c.PaymentIntent == first; same != slices.Contains([]string{"the payment was captured", "the payment was declined"}, name) {
				t.Errorf("the charge has %s, the first one had %s", c.PaymentIntent, first)
			}
		})
	}
}

// TestCancel_refusesALateConfirmation: a request that was in flight for long comes too late.
func TestCancel_refusesALateConfirmation(t *testing.T) {
	t.Parallel()
	s := newSandboxed(t, order())
	s.provider.expect(fault{1, "confirm", cut}) // it is in flight somewhere
	s.ends("waits")
	key := s.stream.At(s.stream.Charge.AttemptVersion).ID.String()
	s.append(domain.ChargeCancelRequested{})
	s.ends("done")
	_, err := s.client.ConfirmIntent(t.Context(), key, s.stream.Charge.PaymentIntent, "")
	if e, ok := errors.AsType[*stripe.Error](err); !ok || e.Why.Code != "payment_intent_unexpected_state" {
		t.Errorf("the late confirmation was answered %v, want that the intent's state refuses it", err)
	}
	s.moved(0)
}
