package fulfillment_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testdb"
)

// second are the pairs that make the provider's refund the one for re_2.
func second() []any {
	return []any{"id", "rp_2", "amount", 100, "metadata", map[string]any{"refund_id": "re_2"}}
}

// isOlder is a captured charge whose refund re_1 an older message was about.
func isOlder(f *fixture) { f.request(f.capture(order()), "re_1", 600) }

func TestRefund(t *testing.T) {
	t.Parallel()
	runAll(t, map[string]scenario{
		"the list is asked before the first send too": {
			begin: isRefunding, script: script{"refund": {gives("succeeded")}},
			want: back(refunded, "refund.succeeded", "done"), calls: "refunds refund",
			check: func(f *fixture) {
				f.expectKeys("refund", 0)
				f.expectRecorded(0, domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600})
				f.expectText("merchant_payable→refund_clearing 600, refund_clearing→psp_receivable 600", `
select string_agg(format('%s→%s %s', split_part(debit, ':', 1), split_part(credit, ':', 1), amount), ', ' order by version)
  from ledger_postings
 where version > 4`)
				if asked := f.provider.calls[0]; asked.intent != "pi_1" {
					f.t.Errorf("the refunds of %q were listed, want those of pi_1", asked.intent)
				}
			},
		},
	})
}

// TestRefund_doesNotStopOtherRefunds has two refunds of one charge, each with a message of its own.
func TestRefund_doesNotStopOtherRefunds(t *testing.T) {
	t.Parallel()
	both := func(f *fixture) {
		isRefunding(f)
		f.request(f.load("ch_1"), "re_2", 100)
	}
	runAll(t, map[string]scenario{
		"one that needs an operator does not keep another from its outcome": {
			begin: both, script: script{"refund": {gives("reticent"), gives("succeeded", second()...)}, "refunds": {lists()}}, ends: "dead done",
			want: back(asked+refunded, "refund.succeeded", "dead done"), calls: "refunds refund refunds refund",
		},
	})
}

// TestRefund_followsTheStateAtTheProvider has the state of the refund at the provider, in the
// answer to a send or in its list.
func TestRefund_followsTheStateAtTheProvider(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	dead, pending := back(asked, "", "dead"), back(asked, "", "pending")
	scenarios := map[string]scenario{
		"a response about another refund makes a dead letter, and nothing is recorded": {
			begin: isRefunding, script: script{"refund": {gives("succeeded", "metadata", map[string]any{"refund_id": "re_2"})}},
			ends: "dead", want: dead, calls: "refunds refund",
		},
		"a response about another payment's refund makes a dead letter, and nothing is recorded": {
			begin: isRefunding, script: script{"refund": {gives("succeeded", "metadata", map[string]any{"refund_id": "re_2"}, "payment_intent", "pi_2")}},
			ends: "dead", want: dead, calls: "refunds refund",
		},
		"a failure says why": {
			begin: isRefunding, script: script{"refund": {gives("failed", "failure_reason", "expired_or_canceled_card")}},
			want: back(asked+" refund.failed", "refund.failed", "done"), calls: "refunds refund",
			check: func(f *fixture) {
				f.expectRecorded(0, domain.RefundFailed{
					RefundID: "re_1", ProviderRefund: "rp_1", Code: domain.ProviderRefused,
					Message: "the refund failed at the provider: expired_or_canceled_card",
				})
			},
		},
	}
	for name, s := range map[string]struct {
		status string
		pairs  []any
		end    string
		want   snapshot
	}{
		"succeeded is a success":                            {"succeeded", nil, "done", back(refunded, "refund.succeeded", "done")},
		"failed is a failure":                               {"failed", nil, "done", back(asked+" refund.failed", "refund.failed", "done")},
		"canceled is a failure":                             {"canceled", nil, "done", back(asked+" refund.failed", "refund.failed", "done")},
		"pending is looked at again later":                  {"pending", nil, "waits", pending},
		"an action of the customer is waited for":           {"requires_action", nil, "waits", pending},
		"an unknown state makes a dead letter":              {"reticent", nil, "dead", dead},
		"a wrong amount makes a dead letter":                {"succeeded", []any{"amount", 601}, "dead", dead},
		"a wrong currency makes a dead letter":              {"succeeded", []any{"currency", "usd"}, "dead", dead},
		"another payment makes a dead letter":               {"succeeded", []any{"payment_intent", "pi_2"}, "dead", dead},
		"an id that cannot be stored is no answer":          {"succeeded", []any{"id", "rp\x00"}, "waits", pending},
		"a wrong amount makes a dead letter while it waits": {"pending", []any{"amount", 601}, "dead", dead},
	} {
		scenarios["answered "+name] = scenario{
			begin: isRefunding, script: script{"refund": {gives(s.status, s.pairs...)}}, ends: s.end, want: s.want, calls: "refunds refund",
		}
		scenarios["listed "+name] = scenario{
			begin: isOlder, script: script{"refunds": {lists(refundOf(s.status, s.pairs...))}}, ends: s.end, want: s.want, calls: "refunds",
		}
	}
	runAll(t, scenarios)
}

// TestRefund_list is about the read of the list before a send.
func TestRefund_list(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	of := func(reference, id, status string) json.RawMessage {
		return refundOf(status, "id", id, "metadata", map[string]any{"refund_id": reference})
	}
	success := back(refunded, "refund.succeeded", "done")
	scenarios := map[string]scenario{}
	for name, s := range map[string]struct {
		listed []json.RawMessage
		calls  string
		end    string
		want   snapshot
	}{
		"refunds of others are not ours": {
			[]json.RawMessage{of("re_2", "rp_2", "succeeded"), refundOf("pending", "id", "rp_3", "metadata", nil)},
			"refunds refund", "done", back(refunded, "refund.succeeded", "done"),
		},
		"one of ours among others is found": {
			[]json.RawMessage{of("re_2", "rp_2", "failed"), of("re_1", "rp_1", "succeeded"), of("re_3", "rp_3", "failed")}, "refunds", "done", success,
		},
		"two that move money make a dead letter": {
			[]json.RawMessage{of("re_1", "rp_2", "pending"), of("re_1", "rp_1", "succeeded")}, "refunds", "dead", back(asked, "", "dead"),
		},
		"one that moves money stands before one that failed": {
			[]json.RawMessage{of("re_1", "rp_2", "failed"), of("re_1", "rp_1", "succeeded")}, "refunds", "done", success,
		},
	} {
		scenarios[name] = scenario{
			begin: isOlder, script: script{"refund": {gives("succeeded")}, "refunds": {lists(s.listed...)}}, ends: s.end, want: s.want, calls: s.calls,
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"a 500":          breaks(),
		"half an answer": says(http.StatusOK, `{"object":"list","data":[{"id":`),
		"a list that repeats itself": lists(
			refundOf("succeeded", "id", "rp_2", "metadata", nil), refundOf("succeeded", "id", "rp_2", "metadata", nil)),
	} {
		scenarios["a look that ends in "+name+" sends and records nothing"] = scenario{
			begin: isOlder, script: script{"refunds": {answer}}, ends: "waits", want: back(asked, "", "pending"), calls: "refunds",
		}
	}
	runAll(t, scenarios)
}

// TestRefund_refused is about sends that the provider did not execute.
func TestRefund_refused(t *testing.T) {
	t.Parallel()
	refused := refuses(http.StatusBadRequest, "invalid_request_error", "charge_already_refunded")
	scenarios := map[string]scenario{
		"as long as the list cannot be read nothing is believed": {
			begin:  isRefunding,
			script: script{"refund": {refused}, "refunds": {cut, lists(refundOf("succeeded"))}},
			ends:   "waits done", want: back(refunded, "refund.succeeded", "done"), calls: "refunds refund refunds refunds",
		},
	}
	for name, refusal := range map[string]http.HandlerFunc{
		"a refund of what was refunded":   refused,
		"a refund that the card declines": refuses(http.StatusPaymentRequired, "card_error", "card_declined"),
	} {
		scenarios[name+" fails if it is not in the list"] = scenario{
			begin: isRefunding, script: script{"refund": {refusal}, "refunds": {lists()}},
			want: back(asked+" refund.failed", "refund.failed", "done"), calls: "refunds refund refunds",
			check: func(f *fixture) {
				f.expectRecorded(0, domain.RefundFailed{RefundID: "re_1", Code: domain.ProviderRefused, Message: "for people"})
			},
		}
		scenarios[name+" succeeded if an earlier send is in the list"] = scenario{
			begin: isRefunding, script: script{"refund": {refusal}, "refunds": {lists(refundOf("succeeded"))}},
			want: back(refunded, "refund.succeeded", "done"), calls: "refunds refund refunds",
		}
	}
	runAll(t, scenarios)
}

func TestAttempt_refund(t *testing.T) {
	t.Parallel()
	attemptFailed := asked + " refund.attempt_failed"
	scenarios := map[string]scenario{
		"an error of the provider is recorded and opens a new key, after a look at the list": {
			begin:  isRefunding,
			script: script{"refund": {breaks(), breaks(), gives("succeeded")}, "refunds": {lists(), lists()}},
			ends:   "waits waits done", want: back(attemptFailed+" refund.attempt_failed refund.succeeded", "refund.succeeded", "done"),
			calls: "refunds refund refunds refund refunds refund",
			check: func(f *fixture) {
				f.expectKeys("refund", 0, 1, 2)
				f.expectRecorded(6, domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500, RequestID: "req_provider"})
			},
		},
		"waiting for the provider counts no attempt": {
			begin: isRefunding, script: script{"refund": {gives("pending")}, "refunds": {lists(refundOf("pending")), lists(refundOf("pending"))}},
			ends: "waits waits waits", want: back(asked, "", "pending"), calls: "refunds refund refunds refunds",
			check: func(f *fixture) { f.expectText("0 3", `select format('%s %s', attempts, waits) from inbox`) },
		},
	}
	for ends, answers := range retried() {
		for name, answer := range answers {
			scenarios[name+" records nothing, keeps the key, and the list is asked first"] = scenario{
				begin: isRefunding, script: script{"refund": {answer[0], gives("succeeded")}, "refunds": {lists()}},
				ends: ends, want: back(refunded, "refund.succeeded", "done"), calls: "refunds refund refunds refund",
				check: func(f *fixture) { f.expectKeys("refund", 0, 0) },
			}
		}
	}
	runAll(t, scenarios)
}
