package httpapi_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	invalid "github.com/pb33f/libopenapi-validator/errors"
	"github.com/pb33f/libopenapi-validator/paths"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"go.yaml.in/yaml/v3"

	"github.com/payonce/payonce/internal/testdb"
)

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
