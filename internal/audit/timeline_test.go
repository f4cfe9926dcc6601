package audit_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func (f *fixture) timeline(t *testing.T, name, merchant string) audit.Timeline {
	t.Helper()
	tl, err := audit.ReadTimeline(t.Context(), f.db, f.named(name), merchant)
	testdb.Must(t, err)
	return tl
}

// chain is a timeline of some kinds, or of all, without times and details.
func chain(tl audit.Timeline, kinds ...string) []string {
	var lines []string
	for _, e := range tl.Entries {
		if len(kinds) == 0 || slices.Contains(kinds, e.Kind) {
			lines = append(lines, e.Kind+" | "+e.What+" | "+e.Who)
		}
	}
	return lines
}

// only is the one entry that chain writes as line. Of several it is the last.
func only(t *testing.T, tl audit.Timeline, line string) audit.TimelineEntry {
	t.Helper()
	for _, e := range slices.Backward(tl.Entries) {
		if e.Kind+" | "+e.What+" | "+e.Who == line {
			return e
		}
	}
	t.Fatalf("no entry is %s: %q", line, chain(tl))
	return audit.TimelineEntry{}
}

// shows compares some members of an entry's detail, as JSON.
func shows(t *testing.T, e audit.TimelineEntry, want map[string]any) {
	t.Helper()
	for name, value := range want {
		got, err := json.Marshal(e.Detail[name])
		due, _ := json.Marshal(value)
		if err != nil || string(got) != string(due) {
			t.Errorf("%s of %s is %s (%v), want %s", name, e.What, got, err, due)
		}
	}
}

func TestReadTimeline(t *testing.T) {
	t.Parallel()
	f := emptyFixture(t)
	f.accept("acme", "other", true)
	f.accept("acme", "paid", true)
	f.receive()
	f.reserve("paid")
	f.decide("paid", recorded(domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_paid"}))
	f.decide("paid", recorded(domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500, RequestID: "req_42"}))
	f.outcome("paid", func(c domain.Charge) []domain.Event { return c.Capture("pi_paid", c.Amount) })
	f.exec(`update inbox set fence = 3, done_fence = 3, waits = 2, duplicates = 4 where ordering_key = '{paid}'`)
	f.receive()
	f.notify("paid")
	tl, id := f.timeline(t, "{paid}", ""), f.ids["paid"]
	reference := testdb.One[string](t, f.db, `select data ->> 'reference' from ledger_events where version = 1 and stream_id = $1`, id)

	want := []string{
		"key | POST /v1/charges | acme",
		"event | charge.requested.v1 | api",
		"inbox | received | fulfillment",
		"event | inventory.reserved.v1 | worker",
		"event | payment.started.v1 | worker",
		"event | payment.attempt_failed.v1 | worker",
		"event | payment.captured.v1 | worker",
		"event | charge.succeeded.v1 | worker",
		"inbox | done | fulfillment",
		"inbox | received | notification",
		"webhook | merchant.notified.v1 | worker",
		"inbox | done | notification",
	}
	testrun.Same(t, "the chain", want, chain(tl))
	for i, e := range tl.Entries {
		if e.At.IsZero() || e.At.After(tl.AsOf) || e.At.Location() != time.UTC || e.ChargeID != id {
			t.Errorf("entry %d is %+v as of %v", i, e, tl.AsOf)
		}
		if i > 0 && e.At.Before(tl.Entries[i-1].At) {
			t.Errorf("entry %d is earlier than the one before", i)
		}
	}
	charge := audit.TimelineCharge{
		ID: id, MerchantID: "acme", OrderID: "paid", Amount: 1000, Currency: "USD", Status: domain.Succeeded, PaymentIntent: "pi_paid", Version: 7,
		Steps: []domain.StepState{{Name: "inventory", Status: domain.StepDone}, {Name: "payment", Status: domain.StepDone}, {Name: "notification", Status: domain.StepDone}},
	}
	testrun.Same(t, "the charge", []audit.TimelineCharge{charge}, tl.Charges)

	requested, succeeded := only(t, tl, want[1]), only(t, tl, want[7])
	if requested.Version != 1 || succeeded.Version != 6 {
		t.Errorf("the request is version %d, the outcome %d", requested.Version, succeeded.Version)
	}
	for line, detail := range map[string]map[string]any{
		want[0]: {"key": "key-paid", "key_hash": idempotency.Hash("key-paid"), "status_code": 202, "location": "/v1/charges/" + id},
		want[1]: {
			"amount": 1000, "currency": "USD", "fee": 30, "order_id": "paid", "payment_method": "pm_card_visa", "notify": true,
			"items": []string{"2 tshirt"}, "request": "request-paid",
		},
		want[2]: {"message_id": requested.Detail["event_id"], "type": "charge.requested.v1", "duplicates": 4},
		want[4]: {"provider_key": reference + "-0"},
		want[5]: {"provider_key": only(t, tl, want[4]).Detail["event_id"], "provider_status": 500, "provider_request": "req_42", "stage": domain.StageConfirm, "request": "paid", "cause": nil},
		want[6]: {"provider_key": only(t, tl, want[5]).Detail["event_id"], "payment_intent": "pi_paid", "provider": "stripe", "amount": 1000},
		want[8]: {
			"claims": 3, "attempts": 1, "waits": 2, "deaths": 0, "holder": "host:1",
			"receiver": nil, "due_at": nil, "lease_ends_at": nil, "last_error": nil,
		},
		want[10]: {"webhook_id": succeeded.Detail["event_id"], "about_version": succeeded.Version, "type": "charge.succeeded"},
	} {
		shows(t, only(t, tl, line), detail)
	}
}

func TestReadTimeline_ofRefunds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	returning := f.ids["returning"]
	f.decide("refunded", recorded(domain.RefundAttemptFailed{RefundID: returning, StatusCode: 502, RequestID: "req_7"}))
	tl := f.timeline(t, "{refunded}", "acme")
	for what, detail := range map[string]map[string]any{
		"refund.attempt_failed.v1": {"refund_id": returning, "provider_status": 502, "provider_request": "req_7"},
		"refund.succeeded.v1":      {"refund_id": f.ids["reversed"], "provider_refund": "re_reversed", "amount": 100},
		"refund.reversed.v1":       {"refund_id": f.ids["reversed"], "provider_refund": "re_reversed", "amount": 100},
		"refund.failed.v1":         {"refund_id": f.ids["bounced"], "provider_refund": "re_bounced", "code": domain.ProviderRefused, "message": "no"},
	} {
		shows(t, only(t, tl, "event | "+what+" | worker"), detail)
	}
	for _, name := range []string{"{refunded}", "{sold}", "{declined}"} {
		if encoded, err := json.Marshal(f.timeline(t, name, "")); err != nil || strings.Contains(string(encoded), "a secret") || strings.Contains(string(encoded), "payload") {
			t.Errorf("what a merchant wrote for its own use, or a payload, is shown: %s (%v)", encoded, err)
		}
	}
}

func TestReadTimeline_findsByName(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.accept("globex", "sold of globex", true)
	f.refuse("key-sold")
	f.exec(`update idempotency_keys set key = 're_no-refund' where key = 'key-fresh'`)
	const charges, refunds = "acme POST /v1/charges ", "acme POST /v1/charges/:id/refunds "
	ofRefunded := []string{
		charges + "key-refunded {refunded}", refunds + "key-bounced {refunded}", refunds + "key-part {refunded}",
		refunds + "key-returning {refunded}", refunds + "key-reversed {refunded}",
	}
	refused, theirs := refunds+"key-sold ", "globex POST /v1/charges key-sold {sold of globex}"
	for _, test := range []struct {
		what, name, merchant string
		charges, keys        []string
	}{
		{"a charge, with the keys of its refunds", "{refunded}", "", []string{"{refunded}"}, ofRefunded},
		{"a refund", "{part}", "acme", []string{"{refunded}"}, ofRefunded},
		{
			"a key, in all operations and of all merchants", "key-sold", "",
			[]string{"{sold of globex}", "{sold}"},
			[]string{charges + "key-sold {sold}", refused, theirs},
		},
		{"a key of one merchant", "key-sold", "globex", []string{"{sold of globex}"}, []string{theirs}},
		{"a key whose request was refused", "key-too-much", "", nil, []string{refunds + "key-too-much "}},
		{"a key that looks like a refund", "re_no-refund", "", []string{"{fresh}"}, []string{charges + "re_no-refund {fresh}"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			tl := f.timeline(t, test.name, test.merchant)
			var want, got []string // charges and keys
			for _, line := range slices.Concat(test.charges, test.keys) {
				want = append(want, f.named(line))
			}
			for _, c := range tl.Charges {
				got = append(got, c.ID)
			}
			for _, e := range tl.Entries {
				if key, isKey := e.Detail["key"].(string); isKey {
					got = append(got, strings.Join([]string{e.Who, e.What, key, e.ChargeID}, " "))
				}
			}
			testrun.Same(t, "charges and keys", sorted(want), sorted(got))
		})
	}
	for name, merchant := range map[string]string{
		"ch_unknown": "", "re_unknown": "", "unknown": "", "": "", "{refunded}": "globex", "key-refunded": "globex",
	} {
		if tl, err := audit.ReadTimeline(t.Context(), f.db, f.named(name), merchant); !errors.Is(err, audit.ErrNotFound) {
			t.Errorf("%q of %q: %v, %q", name, merchant, err, chain(tl))
		}
	}
}

func TestReadTimeline_showsTheStateOfMessages(t *testing.T) {
	t.Parallel()
	f := emptyFixture(t)
	const dead = `status = 'dead', fence = 4, attempts = 4, last_error = 'dead letter: no such thing'`
	for name, set := range map[string]string{
		"waits": `status = 'pending', waits = 2, fence = 2, last_error = 'waiting: the provider is away', due_at = '2126-01-01 00:00:00.5+00'`,
		"runs":  `status = 'running', fence = 1, attempts = 1, holder = 'host:2'`,
		"next":  `status = 'pending', first = false, fence = 0, holder = null`,
		"lost": `status = 'done', first = false, fence = 3, done_fence = 3, holder = 'host:3', claimed_at = '2126-01-01 00:00:06+00', finished_at = '2126-01-01 00:00:07+00',
			duplicates = 2, duplicated_at = '2126-01-01 00:00:01+00', history = '[
			{"fence": 1, "holder": "host:1", "claimed_at": null, "lease_ended_at": "2126-01-01T00:00:03+00:00", "at": "2126-01-01T00:00:04+00:00"},
			{"fence": 2, "holder": "host:2", "claimed_at": "2126-01-01T00:00:04+00:00", "at": "2126-01-01T00:00:05+00:00", "error": "no"}]'`,
		"dead":  dead,
		"retry": dead,
		"end":   dead,
	} {
		f.accept("acme", name, true)
		f.receive()
		f.exec(`update inbox set ` + set + ` where ordering_key = '{` + name + `}'`)
	}
	f.exec(`insert into inbox_holders values ('fulfillment', 'host:2', '2126-01-01 00:00:01+00')`)
	message := func(name string) int64 {
		return number(f, f.named(`select id from inbox where ordering_key = '{`+name+`}'`))
	}
	testdb.Must(t, inbox.Retry(t.Context(), f.db, message("retry"), "cli:ada"))
	testdb.Must(t, inbox.Discard(t.Context(), f.db, message("end"), "cli:bob"))
	for name, test := range map[string]struct {
		want []string
		line int // whose detail is shown
		show map[string]any
	}{
		"waits": {[]string{"pending | fulfillment"}, 0, map[string]any{
			"claims": 2, "waits": 2, "last_error": "waiting: the provider is away", "due_at": "2126-01-01T00:00:00.5+00:00",
		}},
		"runs": {[]string{"running | fulfillment"}, 0, map[string]any{
			"claims": 1, "attempts": 1, "holder": "host:2", "lease_ends_at": "2126-01-01T00:00:01+00:00",
		}},
		"next": {[]string{"pending | fulfillment"}, 0, map[string]any{"claims": 0, "behind": true}},
		"lost": {[]string{"duplicate | fulfillment", "taken over | fulfillment", "failed | fulfillment", "done | fulfillment"}, 1, map[string]any{
			"fence": 1, "holder": "host:1", "taken_over_by": "host:2", "lease_ended_at": "2126-01-01T00:00:03+00:00", "claims": nil,
		}},
		"dead":  {[]string{"dead letter | fulfillment"}, 0, map[string]any{"attempts": 4, "last_error": "dead letter: no such thing"}},
		"retry": {[]string{"retried | cli:ada", "pending | fulfillment"}, 0, map[string]any{"receiver": "fulfillment"}},
		"end":   {[]string{"discarded | cli:bob"}, 0, map[string]any{"receiver": "fulfillment", "claims": 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tl := f.timeline(t, "{"+name+"}", "")
			want := []string{"inbox | received | fulfillment"}
			for _, line := range test.want {
				want = append(want, "inbox | "+line)
			}
			testrun.Same(t, "the chain of the message", want, chain(tl, "inbox"))
			shows(t, only(t, tl, want[test.line+1]), test.show)
		})
	}
}

func TestReadTimeline_showsAMessageInTheOutboxUntilItIsReceived(t *testing.T) {
	t.Parallel()
	f := emptyFixture(t)
	f.accept("acme", "one", true)
	tl := f.timeline(t, "{one}", "")
	testrun.Same(t, "the message before", []string{"outbox | waiting | charges"}, chain(tl, "outbox", "inbox"))
	shows(t, only(t, tl, "outbox | waiting | charges"), map[string]any{"type": "charge.requested.v1"})
	f.receive()
	testrun.Same(t, "the message after", []string{"inbox | received | fulfillment", "inbox | running | fulfillment"}, chain(f.timeline(t, "{one}", ""), "outbox", "inbox"))
}

func TestReadTimeline_showsAnEventThatItCannotRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(appendEvent("sold", "charge.praised.v1", `{"message": "a secret"}`))
	tl := f.timeline(t, "{sold}", "")
	if c := tl.Charges[0]; c.Status != "" || c.OrderID != "sold" {
		t.Errorf("the charge is %+v", c)
	}
	praised := only(t, tl, "event | charge.praised.v1 | ")
	if praised.Detail["unreadable"] == nil || praised.Detail["message"] != nil {
		t.Errorf("the event is %+v", praised)
	}
	only(t, tl, "event | charge.succeeded.v1 | worker")
}

func TestReadTimeline_saysThatARequestIsVoid(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(appendEvent("sold", "refund.requested.v1", `{"refund_id": "re_forged", "amount": 100000000000000000, "notify": false}`))
	f.exec(appendEvent("sold", "refund.requested.v1", `{"refund_id": "re_forged", "amount": 1, "reason": 5}`))
	tl := f.timeline(t, "{sold}", "")
	if c := tl.Charges[0]; c.Status != domain.Succeeded {
		t.Errorf("the charge is %+v", c)
	}
	void := 0
	for _, e := range tl.Entries {
		if e.Detail["void"] == true {
			void++
			if e.What != "refund.requested.v1" {
				t.Errorf("%+v is void", e)
			}
		}
	}
	if void != 2 {
		t.Errorf("%d events are void, want 2", void)
	}
}

func TestTimeline_AddHeld(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tl := audit.Timeline{AsOf: now, Entries: []audit.TimelineEntry{{At: now.Add(time.Hour), Kind: "event"}, {At: now, Kind: "inbox"}}}
	tl.AddHeld("ch_1", "refund", "stripe", audit.Detail{"id": "re_1"})
	if got := chain(tl); !slices.Equal(got, []string{"inbox |  | ", "provider | refund | stripe", "event |  | "}) {
		t.Errorf("the order is %q", got)
	}
}

// TestReadTimeline_readsTheMessagesOfTheChargeAlone counts the rows that the inbox's statement reads of
// 12,000, for the oldest charge.
func TestReadTimeline_readsTheMessagesOfTheChargeAlone(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	testdb.Exec(t, db.Pool(), `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select md5(n::text)::uuid, 'ch_' || n, 1, 'charge.requested.v1', 1, 'acme', '{}', '{}', now() from generate_series(1, 4000) n`)
	testdb.Exec(t, db.Pool(), `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, done_fence)
select 'fulfillment', m.id, stream_id, m.type, '', '{}', '', 'done', 1, 1
  from ledger_events e, lateral (values (event_id::text, e.type), ('evt_' || position, 'stripe.refund.updated'), ('resend:' || event_id, 'webhook.resend')) m (id, type)`)
	testdb.Exec(t, db.Pool(), `analyze ledger_events, inbox`)
	plan := testdb.All[string](t, db, "explain (analyze, costs off) "+audit.SelectInbox, []string{"ch_1"}, time.Now())
	text := strings.Join(plan, "\n")
	if many := regexp.MustCompile(`(Removed by Filter: |rows=)\d{3,}`).FindString(text); many != "" || !strings.Contains(plan[0], " rows=6") {
		t.Errorf("%s\n%s", many, text)
	}
}
