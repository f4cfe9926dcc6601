package httpapi_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/bojanz/currency"
	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	invalid "github.com/pb33f/libopenapi-validator/errors"
	"github.com/pb33f/libopenapi-validator/paths"
	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"go.yaml.in/yaml/v3"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// judged is a handler whose exchanges must be those of the contract: the answer is
// listed, and a request that the contract refuses is not accepted. No cache keeps an answer,
// and no browser takes it for another type.
func judged(tb testing.TB, handler http.Handler) http.Handler {
	tb.Helper()
	return recorded(handler, func(e exchange) {
		if err := verdict(theContract(tb), e); err != nil {
			tb.Error(err)
		}
	})
}

func verdict(c *document, e exchange) error {
	if e.header.Get("Cache-Control") != "no-store" || e.header.Get("X-Content-Type-Options") != "nosniff" {
		return fmt.Errorf("%s has the headers %v", e.request.URL.Path, e.header)
	}
	if e.status >= http.StatusBadRequest || e.request.URL.Path == "/v1/webhooks/stripe" { // events are read leniently
		return c.check(e)
	}
	return errors.Join(c.check(e), c.checkRequest(e))
}

// recorded serves next and shows each exchange to see before the client has all of the
// answer.
func recorded(next http.Handler, see func(exchange)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := exchange{request: r.Clone(r.Context())} // next may change it
		var sent strings.Builder
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, &sent), r.Body}
		recorder := httptest.NewRecorder()
		next.ServeHTTP(recorder, r)
		e.sent, e.answer = sent.String(), answer{recorder.Code, recorder.Header(), recorder.Body.String()}
		see(e)
		maps.Copy(w.Header(), recorder.Header())
		w.WriteHeader(recorder.Code)
		_, _ = w.Write(recorder.Body.Bytes())
	})
}

// operations calls each for what the contract lists, with the parameters of the path.
func operations(c *document, each func(method, path string, o *v3.Operation, parameters []*v3.Parameter)) {
	for path, item := range c.Paths.PathItems.FromOldest() {
		if path == elsewhere || strings.HasPrefix(path, webhooks) {
			continue
		}
		for method, o := range item.GetOperations().FromOldest() {
			each(strings.ToUpper(method), path, o, slices.Concat(item.Parameters, o.Parameters))
		}
	}
}

// formats are those that JSON Schema does not define: whether a string has them.
var formats = map[string]func(string) bool{
	"id":       func(s string) bool { return !strings.ContainsRune(s, 0) },
	"text":     func(s string) bool { return !strings.ContainsRune(s, 0) && !httpapi.HoldsCard(s) },
	"iso-4217": func(s string) bool { return s != "" && currency.IsValid(s) },
	"https-url": func(s string) bool {
		to, err := url.Parse(s)
		return err == nil && to.Scheme == "https" && to.Hostname() != "" && to.User == nil && !strings.ContainsAny(s, " \u00a0\x00")
	},
}

// TestContract_hasEveryRoute: the routes of the server are those of the contract, which it serves without an API key, and of
// the manual, with the scopes that they need.
func TestContract_hasEveryRoute(t *testing.T) {
	t.Parallel()
	server, ok := httpapi.New(*newAPI(t, nil, io.Discard)).Handler().(*echo.Echo)
	if !ok {
		t.Fatal("the handler is no router")
	}
	listed, told, served, want := needed(t), map[string]string{}, map[string]int{}, map[string]int{}
	for name := range listed {
		want[name]++
		want[strings.Replace(name, "GET ", "HEAD ", 1)] = 1
	}
	for _, r := range server.Routes() {
		served[r.Method+" "+regexp.MustCompile(`:(\w+)`).ReplaceAllString(r.Path, "{$1}")]++
	}
	testrun.Same(t, "routes of the contract, and what is served", want, served)
	for _, row := range slices.Concat(manual("http.md", "GET /"), manual("http.md", "POST /")) {
		told[row[0]] = strings.Trim(row[2], "`–")
	}
	testrun.Same(t, "routes of the contract, and of the manual", listed, told)
	document, err := os.ReadFile(contractFile)
	testdb.Must(t, err)
	a := direct(t, server, get("/openapi.yaml").with("Authorization"))
	if a.status != http.StatusOK || a.body != string(document) || a.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("status %d, %s, %d bytes", a.status, a.header.Get("Content-Type"), len(a.body))
	}
}

// TestContract_hasEveryWebhook: each webhook is a request of the contract, with its body and the headers of its signature.
func TestContract_hasEveryWebhook(t *testing.T) {
	t.Parallel()
	c, checked := theContract(t), map[string]bool{}
	const started = "charge.requested.v1 inventory.reserved.v1 payment.started.v1 "
	const succeeded = started + "payment.captured.v1 charge.succeeded.v1 "
	for _, names := range []string{
		started + "payment.action_required.v1",
		started + "payment.declined.v1 inventory.released.v1 charge.failed.v1",
		succeeded + "refund.requested.v1 refund.succeeded.v1 refund.reversed.v1",
		succeeded + "refund.requested.v1 refund.failed.v1",
		succeeded + "refund.observed.v1",
		succeeded + "charge.dispute_opened.v1 charge.dispute_updated.v1 charge.dispute_withdrawn.v2 " +
			"charge.dispute_closed.v2 charge.dispute_reinstated.v2",
	} {
		s := ledger.New("ch_01a1fd1a07f77c1ea44d60c8d57dce21")
		for name := range strings.FieldsSeq(names) {
			stored, err := os.ReadFile("../../domain/testdata/events/" + name + ".json")
			testdb.Must(t, err)
			e, err := domain.Decode(name, stored)
			testdb.Must(t, err)
			s, err = ledger.Append(&pgx.Batch{}, s, ledger.Cause{}, e)
			testdb.Must(t, err)
			kind := domain.EventTypeNamed(name).Webhook
			if kind == "" {
				continue
			}
			checked[name] = true
			hook, _, _ := strings.Cut(strings.Replace(kind, "charge.dispute_", "dispute.", 1), ".")
			sent, err := s.Webhook(s.Charge.Version)
			testdb.Must(t, err)
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, webhooks+hook, http.NoBody)
			request.Header = http.Header{
				"Content-Type": {"application/json"}, "Webhook-Id": {s.Head().ID.String()},
				"Webhook-Timestamp": {"1795247765"}, "Webhook-Signature": {"v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="},
			}
			err = c.checkRequest(exchange{request: request, sent: string(sent)})
			if c.Paths.PathItems.GetOrZero(webhooks+hook) == nil || err != nil {
				t.Errorf("%s, webhook %s: %v", name, hook, err)
			}
		}
	}
	for _, kind := range domain.EventTypes() {
		if kind.Webhook != "" && !checked[kind.Name] {
			t.Errorf("no webhook of %s is checked", kind.Name)
		}
	}
}

// TestContract_catchesWrongAnswers plants what an answer can have wrong.
func TestContract_catchesWrongAnswers(t *testing.T) {
	t.Parallel()
	c := theContract(t)
	api := serve(t).handler
	replace := func(e *exchange, what, with string) {
		e.body = strings.Replace(e.body, what, with, 1)
	}
	right := exchanged(t, api, post("key-1", body()))
	testdb.Must(t, verdict(c, right))
	for _, test := range []struct {
		name  string
		spoil func(e *exchange)
		want  string
	}{
		{"another status", func(e *exchange) { e.status = http.StatusCreated }, "'201'"},
		{"an answer that a cache may keep", func(e *exchange) { e.header.Set("Cache-Control", "public") }, "Cache-Control"},
		{"an answer for pages of other origins", func(e *exchange) { e.header.Set("Access-Control-Allow-Origin", "*") }, "Access-Control-Allow-Origin"},
		{"a header that is not listed", func(e *exchange) { e.header.Set("X-Charge", "1") }, "X-Charge"},
		{"no request id", func(e *exchange) { e.header.Del("X-Request-Id") }, "X-Request-Id"},
		{"a member more", func(e *exchange) { replace(e, `"failure":null`, `"failure":null,"fee":1`) }, "fee"},
		{"a member less", func(e *exchange) { replace(e, `"failure":null,`, ``) }, "failure"},
		{"a status that no charge has", func(e *exchange) { replace(e, `"status":"pending","steps"`, `"status":"paid","steps"`) }, "status"},
		{"a body that the contract refuses", func(e *exchange) { e.sent = body("amount", "0") }, "amount"},
		{"a problem that the route does not have", func(e *exchange) {
			e.status = http.StatusConflict
			e.header.Set("Content-Type", "application/problem+json")
			e.body = `{"type":"/problems/conflict","title":"a","status":409,"detail":"b","instance":"/","retryable":false,"retry_with":"new-key"}`
		}, "/problems/idempotency-key-in-use"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := right
			e.header, e.request = right.header.Clone(), right.request.Clone(t.Context())
			test.spoil(&e)
			if err := verdict(c, e); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("found %v, want %q", err, test.want)
			}
		})
	}
}

// schemaAt is a schema of the contract, or of a member of one: "Step/status".
func schemaAt(tb testing.TB, name string) *base.Schema {
	tb.Helper()
	name, member, nested := strings.Cut(name, "/")
	proxy := theContract(tb).Components.Schemas.GetOrZero(name)
	if nested && proxy != nil {
		proxy = proxy.Schema().Properties.GetOrZero(member)
	}
	if proxy == nil {
		tb.Fatalf("the contract has no schema %s", fmt.Sprint(name, "/", member))
	}
	return proxy.Schema()
}

// document is the contract: an OpenAPI 3.1 document that judges exchanges. Beyond the standard,
//   - a header or a member that is not listed is an error;
//   - x-elsewhere lists the answers at paths and methods that are not listed;
//   - HEAD is answered like GET, without a body.
type document struct {
	*v3.Document // in which x-elsewhere and the webhooks are paths too

	mu        sync.Mutex // the validator renders schemas, which is not safe for concurrent use
	validator validator.Validator
}

const (
	contractFile = "openapi.yaml"
	elsewhere    = "/x-elsewhere" // is no path of the document
	webhooks     = "/x-webhooks/" // nor is this one, before the name of a webhook
)

// contract is read once; it never changes.
var contract = sync.OnceValues(func() (*document, error) {
	model, err := readModel()
	if err != nil {
		return nil, err
	}
	options := []config.Option{config.WithFormatAssertions(), config.WithoutSecurityValidation()}
	for name, has := range formats {
		options = append(options, config.WithCustomFormat(name, func(value any) error {
			if s, ok := value.(string); ok && !has(s) {
				return errors.New("is not of the format " + name)
			}
			return nil
		}))
	}
	own, err := readModel() // rendering writes to the model, which tests read
	return &document{Document: model, validator: validator.NewValidatorFromV3Model(own, options...)}, err
})

func theContract(tb testing.TB) *document {
	tb.Helper()
	c, err := contract()
	testdb.Must(tb, err)
	return c
}

func readModel() (*v3.Document, error) {
	written, err := os.ReadFile(contractFile)
	if err != nil {
		return nil, err
	}
	var tree struct {
		Paths, Webhooks map[string]any
		Elsewhere       any            `yaml:"x-elsewhere"`
		Rest            map[string]any `yaml:",inline"`
	}
	if err := yaml.Unmarshal(written, &tree); err != nil {
		return nil, err
	}
	for name, hook := range tree.Webhooks {
		tree.Paths[webhooks+name] = hook
	}
	tree.Paths[elsewhere] = map[string]any{"get": tree.Elsewhere}
	closeObjects(tree.Paths)
	closeObjects(tree.Rest)
	written, err = yaml.Marshal(tree)
	if err != nil {
		return nil, err
	}
	parsed, err := libopenapi.NewDocument(written)
	if err != nil {
		return nil, err
	}
	model, err := parsed.BuildV3Model()
	if err != nil {
		return nil, err
	}
	return &model.Model, nil
}

// closeObjects says of every object with listed members that it has no others. A part of
// a composition stays open: it lists only what it adds.
func closeObjects(node any) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			closeObjects(child)
		}
	case map[string]any:
		if n["properties"] != nil && n["type"] != nil && n["additionalProperties"] == nil {
			n["additionalProperties"] = false
		}
		for _, child := range n {
			closeObjects(child)
		}
	}
}

// exchange is a request and its answer.
type exchange struct {
	answer

	request *http.Request // its body is not read
	sent    string        // the request's body
}

// check refuses an answer that the contract does not list for its request. The error
// names everything that is wrong.
func (c *document) check(e exchange) error {
	request, head := e.ask(), e.request.Method == http.MethodHead
	if head {
		request.Method = http.MethodGet
	}
	wrong := c.judge(request, e)
	if len(wrong) > 0 && isUnlisted(wrong[0]) || oddPath(e.request.URL) {
		request.Method, request.URL = http.MethodGet, &url.URL{Path: elsewhere}
		wrong = c.judge(request, e)
	}
	if !head && (e.body != "") != (e.header.Get("Content-Type") != "") {
		wrong = append(wrong, &invalid.ValidationError{Message: "a body and a Content-Type go together"})
	}
	return e.problems(fmt.Sprintf("was answered %d %s", e.status, e.body), wrong)
}

func (c *document) judge(request *http.Request, e exchange) []*invalid.ValidationError {
	c.mu.Lock()
	_, wrong := c.validator.ValidateHttpResponse(request, &http.Response{
		StatusCode: e.status, Header: e.header, Body: io.NopCloser(strings.NewReader(e.body)),
	})
	c.mu.Unlock()
	if len(wrong) > 0 {
		return wrong
	}
	item, _, _ := paths.FindPath(request, c.Document, nil)
	listed := item.GetOperations().GetOrZero(strings.ToLower(request.Method)).Responses.Codes.GetOrZero(strconv.Itoa(e.status)).Headers
	names := append(slices.Collect(listed.KeysFromOldest()), // and those of the server, of caches and browsers
		"Cache-Control", "Connection", "Content-Length", "Content-Type", "Date", "X-Content-Type-Options")
	for name := range e.header {
		if !slices.ContainsFunc(names, func(known string) bool { return strings.EqualFold(known, name) }) {
			wrong = append(wrong, &invalid.ValidationError{Message: "a header that is not listed", Reason: name})
		}
	}
	return wrong
}

// checkRequest refuses a request that the contract does not allow. It ignores the API key,
// requests to operations that are not listed, and unlisted headers and query parameters.
func (c *document) checkRequest(e exchange) error {
	request := e.ask()
	for _, values := range request.Header {
		for i := range values {
			values[i] = strings.Trim(values[i], " \t") // is no part of a value
		}
	}
	query := request.URL.Query()
	for name, values := range query {
		if strings.Join(values, "") == "" {
			query.Del(name) // allowEmptyValue
		}
	}
	request.URL.RawQuery = query.Encode()
	c.mu.Lock()
	_, wrong := c.validator.ValidateHttpRequestSync(request)
	c.mu.Unlock()
	if len(wrong) > 0 && isUnlisted(wrong[0]) {
		return nil
	}
	return e.problems(fmt.Sprintf("with %.2000q", e.sent), wrong)
}

// ask is a copy of the request, with its body.
func (e exchange) ask() *http.Request {
	request := &http.Request{Method: e.request.Method, Header: e.request.Header.Clone(), Body: http.NoBody}
	u := *e.request.URL
	request.URL = &u
	if e.sent != "" {
		request.Body = io.NopCloser(strings.NewReader(e.sent))
	} else {
		request.Header.Del("Content-Type")
	}
	return request
}

// oddPath reports whether the validator finds a path where the server has none.
func oddPath(u *url.URL) bool {
	path := u.EscapedPath()
	return path != "/" && strings.HasSuffix(path, "/") || strings.Contains(path, "//")
}

func isUnlisted(w *invalid.ValidationError) bool {
	return w.IsPathMissingError() || w.IsOperationMissingError()
}

// problems is one error for all that is wrong with an exchange, or nil.
func (e exchange) problems(what string, wrong []*invalid.ValidationError) error {
	all := make([]error, 0, len(wrong))
	for _, w := range wrong {
		all = append(all, fmt.Errorf("%s: %s", w.Message, w.Reason))
		for _, s := range w.SchemaValidationErrors {
			all = append(all, fmt.Errorf("/%s: %s", strings.Join(s.InstancePath, "/"), s.Reason))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%s %s %s: %w", e.request.Method, e.request.URL.EscapedPath(), what, errors.Join(all...))
}
