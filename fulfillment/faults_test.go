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

	"github.com/payonce/payonce/fulfillment"
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
	if got := f.snapshot(); got.Stock != sold || got.Outbox != want {
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
// had its effect. The worker looks for that effect before it uses the next key.
func TestOtherParameters(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ op, parameters, calls string }{
		"create":                        {"create", "description=old", "create retrieve confirm"},
		"create, which takes the money": {"create", "confirm=true", "create retrieve"},
		"confirm":                       {"confirm", "use_stripe_sdk=true", "create confirm retrieve"},
		"refund":                        {"refund", "reason=duplicate", "create confirm refunds refund refunds"},
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
			calls := f.provider.take()
			f.scan()
			f.expectEnd(f.deliver(), "done")
			calls += " " + f.provider.take()
			f.expectMoved(refunds...)
			if calls != test.calls {
				t.Errorf("the provider was called to %q, want %q", calls, test.calls)
			}
			if intents := f.provider.records(t).Intents; len(intents) != 1 {
				t.Errorf("the provider's intents are %+v, want one", intents)
			}
		})
	}

	t.Run("create, which holds up no other charge", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.useSandbox()
		f.provider.on("create", refuses(http.StatusBadRequest, "idempotency_error", ""))
		f.accept("ch_1", order())
		f.expectEnd(f.deliver(), "waits")
		f.expectText("true", `
select (min(since) = least(min(recorded_at), (select min(detected_at) from recoveries)) - interval '15 minutes')::text
  from recoveries, ledger_events
 where reason = 'creation'`)
		f.accept("ch_2", order())
		f.expectText("false", `select recovery_pending()::text`)
		ends := f.deliverAll(fulfillment.ChargeReceiver, f.charge, 2)
		if got := []string{endOf(ends[0]), endOf(ends[1])}; !slices.Contains(got, "done") || !slices.Contains(got, "waits") {
			t.Errorf("the charges ended as %q, want one that waits for the provider's list", got)
		}
		f.expectCaptures(1)
		f.exec(`insert into recoveries (id, history, since, reason, scanned_at) values (3, database_history(), '2026-01-01', 'history', now())`)
		f.scan()
		f.provider.on("create", breaks())
		f.expectEnd(f.deliver(), "waits")
		f.expectText("creation 2026-01-01", `select reason || ' ' || since::date from recoveries where scanned_at is null`)
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
