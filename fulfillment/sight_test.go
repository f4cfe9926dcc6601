package fulfillment_test

import (
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// sight is everything that a charge leaves behind.
type sight struct {
	Events  string // without versions of the schema
	Failure domain.FailureCode
	Stock   string // available, reserved and sold
	Holds   string // the states of the charge's reservations
	Outbox  string
	Message string
}

func (w *world) see() sight {
	w.Helper()
	s := w.load()
	seen := sight{
		Events:  w.text(`select string_agg(replace(type, '.v1', ''), ' ' order by version) from ledger_events where stream_id = 'ch_1'`),
		Stock:   w.stock(),
		Holds:   w.text(`select string_agg(status, ' ' order by sku) from reservations where charge_id = 'ch_1'`),
		Outbox:  w.text(`select string_agg(replace(metadata ->> 'type', '.v1', ''), ' ' order by transaction_id, "offset") from outbox`),
		Message: w.text(`select string_agg(status, ' ' order by id) from inbox`),
	}
	if s.Charge.Failure != nil {
		seen.Failure = s.Charge.Failure.Code
	}
	return seen
}

func (w *world) stock() string {
	w.Helper()
	return w.text(`select string_agg(format('%s %s %s %s', sku, available, reserved, sold), ', ' order by sku) from stock`)
}

// text is the one text that a query finds, "" for null.
func (w *world) text(sql string) string {
	w.Helper()
	var found *string
	if err := w.db.QueryRow(w.Context(), sql).Scan(&found); err != nil {
		w.Fatal(err)
	}
	if found == nil {
		return ""
	}
	return *found
}

// The histories that most tests begin with, and what the stock is then.
const (
	toReserved = "charge.requested inventory.reserved"
	toStarted  = toReserved + " payment.started"
	captured   = " payment.captured charge.succeeded"
	declined   = " payment.declined inventory.released charge.failed"

	untouched = "mug 5 0 0, tshirt 10 0 0"
	held      = "mug 4 1 0, tshirt 8 2 0"
	sold      = "mug 4 0 1, tshirt 8 0 2"
)

func succeeded(history string) sight {
	return sight{Events: history + captured, Stock: sold, Holds: "sold sold", Outbox: "charge.succeeded", Message: "done"}
}

func failed(history string, code domain.FailureCode) sight {
	return sight{
		Events: history + declined, Failure: code,
		Stock: untouched, Holds: "released released", Outbox: "charge.failed", Message: "done",
	}
}

// open is a charge under way whose message waits or is parked.
func open(history, message string) sight {
	return sight{Events: history, Stock: held, Holds: "open open", Message: message}
}

// expect compares what is there, and what the provider was asked since the last
// time.
func (w *world) expect(want sight, calls string) {
	w.Helper()
	if diff := cmp.Diff(want, w.see()); diff != "" {
		w.Errorf("after the delivery (-want +got):\n%s", diff)
	}
	w.expectCalls(calls)
}

func (w *world) expectCalls(want string) {
	w.Helper()
	var ops []string
	for _, c := range w.provider.take() {
		ops = append(ops, c.op)
	}
	if got := strings.Join(ops, " "); got != want {
		w.Errorf("the provider was asked %q, want %q", got, want)
	}
}

// expectKind checks what a handler answered.
func (w *world) expectKind(err error, want string) {
	w.Helper()
	if kind(err) != want {
		w.Errorf("the handler answered %v, want %s", err, want)
	}
}
