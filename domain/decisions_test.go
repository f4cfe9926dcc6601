package domain_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

// TestCharge compares what a charge says of itself in each state with testdata/states.txt.
func TestCharge(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, s := range histories().states {
		c := in(s.name)
		says := []string{fmt.Sprintf("%s: version %d, %s", s.name, c.Version, c.Status)}
		for _, step := range c.Steps {
			says = append(says, fmt.Sprintf("%s %s", step.Name, step.Status))
		}
		says = append(says, fmt.Sprintf("next %q, attempt %d, outcome %d, left %d, refunded %d",
			c.Next(), c.AttemptVersion, c.OutcomeVersion, c.Refundable(), c.AmountRefunded()))
		for _, answer := range []struct {
			text string
			yes  bool
		}{
			{"exists", c.Version > 0},
			{"started", c.PaymentStarted()},
			{"cancel requested", c.CancelRequested},
			{"has its outcome", c.HasOutcome()},
			{fmt.Sprintf("failure %v", c.Failure), c.Failure != nil},
			{"to act", c.Action != nil},
			{fmt.Sprintf("unnotified %v", c.Unnotified), len(c.Unnotified) > 0},
		} {
			if answer.yes {
				says = append(says, answer.text)
			}
		}
		for _, r := range c.Refunds {
			says = append(says, fmt.Sprintf("%s %s by %q at %d", r.ID, r.Status, r.ProviderRefund, r.AttemptVersion))
		}
		for _, d := range c.Disputes {
			says = append(says, fmt.Sprintf("%s %s, %d of %d withdrawn, %d reinstated", d.ID, d.Status, d.Withdrawn, d.Amount, d.Reinstated))
		}
		lines = append(lines, strings.Join(says, ", "))
	}
	testrun.Golden(t, "states.txt", append(lines, "")...)
}

func with(o domain.ObservedDispute, change func(*domain.ObservedDispute)) domain.ObservedDispute {
	change(&o)
	return o
}

// decision is a decision about a charge: the events that it causes, or its refusal.
type decision func(domain.Charge) ([]domain.Event, error)

// decisions are asked of a charge in every state.
func decisions() map[string]decision {
	all := map[string]decision{"cancel": domain.Charge.RequestCancel}
	sure := func(name string, decide func(domain.Charge) []domain.Event) {
		all[name] = func(c domain.Charge) ([]domain.Event, error) { return decide(c), nil }
	}
	capture := func(intent string, taken domain.Money) func(domain.Charge) []domain.Event {
		return func(c domain.Charge) []domain.Event { return c.Capture(intent, taken) }
	}
	sure("capture", capture("pi_1", eur(1000)))
	sure("capture: another amount", capture("pi_1", eur(1001)))
	sure("capture: another currency", capture("pi_1", domain.Money{Amount: 1000, Currency: "USD"}))
	sure("capture: another payment intent", capture("pi_2", eur(1000)))
	sure("capture: no payment intent", capture("", eur(1000)))
	for _, code := range []domain.FailureCode{domain.OutOfStock, domain.UnknownSKU, domain.Canceled, domain.Expired} {
		sure("reject as "+string(code), func(c domain.Charge) []domain.Event { return c.RejectInventory(code) })
	}
	for name, as := range map[string]string{"declined": "", "canceled": "$canceled", "expired": "$expired", "timed out": "$late"} {
		failed, _ := event(strings.TrimSpace("charge.failed.v1 " + as)).(domain.ChargeFailed)
		sure("fail as "+name, func(c domain.Charge) []domain.Event { return c.Fail(failed.Failure) })
	}
	acting, limited := in("acting"), in("limited")
	timeout, expiry := acting.Action.ExpiresAt, limited.ExpiresAt
	for name, now := range map[string]time.Time{
		"at any time": {}, "before the time-out": timeout.Add(-1), "at the time-out": timeout, "at the deadline": expiry,
	} {
		sure("fail if it is due "+name, func(c domain.Charge) []domain.Event {
			if why := c.Cancellation(now); why != nil {
				return c.Fail(*why)
			}
			return nil
		})
	}
	refund := func(name, id string, amount int64) {
		all[name] = func(c domain.Charge) ([]domain.Event, error) { return c.RequestRefund(back(id, amount)) }
	}
	refund("refund of a known id", "re_1", 5)
	refund("refund without id", "", 5)
	for _, amount := range []int64{-1, 0, 1, 500, 501, 600, 601, 1000, 1001} {
		refund(fmt.Sprint("refund ", amount), "re_9", amount)
	}
	resolve := func(name, id, object string, failed bool) {
		sure(name, func(c domain.Charge) []domain.Event {
			r, _ := c.Refund(id)
			return r.Resolve(object, failed, "no")
		})
	}
	resolve("refund succeeded", "re_1", "rp_1", false)
	resolve("refund succeeded: no object", "re_1", "", false)
	resolve("refund succeeded: another's object", "re_1", "rp_2", false)
	resolve("refund succeeded: a failed one's object", "re_1", "rp_3", false)
	resolve("refund failed", "re_1", "rp_1", true)
	resolve("refund failed: another's object", "re_1", "rp_2", true)
	resolve("refund failed: a failed one's object", "re_1", "rp_3", true)
	resolve("refund failed: no object", "re_1", "", true)
	resolve("refund failed: the last, without object", "re_3", "", true)
	for name, given := range map[string]domain.Money{"": eur(600), ": more": eur(601), ": another currency": {Amount: 600, Currency: "USD"}} {
		all["observe refund"+name] = func(c domain.Charge) ([]domain.Event, error) { return c.ObserveRefund("", "rp_9", given) }
	}
	all["observe refund: a lost one of ours"] = func(c domain.Charge) ([]domain.Event, error) { return c.ObserveRefund("re_9", "rp_9", eur(600)) }
	for name, o := range disputes() {
		all["observe dispute"+name] = func(c domain.Charge) ([]domain.Event, error) { return c.ObserveDispute(o) }
	}
	return all
}

func disputes() map[string]domain.ObservedDispute {
	dispute := domain.ObservedDispute{ID: "du_1", Reason: "fraudulent", Amount: eur(1000), Status: domain.DisputeOpen}
	moved := func(o domain.ObservedDispute, m ...domain.DisputeMovement) domain.ObservedDispute {
		o.Moved = append(slices.Clone(o.Moved), m...)
		return o
	}
	taken := moved(dispute, domain.DisputeMovement{Transaction: "txn_1", Amount: -1000, Fee: 15, Currency: "EUR"})
	returned := moved(taken, domain.DisputeMovement{Transaction: "txn_2", Amount: 1000, Fee: -15, Currency: "EUR"})
	return map[string]domain.ObservedDispute{
		"":                    dispute,
		": withdrawn":         taken,
		": lost":              with(taken, func(o *domain.ObservedDispute) { o.Status = "lost" }),
		": won":               with(returned, func(o *domain.ObservedDispute) { o.Status = "won" }),
		": of another amount": with(taken, func(o *domain.ObservedDispute) { o.Amount.Amount = 900 }),
		": a fee alone":       moved(dispute, domain.DisputeMovement{Transaction: "txn_3", Fee: 15, Currency: "EUR"}),
		": settled abroad":    moved(dispute, domain.DisputeMovement{Transaction: "txn_1", Amount: -2150, Fee: 15, Currency: "USD"}),
		": another currency":  with(dispute, func(o *domain.ObservedDispute) { o.Amount.Currency = "USD" }),
	}
}

// TestDecisions compares what each decision does to a charge in each state with
// testdata/decisions.txt. The most frequent outcome of a decision comes last, for every other
// state.
func TestDecisions(t *testing.T) {
	t.Parallel()
	var lines []string
	for name, decide := range decisions() {
		outcomes := map[string][]string{}
		for _, s := range histories().states {
			if s.partial || s.name == "absent" {
				continue
			}
			outcome := outcomeOf(t, s.name, name, decide)
			outcomes[outcome] = append(outcomes[outcome], s.name)
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
	testrun.Golden(t, "decisions.txt", append(lines, "")...)
}

// outcomeOf returns the events that a decision causes, or the name of its refusal. The same decision
// again causes none.
func outcomeOf(t *testing.T, state, name string, decide decision) string {
	t.Helper()
	c := in(state)
	events, err := decide(c)
	next, illegal := c.Append(events...)
	testrun.Same(t, fmt.Sprintf("%s: %s changes its argument", state, name), in(state), c)
	for name, refusal := range map[string]error{
		"ErrFinished": domain.ErrFinished, "ErrMismatch": domain.ErrMismatch, "ErrInvalid": domain.ErrInvalid,
		"ErrNotCaptured": domain.ErrNotCaptured, "ErrExceedsCaptured": domain.ErrExceedsCaptured, "ErrIllegal": domain.ErrIllegal,
	} {
		if errors.Is(err, refusal) && len(events) == 0 || errors.Is(illegal, refusal) {
			return name
		}
	}
	if err != nil {
		t.Errorf("%s: %s causes %v, %v", state, name, events, err)
	}
	if again, err := decide(next); len(again) > 0 || err != nil {
		t.Errorf("%s: %s repeated returns %v and %v, want nothing", state, name, again, err)
	}
	texts := make([]string, len(events))
	for i, e := range events {
		data, err := json.Marshal(e)
		testrun.Must(t, err)
		texts[i] = domain.TypeOf(e) + " " + string(data)
	}
	if len(events) == 0 {
		return "nothing"
	}
	return strings.Join(texts, ", ")
}

// TestAppend_boundsFailedAttempts: after MaxKeys keys no attempt fails, so the last key stays.
func TestAppend_boundsFailedAttempts(t *testing.T) {
	t.Parallel()
	for state, e := range map[string]domain.Event{
		"reserved":       domain.PaymentAttemptFailed{Stage: domain.StageCreate, StatusCode: 500},
		"started":        domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500},
		"refund pending": domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500},
	} {
		c, keys := in(state), 1
		for ; keys < 2*domain.MaxKeys; keys++ {
			next, err := c.Append(e)
			if err != nil {
				break
			}
			c = next
		}
		if keys != domain.MaxKeys {
			t.Errorf("%#v opens %d keys, want %d", e, keys, domain.MaxKeys)
		}
	}
}

func TestRequestRefund_atMostAHundred(t *testing.T) {
	t.Parallel()
	c := in("succeeded")
	for i := range domain.MaxRefunds {
		id := fmt.Sprint("re_", i)
		events, err := c.RequestRefund(domain.RefundRequested{RefundID: id, Amount: 1})
		if err != nil {
			t.Fatalf("refund %d: %v", i+1, err)
		}
		c = domain.Fold(c, events...)
		if i%2 == 0 { // one that failed counts too
			c = domain.Fold(c, domain.RefundFailed{RefundID: id, Code: domain.ProviderRefused})
		}
	}
	if events, err := c.RequestRefund(domain.RefundRequested{RefundID: "re_more", Amount: 1}); !errors.Is(err, domain.ErrTooManyRefunds) {
		t.Errorf("one more: %v, %v", events, err)
	}
	if events, err := c.RequestRefund(domain.RefundRequested{RefundID: "re_1", Amount: 1}); err != nil || len(events) != 0 {
		t.Errorf("one of them repeated: %v, %v", events, err)
	}
}

// state is a charge by what has happened to it. Its events follow those of another state.
type state struct {
	name, after string
	events      []domain.Event
	partial     bool
}

// book is what testdata/histories.txt says.
type book struct {
	words      map[string]string
	states     []state
	candidates map[string]domain.Event
}

var histories = sync.OnceValue(func() book {
	b := book{words: map[string]string{}, states: []state{{name: "absent"}}, candidates: stored()}
	for line := range strings.Lines(string(read("histories.txt"))) {
		line = strings.TrimSpace(line)
		word, meaning, defined := strings.Cut(line, " = ")
		switch parts := strings.Split(line, " | "); {
		case line == "" || line[0] == '#':
		case defined:
			b.words[word] = meaning
		case len(parts) == 2:
			b.candidates[parts[0]] = b.event(parts[1])
		default:
			s := state{after: parts[1]}
			s.name, s.partial = strings.CutSuffix(parts[0], " …")
			for e := range strings.SplitSeq(parts[2], " + ") {
				s.events = append(s.events, b.event(e))
			}
			b.states = append(b.states, s)
		}
	}
	return b
})

func (b book) event(text string) domain.Event {
	kind, members := b.members(text)
	data, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	e, err := domain.Decode(kind, data)
	if err != nil {
		panic(err)
	}
	return e
}

// members are those of a stored event, or of a defined one, with changes.
func (b book) members(text string) (kind string, members map[string]any) {
	kind, changes, changed := strings.Cut(text, " ")
	if of, defined := b.words[kind]; defined {
		kind, members = b.members(of)
	} else if err := json.Unmarshal(read("events/"+kind+".json"), &members); err != nil {
		panic(err)
	}
	if meaning, defined := b.words[changes]; defined {
		changes = meaning
	}
	if changed {
		if err := json.Unmarshal([]byte(changes), &members); err != nil {
			panic(text + ": " + err.Error())
		}
	}
	return kind, members
}

func read(file string) []byte {
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		panic(err)
	}
	return data
}

// stored is one event of each kind, by the name of its golden file, which holds it as it is stored. An event
// that needs another form gets another name.
func stored() map[string]domain.Event {
	all := map[string]domain.Event{}
	for _, kind := range domain.EventTypes() {
		all[kind.Name] = book{}.event(kind.Name)
	}
	return all
}

// event is what testdata/histories.txt would call so.
func event(text string) domain.Event { return histories().event(text) }

// history returns the stream of a charge in a state.
func history(name string) []domain.Event {
	if name == "" {
		return nil
	}
	states := histories().states
	s := states[slices.IndexFunc(states, func(s state) bool { return s.name == name })]
	return slices.Concat(history(s.after), s.events)
}

// in returns a charge in a state.
func in(name string) domain.Charge { return domain.Fold(domain.Charge{ID: "ch_1"}, history(name)...) }

// back is a request to refund, and gone its success.
func back(id string, amount int64) domain.RefundRequested {
	return domain.RefundRequested{RefundID: id, Amount: amount, Reason: "a broken mug", Notify: true}
}

func gone(id, object string, amount int64) domain.RefundSucceeded {
	return domain.RefundSucceeded{RefundID: id, Provider: "stripe", ProviderRefund: object, Amount: amount}
}

func eur(amount int64) domain.Money { return domain.Money{Amount: amount, Currency: "EUR"} }
