package sandbox_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

// A sandbox that was killed left its file as it was. The next one has the same books, answers
// known keys with the same bytes, and sends what was not taken.
func TestJournal_survivesAKill(t *testing.T) {
	testrun.Long(t, "it waits for repetitions")
	t.Parallel()
	r, o := receive(t)
	r.setDown(true)
	o.File = filepath.Join(t.TempDir(), "records")
	f := start(t, o)
	f.post("/v1/refunds", "payment_intent="+f.captured(), "amount=400").want(t, http.StatusOK)
	f.post(confirmation(f.create("pm_card_chargeDeclined"))).want(t, http.StatusPaymentRequired)
	f.control(http.MethodPost, "/dispute", `{"payment_intent":"`+f.captured()+`","outcome":"lost"}`).want(t, http.StatusOK)
	f.must(f.notify(shopSecret, "msg_1", notice("ch_1")))
	first := f.post(intents, eur("700", key)...)

	torn := filepath.Join(t.TempDir(), "records")
	written, err := os.ReadFile(o.File)
	testrun.Must(t, err)
	testrun.Must(t, os.WriteFile(torn, append(written, `
[{"id":"ch_torn"`...), 0o600))
	o.File = torn
	next := start(t, o)
	testrun.Same(t, "books", f.control(http.MethodGet, "/books", "").object, next.control(http.MethodGet, "/books", "").object)
	for _, list := range []string{"payment_intents", "refunds", "disputes", "events"} {
		testrun.Same(t, list, f.get("/v1/"+list).raw, next.get("/v1/"+list).raw)
	}
	if again := next.post(intents, eur("700", key)...); !replayed(first, again) {
		t.Errorf("answered %d %s, then %d %s", first.status, first.raw, again.status, again.raw)
	}
	next.captured()
	if again := start(t, o).books(); len(again.Captures) != len(f.books().Captures)+1 {
		t.Errorf("%d captures after a torn line", len(again.Captures))
	}
	data, _ := f.get("/v1/events?limit=100").at("data").([]any)
	r.setDown(false)
	events, _ := next.get("/v1/events?limit=100").at("data").([]any)
	r.await(len(events))
	if len(events) <= len(data) {
		t.Errorf("%d events, then %d", len(data), len(events))
	}
}

// A request that cannot be written has no answer and no effect.
func TestJournal_thatCannotBeWritten(t *testing.T) {
	t.Parallel()
	o := sandbox.Options{File: filepath.Join(t.TempDir(), "records")}
	f := start(t, o)
	id := f.create("pm_card_visa")
	before := f.books()
	testrun.Must(t, f.it.Close())
	if a, err := f.do(http.MethodPost, confirmation(id), "", http.Header{"Authorization": {"Bearer sk_test_1"}}); err == nil {
		t.Errorf("it is answered %d %s", a.status, a.raw)
	}
	testrun.Same(t, "books", before, start(t, o).books())
}

// A file that holds two captures of one intent shows two: nothing counts intents instead.
func TestJournal_showsADoubleCapture(t *testing.T) {
	t.Parallel()
	o := sandbox.Options{File: filepath.Join(t.TempDir(), "records")}
	start(t, o).captured()
	written, err := os.ReadFile(o.File)
	testrun.Must(t, err)
	lines := strings.SplitAfter(string(written), "\n")
	for _, line := range lines {
		if strings.Contains(line, `"captured":true`) {
			written = append(written, strings.ReplaceAll("\n"+line, `"id":"ch_`, `"id":"ch_again`)...)
		}
	}
	o.File += "-twice"
	testrun.Must(t, os.WriteFile(o.File, written, 0o600))
	if b := start(t, o).books(); len(b.Captures) != 2 || b.Intents[0].Captures != 2 {
		t.Errorf("books %+v", b)
	}
}

// replayed reports whether b is a's saved answer.
func replayed(a, b answered) bool {
	return b.status == a.status && b.raw == a.raw && b.header.Get("Idempotent-Replayed") == "true" &&
		b.header.Get("Original-Request") == a.header.Get("Request-Id") &&
		b.header.Get("Request-Id") != a.header.Get("Request-Id")
}

// Of requests that come at once under one key one is executed; each other is refused, or gets its answer.
func TestIdempotencyKey_inFlight(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	f.faults(`{"slow":{"p":1,"ms":100}}`)
	const rivals = 8
	var answers [rivals]answered
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			var err error
			if answers[i], err = f.tryPost(intents, eur("700", "payment_method=pm_card_visa", "confirm=true", key)...); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	payments := map[string]bool{}
	for _, a := range answers {
		switch a.status {
		case http.StatusOK:
			payments[a.text("id")] = true
		default:
			a.want(t, http.StatusConflict, "error.type=idempotency_error", "error.code=idempotency_key_in_use")
		}
	}
	if b := f.books(); len(payments) != 1 || len(b.Captures) != 1 || b.Requests != rivals {
		t.Errorf("answered %v; the books have %+v", payments, b)
	}
}
