package fulfillment_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// endOf is what the result of a handler means to the inbox.
func endOf(err error) string {
	wait, waits := errors.AsType[*inbox.WaitError](err)
	_, dead := errors.AsType[*inbox.DeadLetterError](err)
	switch {
	case err == nil:
		return "done"
	case inbox.IsLost(err):
		return "lost"
	case dead:
		return "dead"
	case waits && wait.NeedsOperator:
		return "blocked"
	case waits:
		return "waits"
	default:
		return err.Error()
	}
}

func (f *fixture) expectEnd(err error, want string) {
	f.t.Helper()
	if endOf(err) != want {
		f.t.Errorf("the handler returned %v, want %s", err, want)
	}
}

// snapshot is everything that a charge leaves behind.
type snapshot struct {
	Events    string // without versions of the schema
	Failure   domain.FailureCode
	Stock     string // available, reserved and sold
	Holds     string // the states of the charge's reservations
	Announced string // the events that a merchant is notified of, without versions
	Message   string // the statuses of the charge's other messages
}

func (f *fixture) snapshot() snapshot {
	f.t.Helper()
	seen := snapshot{
		Events:    f.text(`select string_agg(split_part(type, '.v', 1), ' ' order by version) from ledger_events where stream_id = 'ch_1'`),
		Stock:     f.text(`select string_agg(format('%s %s %s %s', sku, available, reserved, sold), ', ' order by sku) from stock`),
		Holds:     f.text(`select string_agg(status, ' ' order by sku) from reservations where charge_id = 'ch_1'`),
		Announced: f.text(`select string_agg(split_part(type, '.v', 1), ' ' order by id) from inbox where receiver = 'notification' and metadata ? 'causation_id'`),
		Message:   f.text(`select string_agg(status, ' ' order by id) from inbox where not metadata ? 'causation_id'`),
	}
	if failure := f.load("ch_1").Charge.Failure; failure != nil {
		seen.Failure = failure.Code
	}
	return seen
}

// The histories of most tests, and what the stock is after them.
const (
	toReserved = "charge.requested inventory.reserved"
	toStarted  = toReserved + " payment.started"
	paid       = "charge.requested payment.started payment.captured charge.succeeded"
	asked      = " refund.requested"
	refunded   = asked + " refund.succeeded"
	cancelAsk  = " charge.cancel_requested"
	declined   = " payment.declined inventory.released charge.failed"

	untouched = "mug 5 0 0, tshirt 10 0 0"
	held      = "mug 4 1 0, tshirt 8 2 0"
	sold      = "mug 4 0 1, tshirt 8 0 2"
)

func succeeded(history string) snapshot {
	return snapshot{Events: history + " payment.captured charge.succeeded", Stock: sold, Holds: "sold sold", Announced: "charge.succeeded", Message: "done"}
}

// failed is a charge that returned its stock.
func failed(history string, code domain.FailureCode) snapshot {
	return snapshot{Events: history, Failure: code, Stock: untouched, Holds: "released released", Announced: "charge.failed", Message: "done"}
}

// open is a charge in progress whose message waits or is a dead letter.
func open(history, message string) snapshot {
	return snapshot{Events: history, Stock: held, Holds: "open open", Message: message}
}

// back is a captured charge after more has happened to it.
func back(history, announced, message string) snapshot {
	return snapshot{Events: paid + history, Stock: untouched, Announced: announced, Message: message}
}

// expect compares what is stored, and the calls of the provider since the last comparison.
func (f *fixture) expect(want snapshot, calls string) {
	f.t.Helper()
	if diff := cmp.Diff(want, f.snapshot()); diff != "" {
		f.t.Errorf("after the delivery (-want +got):\n%s", diff)
	}
	f.expectCalls(calls)
}

func (f *fixture) expectCalls(want string) {
	f.t.Helper()
	if got := f.provider.take(); got != want {
		f.t.Errorf("the provider was called %q, want %q", got, want)
	}
}

// expectKeys checks that the calls of an operation had the ids of the events at these
// versions as their idempotency keys, or those of a creation or a refund these counts of failures.
func (f *fixture) expectKeys(op string, versions ...int) {
	f.t.Helper()
	s, want := f.load("ch_1"), []string{}
	for _, v := range versions {
		switch op {
		case "create":
			want = append(want, fmt.Sprintf("%s-%d", s.Charge.Reference, v))
		case "refund":
			want = append(want, fmt.Sprintf("re_1-%d", v))
		default:
			want = append(want, s.At(v).ID.String())
		}
	}
	if diff := cmp.Diff(want, f.provider.keys(op)); diff != "" {
		f.t.Errorf("the keys of %s are not the ids of the events %v (-want +got):\n%s", op, versions, diff)
	}
}

// expectRecorded checks the event at a version, from the end where it is 0 or less.
func (f *fixture) expectRecorded(version int, want domain.Event) {
	f.t.Helper()
	s := f.load("ch_1")
	if version <= 0 {
		version += len(s.Events)
	}
	if diff := cmp.Diff(want, s.At(version).Event); diff != "" {
		f.t.Errorf("recorded (-want +got):\n%s", diff)
	}
}

func (f *fixture) expectFailure(want domain.Failure) {
	f.t.Helper()
	if diff := cmp.Diff(&want, f.load("ch_1").Charge.Failure); diff != "" {
		f.t.Errorf("the failure (-want +got):\n%s", diff)
	}
}

func (f *fixture) expectText(want, sql string) {
	f.t.Helper()
	if got := f.text(sql); got != want {
		f.t.Errorf("%s: %q, want %q", sql, got, want)
	}
}

// scenario is a charge from its beginning over some deliveries to what they leave.
type scenario struct {
	begin  func(*fixture)
	script script
	ends   string // of the deliveries in their order; one that is done where empty
	want   snapshot
	calls  string
	check  func(*fixture)
}

// script are answers of the provider by operation.
type script map[string][]http.HandlerFunc

func (s scenario) run(t *testing.T) {
	t.Helper()
	t.Parallel()
	f := newFixture(t)
	s.begin(f)
	for op, answers := range s.script {
		f.provider.on(op, answers...)
	}
	if s.ends == "" {
		s.ends = "done"
	}
	for end := range strings.FieldsSeq(s.ends) {
		f.expectEnd(f.deliver(), end)
	}
	f.expect(s.want, s.calls)
	if s.check != nil {
		s.check(f)
	}
}

// runAll runs scenarios by their names.
func runAll(t *testing.T, scenarios map[string]scenario) {
	t.Helper()
	for name, s := range scenarios {
		t.Run(name, s.run)
	}
}

// Beginnings of scenarios.

func isAccepted(f *fixture) { f.accept("ch_1", order()) }
func isStarted(f *fixture)  { f.start() }

// isRefunding is a captured charge of which 600 are to be refunded as re_1, and which has
// no refund in the provider's list at first.
func isRefunding(f *fixture) {
	f.provider.on("refunds", lists())
	f.request(f.capture(order()), "re_1", 600)
}

// request requests a refund, and puts the message about it into the inbox.
func (f *fixture) request(s ledger.Stream, id string, amount int64) {
	f.t.Helper()
	s = f.append(s, domain.RefundRequested{RefundID: id, Amount: amount, Notify: true})
	f.put(fulfillment.ChargeReceiver, s, s.Charge.Version, s.Head().ID.String())
}

// cancel requests a cancellation.
func (f *fixture) cancel() {
	f.t.Helper()
	f.append(f.load("ch_1"), domain.ChargeCancelRequested{})
}

// rival appends an event of another writer to ch_1 while a call is in flight.
func (f *fixture) rival(answer http.HandlerFunc, events ...domain.Event) http.HandlerFunc {
	return meanwhile(func() { f.append(f.load("ch_1"), events...) }, answer)
}
