package domain_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// golden compares lines with a file in testdata, which UPDATE_GOLDEN=1 writes. Each change of
// such a file is a change of behaviour, to be read line by line.
func golden(t *testing.T, file string, lines []string) {
	t.Helper()
	got := strings.Join(lines, "\n") + "\n"
	path := "testdata/" + file
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s: %v (-golden +now):\n%s", path, err, diff)
	}
}

// TestCharge compares what a charge says of itself in each state with testdata/states.txt.
func TestCharge(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, s := range states {
		c := in(s.name)
		says := []string{fmt.Sprintf("%s: version %d, %s", s.name, c.Version, c.Status)}
		for _, step := range c.Steps {
			says = append(says, fmt.Sprintf("%s %s", step.Name, step.Status))
		}
		says = append(says, fmt.Sprintf("next %q, attempt %d, outcome %d, left %d, refunded %d",
			c.Next(), c.AttemptVersion, c.OutcomeVersion, c.Left(), c.Refunded()))
		for _, answer := range []struct {
			text string
			yes  bool
		}{
			{"exists", c.Exists()},
			{"started", c.Started()},
			{"cancel requested", c.CancelRequested},
			{"terminal", c.Terminal()},
			{"complete", c.Terminal() && len(c.PendingRefunds()) == 0},
			{fmt.Sprintf("failure %v", c.Failure), c.Failure != nil},
			{"to act", c.Action != nil},
			{fmt.Sprintf("unnotified %v", c.Unnotified), len(c.Unnotified) > 0},
		} {
			if answer.yes {
				says = append(says, answer.text)
			}
		}
		for _, r := range c.Refunds {
			versions := []int{r.AttemptVersion, r.OutcomeVersion, r.ReversalVersion}
			says = append(says, fmt.Sprintf("%s %s by %q at %v", r.ID, r.Status, r.ProviderRefund, versions))
		}
		for _, d := range c.Disputes {
			says = append(says, fmt.Sprintf("%s %s, %d of %d withdrawn, %d reinstated, at %v", d.ID, d.Status, d.Withdrawn, d.Amount, d.Reinstated, d.Versions))
		}
		lines = append(lines, strings.Join(says, ", "))
	}
	golden(t, "states.txt", lines)
}

// commands are sent to a charge in every state.
func commands() map[string]domain.Command {
	request := domain.RequestCharge{
		MerchantID: "acme", OrderID: "order 1", Amount: 1000, Currency: "EUR", Fee: 30,
		PaymentMethod: "pm_card_visa", Items: charge().Items, Description: "a mug", Metadata: charge().Metadata, Notify: true,
	}
	capture := domain.CapturePayment{Provider: "stripe", PaymentIntent: "pi_1", Amount: eur(1000)}
	refund := domain.RequestRefund{RefundID: "re_9", Reason: "a broken mug", Notify: true}
	refunded := domain.ResolveRefund{RefundID: "re_1", ProviderRefund: "rp_1", Amount: eur(400)}
	failure := domain.ResolveRefund{RefundID: "re_1", ProviderRefund: "rp_1", Failed: true, Message: "no"}
	all := map[string]domain.Command{
		"request":                               request,
		"reserve":                               domain.ReserveInventory{},
		"reject: out of stock":                  domain.RejectInventory{Code: domain.OutOfStock},
		"reject: unknown article":               domain.RejectInventory{Code: domain.UnknownSKU},
		"reject: canceled":                      domain.RejectInventory{Code: domain.Canceled},
		"start":                                 domain.StartPayment{Provider: "stripe", PaymentIntent: "pi_2"},
		"start: no payment intent":              domain.StartPayment{Provider: "stripe"},
		"fail attempt":                          domain.FailAttempt{Stage: domain.StageConfirm, StatusCode: 502, RequestID: "req_1"},
		"capture":                               capture,
		"capture: another amount":               with(capture, func(c *domain.CapturePayment) { c.Amount.Amount++ }),
		"capture: another currency":             with(capture, func(c *domain.CapturePayment) { c.Amount.Currency = "USD" }),
		"capture: another payment intent":       with(capture, func(c *domain.CapturePayment) { c.PaymentIntent = "pi_2" }),
		"capture: no payment intent":            with(capture, func(c *domain.CapturePayment) { c.PaymentIntent = "" }),
		"decline":                               domain.DeclinePayment{Failure: stolen()},
		"decline: canceled":                     domain.DeclinePayment{Failure: dropped()},
		"cancel":                                domain.CancelCharge{},
		"fail canceled":                         domain.FailCanceled{},
		"fail canceled: at the time-out":        domain.FailCanceled{Now: timeout},
		"fail canceled: before the time-out":    domain.FailCanceled{Now: timeout.Add(-1)},
		"fail canceled: at the deadline":        domain.FailCanceled{Now: expiry},
		"decline: expired":                      domain.DeclinePayment{Failure: failed(domain.Expired)},
		"decline: timed out":                    domain.DeclinePayment{Failure: failed(domain.AuthenticationTimeout)},
		"reject: expired":                       domain.RejectInventory{Code: domain.Expired},
		"require action":                        domain.RequireAction(acting()),
		"require action: nowhere":               domain.RequireAction{ExpiresAt: timeout},
		"refund all that is left":               refund,
		"refund of a known id":                  domain.RequestRefund{RefundID: "re_1", Amount: 5, Notify: true},
		"refund without id":                     domain.RequestRefund{Amount: 5},
		"fail refund attempt":                   domain.FailRefundAttempt{RefundID: "re_1", StatusCode: 502, RequestID: "req_1"},
		"succeed refund":                        refunded,
		"succeed refund: all":                   with(refunded, func(c *domain.ResolveRefund) { c.Amount.Amount = 1000 }),
		"succeed refund: less":                  with(refunded, func(c *domain.ResolveRefund) { c.Amount.Amount = 399 }),
		"succeed refund: more":                  with(refunded, func(c *domain.ResolveRefund) { c.Amount.Amount = 401 }),
		"succeed refund: another currency":      with(refunded, func(c *domain.ResolveRefund) { c.Amount.Currency = "USD" }),
		"succeed refund: no object":             with(refunded, func(c *domain.ResolveRefund) { c.ProviderRefund = "" }),
		"succeed refund: another's object":      with(refunded, func(c *domain.ResolveRefund) { c.ProviderRefund = "rp_2" }),
		"succeed refund: a failed one's":        with(refunded, func(c *domain.ResolveRefund) { c.ProviderRefund = "rp_3" }),
		"fail refund":                           failure,
		"fail refund: another's object":         with(failure, func(c *domain.ResolveRefund) { c.ProviderRefund = "rp_2" }),
		"fail refund: a failed one's object":    with(failure, func(c *domain.ResolveRefund) { c.ProviderRefund = "rp_3" }),
		"fail refund: the last, without object": domain.ResolveRefund{RefundID: "re_3", Failed: true},
		"fail refund: no object":                with(failure, func(c *domain.ResolveRefund) { c.ProviderRefund = "" }),
	}
	observed := domain.ObserveRefund{ProviderRefund: "rp_9", Amount: eur(600)}
	all["observe refund"] = observed
	all["observe refund: more"] = with(observed, func(o *domain.ObserveRefund) { o.Amount.Amount = 601 })
	all["observe refund: another currency"] = with(observed, func(o *domain.ObserveRefund) { o.Amount.Currency = "USD" })
	all["observe refund: no object"] = with(observed, func(o *domain.ObserveRefund) { o.ProviderRefund = "" })
	dispute := domain.ObserveDispute{ID: "du_1", Reason: "fraudulent", Amount: eur(1000), Status: domain.DisputeOpen}
	moved := func(o domain.ObserveDispute, m ...domain.DisputeMovement) domain.ObserveDispute {
		o.Moved = append(slices.Clone(o.Moved), m...)
		return o
	}
	taken := moved(dispute, domain.DisputeMovement{Transaction: "txn_1", Amount: -1000, Fee: 15, Currency: "EUR"})
	returned := moved(taken, domain.DisputeMovement{Transaction: "txn_2", Amount: 1000, Fee: -15, Currency: "EUR"})
	all["observe dispute"] = dispute
	all["observe dispute: withdrawn"] = taken
	all["observe dispute: lost"] = with(taken, func(o *domain.ObserveDispute) { o.Status = "lost" })
	all["observe dispute: won"] = with(returned, func(o *domain.ObserveDispute) { o.Status = "won" })
	all["observe dispute: of another amount"] = with(taken, func(o *domain.ObserveDispute) { o.Amount.Amount = 900 })
	all["observe dispute: a fee alone"] = moved(dispute, domain.DisputeMovement{Transaction: "txn_3", Fee: 15, Currency: "EUR"})
	all["observe dispute: settled in dollars"] = moved(dispute, domain.DisputeMovement{Transaction: "txn_1", Amount: -2150, Fee: 15, Currency: "USD"})
	all["observe dispute: another currency"] = with(dispute, func(o *domain.ObserveDispute) { o.Amount.Currency = "USD" })
	for _, amount := range []int64{-1, 1, 500, 501, 600, 601, 1000, 1001} {
		all[fmt.Sprint("refund ", amount)] = with(refund, func(r *domain.RequestRefund) { r.Amount = amount })
	}
	for version := -1; version <= 9; version++ {
		all[fmt.Sprint("notify ", version)] = domain.NotifyMerchant{EventID: "e", Type: "charge.succeeded", Version: version}
	}
	return all
}

// TestDecide compares what each command does to a charge in each state with
// testdata/decisions.txt. The most frequent outcome of a command comes last, for every other
// state. Without a charge, every command is refused but the request.
func TestDecide(t *testing.T) {
	t.Parallel()
	var lines []string
	for name, cmd := range commands() {
		outcomes := map[string][]string{}
		for _, s := range states {
			if s.partial {
				continue
			}
			outcome := decide(t, s.name, cmd)
			if s.name != "absent" || outcome != "ErrNoCharge" {
				outcomes[outcome] = append(outcomes[outcome], s.name)
			}
		}
		most, other := 0, ""
		for outcome, names := range outcomes {
			if len(names) > most || len(names) == most && outcome < other {
				most, other = len(names), outcome
			}
		}
		for outcome, names := range outcomes {
			if outcome != other {
				lines = append(lines, fmt.Sprintf("%s | %s | %s", name, strings.Join(names, ", "), outcome))
			}
		}
		lines = append(lines, fmt.Sprintf("%s | ~ every other state | %s", name, other))
	}
	slices.Sort(lines)
	golden(t, "decisions.txt", lines)
}

// decide returns the events that a command causes, or the name of its refusal.
func decide(t *testing.T, state string, cmd domain.Command) string {
	t.Helper()
	c := in(state)
	events, err := domain.Decide(c, cmd)
	if diff := cmp.Diff(in(state), c); diff != "" {
		t.Errorf("%s: %T changes its argument (-want +got):\n%s", state, cmd, diff)
	}
	for name, refusal := range map[string]error{
		"ErrNoCharge": domain.ErrNoCharge, "ErrFinished": domain.ErrFinished, "ErrOutOfOrder": domain.ErrOutOfOrder,
		"ErrMismatch": domain.ErrMismatch, "ErrInvalid": domain.ErrInvalid, "ErrNotCaptured": domain.ErrNotCaptured,
		"ErrExceedsCaptured": domain.ErrExceedsCaptured, "ErrNoRefund": domain.ErrNoRefund,
	} {
		if errors.Is(err, refusal) && len(events) == 0 {
			return name
		}
	}
	if err != nil {
		t.Errorf("%s: %T causes %v, %v", state, cmd, events, err)
	}
	if _, err := domain.ValidateStream(slices.Concat(history(state), events)); err != nil {
		t.Errorf("%s: %T makes a stream that ValidateStream refuses: %v", state, cmd, err)
	}
	if again, err := domain.Decide(domain.Fold(c, events...), cmd); !isAttempt(cmd) && (len(again) > 0 || err != nil) {
		t.Errorf("%s: %T repeated returns %v and %v, want nothing", state, cmd, again, err)
	}
	texts := make([]string, len(events))
	for i, e := range events {
		data, err := domain.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = domain.TypeOf(e) + " " + string(data)
	}
	if len(events) == 0 {
		return "nothing"
	}
	return strings.Join(texts, ", ")
}

// TestFailAttempt_isBounded: after MaxKeys keys nothing is recorded, so the last key stays.
func TestFailAttempt_isBounded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		state string
		cmd   domain.Command
	}{
		{"reserved", domain.FailAttempt{Stage: domain.StageCreate, StatusCode: 500}},
		{"started", domain.FailAttempt{Stage: domain.StageConfirm, StatusCode: 500}},
		{"refund pending", domain.FailRefundAttempt{RefundID: "re_1", StatusCode: 500}},
	} {
		c := in(test.state)
		recorded := 0
		for range domain.MaxKeys + 3 {
			events, err := domain.Decide(c, test.cmd)
			if err != nil {
				t.Fatal(err)
			}
			recorded += len(events)
			c = domain.Fold(c, events...)
		}
		if recorded != domain.MaxKeys-1 {
			t.Errorf("%#v opened %d keys after the first, want %d in all", test.cmd, recorded, domain.MaxKeys)
		}
	}
}

// isAttempt tells the commands that are another attempt each time.
func isAttempt(cmd domain.Command) bool {
	_, payment := cmd.(domain.FailAttempt)
	_, refund := cmd.(domain.FailRefundAttempt)
	return payment || refund
}

func TestRequestCharge_bounds(t *testing.T) {
	t.Parallel()
	mug := domain.Item{SKU: "mug", Quantity: 1}
	for _, test := range []struct {
		amount int64
		items  []domain.Item
		valid  bool
	}{
		{-1, nil, false},
		{0, nil, false},
		{1, nil, true},
		{domain.MaxAmount, nil, true},
		{domain.MaxAmount + 1, nil, false},
		{5, []domain.Item{mug}, true},
		{5, []domain.Item{{SKU: "mug"}}, false},
		{5, []domain.Item{{SKU: "mug", Quantity: -1}}, false},
		{5, []domain.Item{mug, mug}, false},
	} {
		events, err := domain.Decide(domain.Charge{}, domain.RequestCharge{MerchantID: "acme", Amount: test.amount, Items: test.items})
		if (err == nil) != test.valid || err != nil && !errors.Is(err, domain.ErrInvalid) || (len(events) == 1) != test.valid {
			t.Errorf("%d, %v: events %v, error %v", test.amount, test.items, events, err)
		}
	}
}

func TestRequestRefund_atMostAHundred(t *testing.T) {
	t.Parallel()
	c := in("succeeded")
	for i := range domain.MaxRefunds {
		id := fmt.Sprint("re_", i)
		events, err := domain.Decide(c, domain.RequestRefund{RefundID: id, Amount: 1})
		if err != nil {
			t.Fatalf("refund %d: %v", i+1, err)
		}
		c = domain.Fold(c, events...)
		if i%2 == 0 { // one that failed counts too
			c = domain.Fold(c, domain.RefundFailed{RefundID: id, Code: domain.ProviderRefused})
		}
	}
	if events, err := domain.Decide(c, domain.RequestRefund{RefundID: "re_more", Amount: 1}); !errors.Is(err, domain.ErrTooManyRefunds) {
		t.Errorf("one more: %v, %v", events, err)
	}
	if events, err := domain.Decide(c, domain.RequestRefund{RefundID: "re_1", Amount: 1}); err != nil || len(events) != 0 {
		t.Errorf("one of them repeated: %v, %v", events, err)
	}
}
