package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

type listing struct {
	Data    []json.RawMessage `json:"data"`
	HasMore bool              `json:"has_more"`
	Next    string            `json:"next"`
}

func (w *world) list(t *testing.T, query string) listing {
	t.Helper()
	a := w.send(t, get("/v1/charges"+query))
	var page listing
	if err := json.Unmarshal([]byte(a.body), &page); err != nil || a.status != http.StatusOK || page.Data == nil {
		t.Fatalf("%s: status %d: %s", query, a.status, a.body)
	}
	return page
}

func (l listing) orders(t *testing.T) string {
	t.Helper()
	orders := make([]string, len(l.Data))
	for i, raw := range l.Data {
		orders[i], _ = members(t, string(raw))["order_id"].(string)
	}
	return strings.Join(orders, " ")
}

func TestListCharges(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := serve(t)
	var ids []string
	for i, order := range []string{"a", "b", "a<&>", "d", "a"} {
		a := w.accept(t, fmt.Sprintf("key-%d", i), body("order_id", fmt.Sprintf("%q", order), "metadata", `{"note":"<ü & x>"}`))
		ids = append(ids, idOf(a.header.Get("Location")))
	}
	foreign := idOf(w.accepted(t, post("key-1", body()).as(strangerKey)).header.Get("Location"))

	t.Run("each charge is listed as it is shown, byte for byte, newest first", func(t *testing.T) {
		page := w.list(t, "")
		if len(page.Data) != len(ids) || page.HasMore || page.Next != "" {
			t.Fatalf("%d charges, more %t, next %q", len(page.Data), page.HasMore, page.Next)
		}
		for i, raw := range page.Data {
			shown := w.send(t, get("/v1/charges/"+ids[len(ids)-1-i])).body
			testrun.Same(t, fmt.Sprint("charge ", i), strings.TrimSuffix(shown, "\n"), string(raw))
		}
	})

	for query, want := range map[string]string{
		"?limit=2": "a d", "?limit=2&starting_after=" + ids[3]: "a<&> b", "?order_id=a": "a a",
		"?order_id=a&limit=1": "a", "?order_id=a&starting_after=" + ids[4]: "a", "?order_id=" + url.QueryEscape("a<&>"): "a<&>",
		"?status=pending&limit=1": "a", "?status=failed": "", "?status=succeeded": "", "?status=refunded": "", "?status=partially_refunded": "",
		"?status=failed&order_id=a": "", "?order_id=A": "", "?starting_after=" + ids[0]: "",
		"?order_id=&status=&limit=&starting_after=": "a d a<&> b a",
	} {
		t.Run("filtered by "+query, func(t *testing.T) {
			if got := w.list(t, query).orders(t); got != want {
				t.Errorf("orders %q, want %q", got, want)
			}
		})
	}

	for query, pointer := range map[string]string{
		"?limit=05": "/limit", "?starting_after=" + foreign: "/starting_after", "?stauts=failed": "/stauts",
		"?order_id=a&order_id=b": "/order_id", "?order_id=%ff": "/order_id",
		"?4242424242424242=1": "", "?a=%zz": "", "?a~/b=1": "/a~0~1b",
	} {
		t.Run("refused: "+query[:min(40, len(query))], func(t *testing.T) {
			a := w.send(t, get("/v1/charges"+query))
			wantPointers(t, wantProblem(t, a, "/problems/validation"), pointer)
			if strings.Contains(a.body, "4242") {
				t.Errorf("a card number is repeated: %s", a.body)
			}
		})
	}
}

// TestReads_areAnsweredAlike: by HEAD too, and whatever Idempotency-Key comes with them.
func TestReads_areAnsweredAlike(t *testing.T) {
	testdb.Long(t, "it asks every route")
	t.Parallel()
	w := serve(t)
	reads := w.reads(t)
	reads["no path of the API"] = "/nowhere"
	before := rows(t, w.db)
	for name, path := range reads {
		t.Run(name, func(t *testing.T) {
			read := w.insist(t, get(path))
			head := w.insist(t, get(path).like(http.MethodHead))
			if head.status != read.status || head.body != "" || head.header.Get("Content-Type") != read.header.Get("Content-Type") {
				t.Errorf("HEAD %d %q, GET %d: %v", head.status, head.body, read.status, head.header)
			}
			if strings.HasPrefix(path, "/v1/") {
				keyless := w.send(t, get(path).like(http.MethodHead).with("Authorization"))
				if keyless.status != http.StatusUnauthorized || keyless.header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("without an API key: %d %v", keyless.status, keyless.header)
				}
			}
			for _, values := range [][]string{{"a-charge-to-read"}, {`"`}, {"a", "b"}, {"4242424242424242"}} {
				a := w.insist(t, get(path).with("Idempotency-Key", values...))
				if a.status != read.status || a.body != read.body {
					t.Errorf("key %q: %d %s, without it %d %s", values, a.status, a.body, read.status, read.body)
				}
				if a.header.Get("Idempotency-Key") != "" || a.header.Get("Idempotent-Replayed") != "" || a.header.Get("Idempotency-Expires") != "" {
					t.Errorf("key %q: headers %v", values, a.header)
				}
			}
			wantRows(t, w.db, before, nil)
		})
	}
}

func TestMethod_thatARouteDoesNotHave(t *testing.T) {
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	known := map[string][]string{}
	for route := range needed() {
		c := request(route)
		known[c.path] = append(known[c.path], c.method)
	}
	for path, allow := range known {
		allow = append(allow, http.MethodOptions)
		slices.Sort(allow)
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "BREW"} {
			if slices.Contains(allow, method) {
				continue
			}
			t.Run(method+" "+path, func(t *testing.T) {
				a := w.send(t, to(path, "key", "{}").like(method))
				if method != http.MethodHead {
					wantProblem(t, a, "/problems/method-not-allowed")
				}
				allowed := strings.Split(a.header.Get("Allow"), ", ")
				slices.Sort(allowed)
				if diff := cmp.Diff(allow, allowed); diff != "" || a.status != http.StatusMethodNotAllowed {
					t.Errorf("status %d, Allow (-want +got):\n%s", a.status, diff)
				}
			})
		}
	}
	wantRows(t, w.db, before, nil)
}
