package e2e_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestAPI_refusedRequest_leavesNoRow sends requests of every problem type that a
// request can have, and compares the rows of all tables before and after. The tests
// of internal/httpapi send every way in which a request can be wrong.
func TestAPI_refusedRequest_leavesNoRow(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1})
	rows := d.count(t)
	t.Cleanup(func() {
		if diff := cmp.Diff(rows, d.count(t)); diff != "" {
			t.Errorf("rows before (-) and after (+) all refusals:\n%s", diff)
		}
	})
	const good = `{"order_id":"A-1","amount":1000,"currency":"USD","payment_method":"pm_card_visa"}`
	with := func(old, replaced string) []byte { return []byte(strings.Replace(good, old, replaced, 1)) }
	body := []byte(good)
	key := func(values ...string) http.Header { return http.Header{"Idempotency-Key": values} }
	as := func(authorization ...string) http.Header { return http.Header{"Authorization": authorization} }
	charge := "/v1/charges/ch_" + unique()
	for name, c := range map[string]struct {
		send   request
		status int
		kind   string
		header string // that the answer must carry
	}{
		"no body":                     {request{key: unique(), body: []byte{}}, http.StatusBadRequest, "malformed", ""},
		"trailing data":               {request{key: unique(), body: []byte(good + "{}")}, http.StatusBadRequest, "malformed", ""},
		"an unknown name":             {request{key: unique(), body: with("{", `{"tip":1,`)}, http.StatusBadRequest, "malformed", ""},
		"a NUL":                       {request{key: unique(), body: with("A-1", `A\u0000`)}, http.StatusBadRequest, "malformed", ""},
		"no content type":             {request{key: unique(), body: body, header: http.Header{"Content-Type": nil}}, http.StatusUnsupportedMediaType, "unsupported-media-type", ""},
		"a body of 65 KiB":            {request{key: unique(), body: with("A-1", strings.Repeat("x", 65<<10))}, http.StatusRequestEntityTooLarge, "too-large", ""},
		"an amount of 0":              {request{key: unique(), body: with("1000", "0")}, http.StatusUnprocessableEntity, "validation", ""},
		"an unknown currency":         {request{key: unique(), body: with("USD", "ZZZ")}, http.StatusUnprocessableEntity, "validation", ""},
		"an item twice":               {request{key: unique(), body: with("{", `{"items":[{"sku":"mug","quantity":1},{"sku":"mug","quantity":2}],`)}, http.StatusUnprocessableEntity, "validation", ""},
		"a missing key":               {request{body: body}, http.StatusBadRequest, "idempotency-key-missing", "Link"},
		"an empty key":                {request{body: body, header: key("")}, http.StatusBadRequest, "idempotency-key-invalid", ""},
		"a key with half a quote":     {request{body: body, header: key(`"key`)}, http.StatusBadRequest, "idempotency-key-invalid", ""},
		"two keys":                    {request{body: body, header: key("one", "two")}, http.StatusBadRequest, "idempotency-key-invalid", ""},
		"no API key":                  {request{key: unique(), body: body, header: as()}, http.StatusUnauthorized, "unauthorized", "Www-Authenticate"},
		"an unknown API key":          {request{key: unique(), body: body, header: as("Bearer sk_test_" + unique())}, http.StatusUnauthorized, "unauthorized", "Www-Authenticate"},
		"a read with another scheme":  {request{method: http.MethodGet, path: "/v1/balances", header: as("Basic c2tfdGVzdF94Og==")}, http.StatusUnauthorized, "unauthorized", "Www-Authenticate"},
		"a charge that is not there":  {request{method: http.MethodGet, path: charge}, http.StatusNotFound, "not-found", ""},
		"its events":                  {request{method: http.MethodGet, path: charge + "/events"}, http.StatusNotFound, "not-found", ""},
		"a charge with bytes as name": {request{method: http.MethodGet, path: "/v1/charges/%00%ff"}, http.StatusNotFound, "not-found", ""},
		"a path outside":              {request{method: http.MethodGet, path: "/charges"}, http.StatusNotFound, "not-found", ""},
		"a deletion":                  {request{method: http.MethodDelete, path: charge}, http.StatusMethodNotAllowed, "method-not-allowed", "Allow"},
		"an event unsigned":           {eventRequest("", intentEvent("payment_intent.succeeded", charge)), http.StatusBadRequest, "webhook-signature", ""},
		"an event signed otherwise":   {eventRequest(signed("whsec_other", time.Now(), "{}"), "{}"), http.StatusBadRequest, "webhook-signature", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := d.do(t, c.send)
			if p := mustBeProblem(t, got, c.status, c.kind); p.Retryable {
				t.Errorf("it may be retried as it is: %s", got.Body)
			}
			if c.header != "" && got.Header.Get(c.header) == "" {
				t.Errorf("the answer lacks %s: %v", c.header, got.Header)
			}
			if c.send.key != "" && bytes.Contains(got.Body, []byte(c.send.key)) {
				t.Errorf("the answer repeats the key: %s", got.Body)
			}
		})
	}
}

// count is the number of rows of every table.
func (d *deployment) count(t *testing.T) map[string]int64 {
	t.Helper()
	const tables = `
select format('%I.%I', schemaname, relname)
  from pg_stat_user_tables`
	counts := map[string]int64{}
	for _, table := range rows[string](t, d, tables) {
		counts[table] = row[int64](t, d, "select count(*) from "+table)
	}
	if len(counts) < 5 {
		t.Errorf("there are but %d tables", len(counts))
	}
	return counts
}
