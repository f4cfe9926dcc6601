package httpapi_test

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/internal/openapi"
)

// TestEveryRouteIsInTheContract: the routes of the server are those of the
// contract, with the scopes that they ask for.
func TestEveryRouteIsInTheContract(t *testing.T) {
	t.Parallel()
	server, ok := newAPI(nil, io.Discard).Handler().(*echo.Echo)
	if !ok {
		t.Fatal("the handler is no router")
	}
	parameter := regexp.MustCompile(`:(\w+)`)
	var want, got []string
	for _, r := range server.Routes() {
		if name := r.Method + " " + r.Path; r.Method != http.MethodHead { // answered as GET is
			want = append(want, strings.TrimSpace(parameter.ReplaceAllString(name, "{$1}")+" "+string(needed()[name])))
		}
	}
	for _, o := range theContract(t).Operations() {
		got = append(got, strings.TrimSpace(o.Method+" "+o.Path+" "+strings.Join(o.Scopes, " ")))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("routes (-server +contract):\n%s", diff)
	}
}

// TestTheContractsExamples: each is what the schema beside it asks for.
func TestTheContractsExamples(t *testing.T) {
	t.Parallel()
	checked, err := theContract(t).CheckExamples()
	if err != nil {
		t.Error(err)
	}
	if checked < 15 {
		t.Errorf("%d examples", checked)
	}
}

// TestAWrongAnswerIsCaught: what judges every answer of these tests would find
// one that is not in the contract, and a body that is judged in another way.
func TestAWrongAnswerIsCaught(t *testing.T) {
	t.Parallel()
	c := theContract(t)
	w := serve(t)
	right := exchanged(t, w, post("key-1", body()))
	if err := errorsOf(c, right); err != nil {
		t.Fatalf("the answer of the api: %v", err)
	}
	for _, test := range []struct {
		name  string
		spoil func(e *openapi.Exchange)
		want  string
	}{
		{"another status", func(e *openapi.Exchange) { e.Status = http.StatusCreated }, "the status is not listed"},
		{"a header that is not listed", func(e *openapi.Exchange) { e.Header.Set("X-Charge", "1") }, "X-Charge is not listed"},
		{"no request id", func(e *openapi.Exchange) { e.Header.Del("X-Request-Id") }, "X-Request-Id is missing"},
		{"a wrong header", func(e *openapi.Exchange) { e.Header.Set("Retry-After", "soon") }, "Retry-After is"},
		{"another media type", func(e *openapi.Exchange) { e.Header.Set("Content-Type", "text/plain") }, "text/plain is not listed"},
		{"no body", func(e *openapi.Exchange) { e.Body = nil }, "the body"},
		{"a member more", func(e *openapi.Exchange) { replace(e, `"failure":null`, `"failure":null,"fee":1`) }, "fee"},
		{"a member less", func(e *openapi.Exchange) { replace(e, `"failure":null,`, ``) }, "failure"},
		{"a member of another type", func(e *openapi.Exchange) { replace(e, `"amount":2000`, `"amount":"2000"`) }, "amount"},
		{"a status that no charge has", func(e *openapi.Exchange) { replace(e, `"status":"pending","steps"`, `"status":"paid","steps"`) }, "status"},
		{"a time that is none", func(e *openapi.Exchange) { replace(e, `"created_at":"2`, `"created_at":"x2`) }, "created_at"},
		{"a body that is refused in the contract", func(e *openapi.Exchange) { e.Sent = []byte(body("amount", "0")) }, "/amount"},
		{"a problem that the route does not know", func(e *openapi.Exchange) {
			e.Status = http.StatusConflict
			e.Header.Set("Content-Type", "application/problem+json")
			e.Body = []byte(`{"type":"/problems/conflict","title":"a","status":409,"detail":"b","instance":"/","retryable":false,"retry_with":"new-key"}`)
		}, "/problems/conflict"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := right
			e.Header = right.Header.Clone()
			test.spoil(&e)
			if err := errorsOf(c, e); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("found %v, want %q", err, test.want)
			}
		})
	}
	t.Run("a refusal of what is fine in the contract", func(t *testing.T) {
		e := exchanged(t, w, post("key-2", body("amount", "0")))
		e.Sent = []byte(body())
		if err := agrees(c, e); err == nil {
			t.Error("not found")
		}
	})
	t.Run("an answer at a path that is not listed", func(t *testing.T) {
		e := exchanged(t, w, get("/v1/balances"))
		e.Request.URL.Path, e.Request.URL.RawPath = "/v1/accounts", ""
		if err := c.Check(e); err == nil {
			t.Error("not found")
		}
	})
}

func errorsOf(c *openapi.Contract, e openapi.Exchange) error {
	if err := c.Check(e); err != nil {
		return err
	}
	return agrees(c, e)
}

func replace(e *openapi.Exchange, what, with string) {
	e.Body = []byte(strings.Replace(string(e.Body), what, with, 1))
}

// exchanged sends a call and shows the exchange.
func exchanged(t *testing.T, w *world, c call) openapi.Exchange {
	t.Helper()
	a := w.send(t, c)
	request, err := http.NewRequestWithContext(t.Context(), c.method, w.url+c.path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return openapi.Exchange{Request: request, Sent: []byte(c.body), Status: a.status, Header: a.header, Body: []byte(a.body)}
}
