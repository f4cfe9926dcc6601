package fulfillment_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

// script is a provider and a shop that expect calls in an order, and answer each. In text a call is
//
//	confirm/3:succeeded@amount^cancel
//
// the operation and its Idempotency-Key, which is a version of the stream at a confirmation and a count of failures
// at a creation or a refund; the answer, a state with changes or one of the errors; and what another
// writer does while the call is in flight, or a constraint that refuses the next commit.
type script struct {
	t      *testing.T
	stream func() ledger.Stream
	rival  func(name string)
	calls  []string

	webhooks []webhook.Message
}

func (s *script) expect(calls string) { s.calls = strings.Fields(calls) }

func (s *script) checkAllCalled() {
	s.t.Helper()
	if len(s.calls) > 0 {
		s.t.Errorf("the provider was not called to %q", s.calls)
	}
}

// next checks a call, and returns the answer to it.
func (s *script) next(call string) (state string, changes []string, err error) {
	s.t.Helper()
	if len(s.calls) == 0 {
		s.t.Errorf("the provider was called to %s, which is not in the script", call)
		return "", nil, errors.New("no such call")
	}
	expected, answer, _ := strings.Cut(s.calls[0], ":")
	s.calls = s.calls[1:]
	if call != expected {
		s.t.Errorf("the provider was called to %s, want %s", call, expected)
	}
	answer, rival, _ := strings.Cut(answer, "^")
	if rival != "" {
		s.rival(rival)
	}
	parts := strings.Split(answer, "@")
	return parts[0], parts[1:], failures[parts[0]]
}

var noMoney = stripe.Decline{Code: "card_declined", DeclineCode: "insufficient_funds", Message: "no money"}

var declinedIntent = stripe.Intent{ID: "pi_1", Status: stripe.RequiresPaymentMethod, Attempted: true, Decline: &noMoney}

// failures are the answers that are errors.
var failures = map[string]error{
	"cut":              &stripe.Error{Kind: stripe.Unavailable},
	"late":             &stripe.Error{Kind: stripe.Unavailable, StatusCode: 429, RetryAfter: 500 * time.Second},
	"wrong_key":        &stripe.Error{Kind: stripe.Blocked},
	"500":              &stripe.Error{Kind: stripe.Failed, StatusCode: 500, RequestID: "req_provider"},
	"other_parameters": &stripe.Error{Kind: stripe.Failed, StatusCode: stripe.OtherParameters},
	"rejected":         &stripe.Error{Kind: stripe.Rejected, StatusCode: 400, Why: stripe.Decline{Message: "for people"}},
	"declined":         &stripe.Error{Kind: stripe.Declined, Why: noMoney},
	"declined_intent":  &stripe.Error{Kind: stripe.Declined, Why: noMoney, Intent: declinedIntent},
	"refused":          &webhook.DeliveryError{StatusCode: http.StatusInternalServerError},
	"busy":             &webhook.DeliveryError{StatusCode: http.StatusServiceUnavailable, RetryAfter: 24 * time.Hour},
	"forbidden":        &webhook.TargetError{},
}

var intentChanges = map[string]func(*stripe.Intent){
	"amount":    func(i *stripe.Intent) { i.Amount, i.AmountReceived = 2000, 2000 },
	"less":      func(i *stripe.Intent) { i.AmountReceived = 1998 },
	"currency":  func(i *stripe.Intent) { i.Currency = "USD" },
	"reference": func(i *stripe.Intent) { i.Reference = "ref_ch_2" },
	"attempted": func(i *stripe.Intent) { i.Attempted = true },
	"declined":  func(i *stripe.Intent) { i.Attempted, i.Decline = true, &noMoney },
	"authentication": func(i *stripe.Intent) {
		i.Attempted, i.Decline = true, &stripe.Decline{Code: "authentication_required", DeclineCode: "authentication_required"}
	},
	"test_key": func(i *stripe.Intent) {
		i.Attempted, i.Decline = true, &stripe.Decline{Code: "card_declined", DeclineCode: "test_mode_live_card"}
	},
	"page": func(i *stripe.Intent) { i.RedirectURL = "https://bank.example/3ds" },
}

var refundChanges = map[string]func(*stripe.Refund){
	"amount":    func(r *stripe.Refund) { r.Amount = 601 },
	"currency":  func(r *stripe.Refund) { r.Currency = "USD" },
	"payment":   func(r *stripe.Refund) { r.PaymentIntent = "pi_2" },
	"reference": func(r *stripe.Refund) { r.Reference = "re_2" },
	"second":    func(r *stripe.Refund) { r.ID, r.Reference, r.Amount = "rp_2", "re_2", 100 },
	"again":     func(r *stripe.Refund) { r.ID = "rp_0" },
	"outside":   func(r *stripe.Refund) { r.ID, r.Reference = "rp_9", "" },
	"all":       func(r *stripe.Refund) { r.Amount = 1999 },
	"more":      func(r *stripe.Refund) { r.Amount = 2000 },
	"expired":   func(r *stripe.Refund) { r.FailureReason = "expired_card" },
}

func changed[T any](t *testing.T, object T, named map[string]func(*T), changes []string) T {
	t.Helper()
	for _, name := range changes {
		if named[name] == nil {
			t.Fatalf("there is no change %q", name)
		}
		named[name](&object)
	}
	return object
}

func (s *script) intent(call, id string) (stripe.Intent, error) {
	if id != "pi_1" {
		call += "(" + id + ")"
	}
	amount := s.stream().Charge.Amount // a rival may lose the stream
	state, changes, err := s.next(call)
	if err != nil {
		return stripe.Intent{}, err
	}
	i := stripe.Intent{ID: id, Status: stripe.Status(state), Amount: amount, Currency: "EUR", Reference: "ref_ch_1"}
	if i.Status == stripe.Succeeded {
		i.AmountReceived, i.Attempted = i.Amount, true
	}
	return changed(s.t, i, intentChanges, changes), nil
}

// CreateIntent checks everything that is sent.
func (s *script) CreateIntent(_ context.Context, key string, p stripe.CreateParams) (stripe.Intent, error) {
	c := s.stream().Charge
	testrun.Same(s.t, "what is sent", stripe.CreateParams{
		Reference: "ref_ch_1", ChargeID: "ch_1", Amount: c.Amount, Currency: "EUR", PaymentMethod: "pm_card_visa",
		Customer: c.Customer, Redirects: c.ReturnURL != "",
	}, p)
	return s.intent("create/"+strings.TrimPrefix(key, "ref_ch_1-"), "pi_1")
}

// RetrieveIntent answers with the intent.
func (s *script) RetrieveIntent(_ context.Context, id string) (stripe.Intent, error) {
	return s.intent("retrieve", id)
}

// ConfirmIntent checks that the key is the id of an event.
func (s *script) ConfirmIntent(_ context.Context, key, id, returnURL string) (stripe.Intent, error) {
	testrun.Same(s.t, "what is sent", s.stream().Charge.ReturnURL, returnURL)
	version := 1 + slices.IndexFunc(s.stream().Events, func(e ledger.StoredEvent) bool { return e.ID.String() == key })
	return s.intent("confirm/"+strconv.Itoa(version), id)
}

// CancelIntent checks that the charge has not failed before.
func (s *script) CancelIntent(_ context.Context, id string) (stripe.Intent, error) {
	if s.stream().Charge.HasOutcome() {
		s.t.Error("the charge has its outcome before its intent is canceled")
	}
	return s.intent("cancel", id)
}

// CreateRefund checks everything that is sent.
func (s *script) CreateRefund(_ context.Context, key string, p stripe.RefundParams) (stripe.Refund, error) {
	call := "refund/" + strings.TrimPrefix(key, "re_1-")
	testrun.Same(s.t, "what is sent", stripe.RefundParams{Reference: "re_1", PaymentIntent: "pi_1", Amount: 600, Currency: "EUR"}, p)
	state, changes, err := s.next(call)
	if err != nil {
		return stripe.Refund{}, err
	}
	return s.refund(state, changes), nil
}

func (s *script) refund(state string, changes []string) stripe.Refund {
	r := stripe.Refund{ID: "rp_1", PaymentIntent: "pi_1", Reference: "re_1", Status: state, Amount: 600, Currency: "EUR"}
	return changed(s.t, r, refundChanges, changes)
}

// listed hands on the objects of a list, which commas separate in the script.
func listed[T any](s *script, call, intent string, object func(state string, changes []string) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		testrun.Same(s.t, "what is sent", "pi_1", intent)
		state, changes, err := s.next(call)
		if err != nil {
			yield(*new(T), err)
			return
		}
		for text := range strings.SplitSeq(strings.Join(append([]string{state}, changes...), "@"), ",") {
			if parts := strings.Split(text, "@"); text != "" && !yield(object(parts[0], parts[1:]), nil) {
				return
			}
		}
	}
}

// Refunds lists those of the script.
func (s *script) Refunds(_ context.Context, intent string) iter.Seq2[stripe.Refund, error] {
	return listed(s, "refunds", intent, s.refund)
}

// Disputes lists du_1. Its changes are its movements, each with a fee of 15, and the currency of the account.
func (s *script) Disputes(_ context.Context, intent string) iter.Seq2[stripe.Dispute, error] {
	return listed(s, "disputes", intent, func(state string, changes []string) stripe.Dispute {
		d := stripe.Dispute{ID: "du_1", PaymentIntent: "pi_1", Reason: "fraudulent", Amount: 1999, Currency: "EUR", Closed: strings.TrimSuffix(state, "open")}
		currency, fee := "EUR", int64(15)
		for _, change := range changes {
			amount, err := strconv.ParseInt(change, 10, 64)
			switch {
			case change == "other_currency":
				d.Currency = "USD"
			case err != nil:
				currency, fee = change, 0
			default:
				if amount > 0 {
					fee = -fee
				}
				d.Moved = append(d.Moved, stripe.Movement{ID: fmt.Sprint("txn_", len(d.Moved)), Amount: amount, Fee: fee, Currency: currency})
			}
		}
		return d
	})
}

// Deliver is the merchant's endpoint. Every webhook of a script is the first one again.
func (s *script) Deliver(_ context.Context, m webhook.Message) error {
	_, _, err := s.next("webhook")
	s.webhooks = append(s.webhooks, m)
	testrun.Same(s.t, "the webhook", s.webhooks[0], m)
	return err
}

// order is the first event of a charge over two tshirts and a mug.
func order() domain.ChargeRequested {
	return domain.ChargeRequested{Terms: domain.Terms{
		MerchantID: "acme", OrderID: "order 1", Money: domain.Money{Amount: 1999, Currency: "EUR"}, Fee: 90, PaymentMethod: "pm_card_visa", Reference: "ref_ch_1",
		Items:    []domain.Item{{SKU: "tshirt", Quantity: 2}, {SKU: "mug", Quantity: 1}},
		Metadata: map[string]string{"basket": "7"}, Notify: true,
	}}
}

// bare is an order without items.
func bare() domain.ChargeRequested {
	first := order()
	first.Items = nil
	return first
}

// interactive is an order of a known customer, who can be sent to a page.
func interactive() domain.ChargeRequested {
	first := order()
	first.ReturnURL, first.Customer = "https://shop.example/back", "cus_ada"
	return first
}

// until is an order that expires.
func until(at time.Time) domain.ChargeRequested {
	first := order()
	first.ExpiresAt = at
	return first
}

// nine is the time of every delivery, unless its script moves the clock.
var nine = time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)

// histories are how the charges of the tables begin.
var histories = func() map[string][]domain.Event {
	reserved, begun := domain.InventoryReserved{Items: order().Items}, domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"}
	h := map[string][]domain.Event{
		"accepted": {order()}, "bare": {bare()}, "interactive": {interactive()}, "expired": {until(nine)},
		"reserved": {order(), reserved}, "started": {order(), reserved, begun},
		"interactive started": {interactive(), reserved, begun}, "expired started": {until(nine), reserved, begun},
		"unexpired started": {until(nine.Add(time.Hour)), reserved, begun},
		"captured":          {bare(), begun, captured(), domain.ChargeSucceeded{}},
	}
	then := func(name, before string, more ...domain.Event) { h[name] = slices.Concat(h[before], more) }
	for name, items := range map[string][]domain.Item{
		"over tshirt 1, mug 6": {{SKU: "tshirt", Quantity: 1}, {SKU: "mug", Quantity: 6}},
		"over mug 1, socks 1":  {{SKU: "mug", Quantity: 1}, {SKU: "socks", Quantity: 1}},
		"over mug 5":           {{SKU: "mug", Quantity: 5}},
	} {
		first := order()
		first.Items = items
		h[name] = []domain.Event{first}
	}
	silent := bare()
	silent.Notify = false
	h["silent"] = []domain.Event{silent, begun, captured(), domain.ChargeSucceeded{}}
	h["void"], h["void and unreadable"] = []domain.Event{domain.ChargeCancelRequested{}}, []domain.Event{domain.Unreadable{Name: "charge.requested.v1"}}
	then("rejected without outcome", "accepted", domain.InventoryRejected{Code: domain.OutOfStock})
	then("canceling accepted", "accepted", domain.ChargeCancelRequested{})
	then("canceling reserved", "reserved", domain.ChargeCancelRequested{})
	then("canceling", "started", domain.ChargeCancelRequested{})
	then("acting", "interactive started", domain.PaymentActionRequired{URL: "https://bank.example/3ds", ExpiresAt: nine.Add(time.Hour)})
	then("timed out", "interactive started", domain.PaymentActionRequired{URL: "https://bank.example/3ds", ExpiresAt: nine})
	then("refunding", "captured", requested())
	then("refunded", "refunding", refundedBy())
	tried := func(e domain.Event) []domain.Event { return slices.Repeat([]domain.Event{e}, domain.MaxKeys-1) }
	then("last creation", "reserved", tried(domain.PaymentAttemptFailed{Stage: domain.StageCreate, StatusCode: 500})...)
	then("last confirmation", "started", tried(domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500})...)
	then("last refund", "refunding", tried(domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500})...)
	then("refused", "refunding", domain.RefundFailed{RefundID: "re_1", Code: domain.ProviderRefused, Message: "refused"})
	then("reversed", "refunded", domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600})
	why := domain.Failure{Code: domain.CardDeclined, Message: "no money", DeclineCode: "insufficient_funds"}
	then("declined", "bare", domain.PaymentDeclined{Failure: why}, domain.ChargeFailed{Failure: why})
	then("notified", "captured", rivals["notified"]...)
	return h
}()

func captured() domain.PaymentCaptured {
	return domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_1", Amount: 1999, Currency: "EUR", Fee: 90}
}

func requested() domain.RefundRequested {
	return domain.RefundRequested{RefundID: "re_1", Amount: 600, Notify: true}
}

// refundedBy is the success of re_1.
func refundedBy() domain.RefundSucceeded {
	return domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600}
}

// rivals are what another writer appends while a call is in flight.
var rivals = map[string][]domain.Event{
	"attempt":      {domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500}},
	"start":        {domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"}},
	"start_pi_2":   {domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_2"}},
	"refund_tried": {domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500}},
	"refund_ended": {refundedBy()},
	"another":      {domain.RefundRequested{RefundID: "re_2", Amount: 100}},
	"nothing":      {domain.Unreadable{Name: "refund.requested.v1"}},
	"won":          {domain.DisputeClosed{DisputeID: "du_1", Status: "won"}},
	"again":        {requested()},
	"refunded":     {requested(), refundedBy()},
	"notified":     {domain.MerchantNotified{EventID: "e", Type: "charge.succeeded", Version: 4}},
	// forged ones
	"huge":   {domain.RefundRequested{RefundID: "re_9", Amount: 1e17, Notify: true}},
	"cancel": {domain.ChargeCancelRequested{}},
	"opens":  {domain.ChargeRequested{Terms: domain.Terms{MerchantID: "acme", Money: domain.Money{Amount: 1, Currency: "EUR"}}}},
}

// scripted is a memory whose provider is a script.
type scripted struct {
	*memory

	script *script
}

func newScripted(t *testing.T, after string) *scripted {
	t.Helper()
	if histories[after] == nil {
		t.Fatalf("there is no history %q, but %q", after, slices.Sorted(maps.Keys(histories)))
	}
	p := &script{t: t}
	m := newMemory(t, fulfillment.Services{Provider: p, Webhooks: p, ActionTimeout: time.Hour}, histories[after]...)
	m.endpoint = merchants.Endpoint{URL: "https://shop.example/hooks", Secrets: []string{"whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u"}}
	p.stream = func() ledger.Stream { return m.stream }
	p.rival = func(name string) {
		switch name {
		case "takeover":
			m.lost = true
		case "failover": // to a standby that has the first event alone
			m.stream = m.stream.Until(1)
		case "lost_history":
			m.stream = ledger.New("ch_1")
		case "others_first": // at every commit of the delivery
			m.losing = true
		case "in_doubt":
			m.doubtful = true
		case "stop": // of the worker
			m.stop(errors.New("no time left"))
		case "no_endpoint":
			m.endpoint = merchants.Endpoint{}
		default:
			if rivals[name] == nil {
				m.refusing = name
				return
			}
			m.append(rivals[name]...)
		}
	}
	return &scripted{m, p}
}

// play delivers a message a number of times, and returns what each delivery records. Before its calls a delivery
// may have a time that passes, such as +1h, or what another writer does, such as ^another.
func (m *scripted) play(messageType, calls string, deliveries int) string {
	m.t.Helper()
	var all []string
	scripts := append(strings.Split(calls, "|"), make([]string, deliveries)...)
	for _, calls := range scripts[:deliveries] {
		switch word, rest, _ := strings.Cut(strings.TrimSpace(calls), " "); {
		case strings.HasPrefix(word, "+"):
			pause, err := time.ParseDuration(word[1:])
			testrun.Must(m.t, err)
			m.now, calls = m.now.Add(pause), rest
		case strings.HasPrefix(word, "^"):
			m.script.rival(word[1:])
			calls = rest
		}
		m.script.expect(calls)
		from, sent := len(m.stream.Events), len(m.sent)
		err := m.deliver(messageType)
		m.losing = false
		m.script.checkAllCalled()
		all = append(all, m.said(from, sent, err))
	}
	return strings.Join(all, " | ")
}
