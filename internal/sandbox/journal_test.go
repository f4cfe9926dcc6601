package sandbox_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

// A sandbox that was killed left its file as it was. The next one has the same books, answers
// known keys with the same bytes, and sends what was not taken.
func TestJournal_survivesAKill(t *testing.T) {
	t.Parallel()
	r, o := receive(t)
	r.setDown(true)
	o.File = filepath.Join(t.TempDir(), "records")
	f := start(t, o)
	f.post("/v1/refunds", "refund", "payment_intent", f.captured("pm_card_visa"), "amount", "400").want(t, http.StatusOK, nil)
	f.post(confirmation(f.create("pm_card_chargeDeclined")), "").want(t, http.StatusPaymentRequired, nil)
	f.control(http.MethodPost, "/dispute", `{"payment_intent":"`+f.captured("pm_card_visa")+`","outcome":"lost"}`).want(t, http.StatusOK, nil)
	f.must(f.notify(shopSecret, "msg_1", notice("ch_1")))
	first := f.post(intents, "k", eur("700")...)

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
	if again := next.post(intents, "k", eur("700")...); !replayed(first, again) {
		t.Errorf("answered %d %s, then %d %s", first.status, first.raw, again.status, again.raw)
	}
	next.captured("pm_card_visa")
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

// A file that holds two captures of one intent shows two: nothing counts intents instead.
func TestJournal_showsADoubleCapture(t *testing.T) {
	t.Parallel()
	o := sandbox.Options{File: filepath.Join(t.TempDir(), "records")}
	start(t, o).captured("pm_card_visa")
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

// What cannot be written has not happened.
func TestJournal_thatCannotBeWritten(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{File: filepath.Join(t.TempDir(), "records"), ShopSecret: shopSecret})
	id := f.create("pm_card_visa")
	before := f.books()
	testrun.Must(t, f.it.Close())
	f.post(confirmation(id), "key").want(t, http.StatusServiceUnavailable, map[string]any{"error.type": "api_error"})
	if a := f.must(f.notify(shopSecret, "msg_1", notice("ch_1"))); a.status != http.StatusServiceUnavailable {
		t.Errorf("the shop answered %d", a.status)
	}
	testrun.Same(t, "books", before, f.books())
}
