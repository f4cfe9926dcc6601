package fulfillment_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testdb"
)

// TestFaults ends or disturbs a worker at a call of the provider. The next worker brings the
// charge or the refund to its outcome, and the money moves once, whether the provider still
// knows the keys or not.
func TestFaults(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	const effectAfterCut = "an effect after the worker stopped waiting"
	for way, fault := range map[string]struct {
		answer func(*fixture) http.HandlerFunc
		end    string
	}{
		"a cut before the effect":                                {func(*fixture) http.HandlerFunc { return cut }, "waits"},
		"a cut after the effect":                                 {func(f *fixture) http.HandlerFunc { return f.provider.cutAfter }, "waits"},
		"a worker that dies with the answer in hand":             {func(f *fixture) http.HandlerFunc { return f.takeOver(f.provider.sandbox.ServeHTTP) }, "lost"},
		"an error of the provider's before the effect":           {func(*fixture) http.HandlerFunc { return breaks() }, "waits"},
		"an error of the provider's after the effect":            {func(f *fixture) http.HandlerFunc { return f.provider.breaksAfter }, "waits"},
		"a saved error that was not received, before the effect": {func(f *fixture) http.HandlerFunc { return f.provider.under(failsBefore, f.provider.cutAfter) }, "waits"},
		"a saved error that was not received, after the effect":  {func(f *fixture) http.HandlerFunc { return f.provider.under(failsAfter, f.provider.cutAfter) }, "waits"},
		effectAfterCut: {func(f *fixture) http.HandlerFunc { return f.provider.cutBefore }, "waits"},
	} {
		for memory, faults := range map[string]string{"": noFault, ", and the keys are forgotten": forgetsKeys} {
			for _, op := range []string{"create", "confirm", "refund", "refunds"} {
				t.Run(op+": "+way+memory, func(t *testing.T) {
					t.Parallel()
					f := newFixture(t)
					f.useSandbox()
					var refunds []movement
					if op == "refund" || op == "refunds" {
						refunds = []movement{{"re_1", 600}}
						f.accept("ch_1", order())
						f.expectEnd(f.deliver(), "done")
						f.request(f.load("ch_1"), "re_1", 600)
					} else {
						f.accept("ch_1", order())
					}
					f.provider.control(t, http.MethodPut, "/faults", faults)
					f.provider.on(op, fault.answer(f))
					f.expectEnd(f.deliver(), fault.end)
					switch {
					case way != effectAfterCut:
					case op == "refund" && memory == "": // with forgotten keys, see Limits in docs/reference/provider.md
						f.provider.on("refunds", f.provider.beforeEffect(t))
					default:
						f.provider.executeLate(t)
					}
					f.deliverUntilDone()
					f.expectMoved(refunds...)
				})
			}
		}
	}
}

// expectMoved checks that the charge was captured and its stock sold once, and that the
// provider and the ledger have these refunds.
func (f *fixture) expectMoved(refunds ...movement) {
	f.t.Helper()
	want := "charge.succeeded" + strings.Repeat(" refund.succeeded", len(refunds))
	if got := f.snapshot(); got.Stock != sold || got.Announced != want {
		f.t.Errorf("the charge left %+v, want the outcomes %q", got, want)
	}
	f.expectCaptures(1)
	got := f.provider.records(f.t).Refunds
	slices.SortFunc(got, func(a, b movement) int { return int(b.Amount - a.Amount) })
	if diff := cmp.Diff(append([]movement{}, refunds...), got); diff != "" {
		f.t.Errorf("the provider refunded (-want +got):\n%s", diff)
	}
}

// afterAnother executes the call with other parameters first, as a program of another version
// sends it.
func (p *provider) afterAnother(parameters string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		other := r.Clone(r.Context())
		other.Body, r.Body = io.NopCloser(strings.NewReader(string(body)+"&"+parameters)), io.NopCloser(bytes.NewReader(body))
		p.sandbox.ServeHTTP(httptest.NewRecorder(), other)
		p.sandbox.ServeHTTP(w, r)
	}
}

// TestOtherParameters: the key of an attempt belongs to a request with other parameters, which
// had its effect. The worker looks for that effect before it uses the next key. A charge whose
// first creation is answered so fails instead, with an intent that nothing confirms.
func TestOtherParameters(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ op, parameters, calls string }{
		"confirm": {"confirm", "use_stripe_sdk=true", "create confirm retrieve"},
		"refund":  {"refund", "reason=duplicate", "create confirm refunds refund refunds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.useSandbox()
			f.provider.on(test.op, f.provider.afterAnother(test.parameters))
			f.accept("ch_1", order())
			var refunds []movement
			if test.op == "refund" {
				f.expectEnd(f.deliver(), "done")
				f.request(f.load("ch_1"), "re_1", 600)
				refunds = []movement{{"re_1", 600}}
			}
			f.expectEnd(f.deliver(), "waits")
			f.expectEnd(f.deliver(), "done")
			f.expectMoved(refunds...)
			f.expectCalls(test.calls)
			if intents := f.provider.records(t).Intents; len(intents) != 1 {
				t.Errorf("the provider's intents are %+v, want one", intents)
			}
		})
	}

	t.Run("create", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.useSandbox()
		f.provider.on("create", f.provider.afterAnother("description=old"))
		f.accept("ch_1", order())
		f.expectEnd(f.deliver(), "done")
		f.expectCalls("create")
		f.expectFailure(domain.Failure{Code: domain.ProviderRefused, Message: "this key was used for another payment"})
		f.expectCaptures(0)
	})
	t.Run("a later key of create", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.useSandbox()
		f.provider.on("create", breaks(), f.provider.afterAnother("description=old"))
		f.accept("ch_1", order())
		f.expectEnd(f.deliver(), "waits")
		f.expectEnd(f.deliver(), "waits")
		f.expectEnd(f.deliver(), "done")
		f.expectMoved()
		f.expectCalls("create create create confirm")
	})
	t.Run("refund, which is in flight", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.useSandbox()
		f.accept("ch_1", order())
		f.expectEnd(f.deliver(), "done")
		f.request(f.load("ch_1"), "re_1", 600)
		f.provider.on("refund", refuses(http.StatusBadRequest, "idempotency_error", ""))
		f.expectEnd(f.deliver(), "waits")
		f.expectEnd(f.deliver(), "waits") // it is not in the list
		f.exec(`alter table ledger_events disable trigger ledger_events_append_only`)
		f.exec(`update ledger_events set recorded_at = recorded_at - interval '2 minutes' where type = 'refund.attempt_failed.v1'`)
		f.expectEnd(f.deliver(), "done") // it never will be
		f.expectMoved(movement{"re_1", 600})
		f.expectCalls("create confirm refunds refund refunds refunds refund")
	})
}
