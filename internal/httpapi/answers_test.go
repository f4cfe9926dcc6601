package httpapi_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// changing are the parts of an answer that differ from run to run.
var changing = []struct {
	form *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`\b(ch|re)_[0-9a-f]{32}\b`), "$1"},
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "uuid"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "time"},
	{regexp.MustCompile(`\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT`), "date"},
}

// transcript is a record of requests and their answers, without what changes from run to run.
type transcript struct {
	strings.Builder

	ids map[string]string // of charges and refunds, by their order
}

func (r *transcript) stable(text string) string {
	for _, c := range changing {
		text = c.form.ReplaceAllStringFunc(text, func(found string) string {
			kind := c.form.ReplaceAllString(found, c.name)
			if kind != "ch" && kind != "re" {
				return "<" + kind + ">"
			}
			if r.ids[found] == "" {
				r.ids[found] = fmt.Sprintf("<%s %d>", kind, len(r.ids)+1)
			}
			return r.ids[found]
		})
	}
	return text
}

// send sends a request and records its answer.
func (r *transcript) send(t *testing.T, w *world, c call) answer {
	t.Helper()
	a := w.send(t, c)
	fmt.Fprintf(r, "%s %s\n", c.method, r.stable(c.path))
	if c.body != "" {
		fmt.Fprintf(r, "%s\n", c.body)
	}
	fmt.Fprintf(r, "\n%d\n", a.status)
	a.header.Del("Date")
	a.header.Del("Content-Length") // times have trailing zeros or not
	var headers strings.Builder
	testdb.Must(t, a.header.Write(&headers))
	fmt.Fprintf(r, "%s\n%s\n\n", r.stable(strings.ReplaceAll(headers.String(), "\r\n", "\n")), r.stable(strings.TrimSpace(a.body)))
	return a
}

// TestAnswers_areAsRecorded sends requests in this order and compares every answer with its
// headers with testdata/answers.txt, which UPDATE_GOLDEN=1 writes anew.
func TestAnswers_areAsRecorded(t *testing.T) {
	t.Parallel()
	w, r := serve(t), &transcript{ids: map[string]string{}}
	send := func(c call) answer { return r.send(t, w, c) }
	charge := send(post("order-1", body("items", `[{"sku":"tshirt","quantity":2}]`, "metadata", `{"channel":"web"}`))).header.Get("Location")
	send(post("order-2", body("description", `"without items or webhook"`)).as(strangerKey))
	send(get(charge))
	send(get("/v1/balances"))
	w.happen(t, charge, func(c domain.Charge) []domain.Event { return []domain.Event{domain.InventoryReserved{Items: c.Items}} }, paid("pi_1"))
	refund := send(to(charge+"/refunds", "refund", `{"amount":500,"reason":"broken"}`)).header.Get("Location")
	send(to(charge+"/refunds", `"refund"`, ` {"reason":"broken", "amount":500} `))
	send(get(refund))
	w.happen(t, charge, returned(strings.TrimPrefix(refund, charge+"/refunds/")))
	send(to(charge+"/refunds", "rest", `{}`))
	send(to(charge+"/refunds", "refused", `{"amount":9999}`))
	send(get(charge + "/refunds"))
	send(get(charge))
	send(get(charge + "/events"))
	canceled := send(post("order-3", body())).header.Get("Location")
	send(to(canceled+"/cancel", "cancel", ""))
	send(to(canceled+"/cancel", "cancel", " {} "))
	w.happen(t, canceled, isCanceled)
	send(get(canceled))
	send(to(canceled+"/cancel", "late", ""))
	for _, key := range []string{"order-1", "refused"} {
		send(get("/v1/idempotency-keys/" + key))
	}
	send(get("/v1/charges?limit=1"))
	send(get("/v1/balances"))
	testrun.Golden(t, "answers.txt", r.String())
}
