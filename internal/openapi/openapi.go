// Package openapi holds HTTP exchanges to a contract, an OpenAPI 3.1 document. Only
// tests use it: it wraps libopenapi-validator, and no program checks its exchanges by a
// contract at run time.
//
// Beyond the standard,
//   - a header, a member or a parameter of a query that is not listed is an error;
//   - x-elsewhere lists the answers at paths and methods that are not listed;
//   - HEAD is answered like GET, without a body.
//
// The validator lets pass what a contract leaves out, and the tests of several packages refuse that.
package openapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	invalid "github.com/pb33f/libopenapi-validator/errors"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"go.yaml.in/yaml/v3"
)

// Contract is an OpenAPI document. It is safe for concurrent use.
type Contract struct {
	// Model is the document, in which x-elsewhere and each webhook are paths too.
	Model *v3.Document

	mu        sync.Mutex // the validator renders schemas, which is not safe for concurrent use
	validator validator.Validator
}

// Paths of the Model that are none of the document.
const (
	Elsewhere = "/x-elsewhere"
	Webhooks  = "/x-webhooks/"
)

// transport are response headers that belong to the server, to caches or to browsers, or that
// any answer may have.
var transport = []string{
	"Accept-Ranges", "Access-Control-Allow-Headers", "Access-Control-Allow-Methods", "Access-Control-Allow-Origin",
	"Access-Control-Expose-Headers", "Access-Control-Max-Age", "Cache-Control", "Connection", "Content-Encoding",
	"Content-Length", "Content-Type", "Date", "Ratelimit", "Ratelimit-Policy", "Transfer-Encoding", "Vary", "X-Content-Type-Options",
}

// Read reads a contract. A format that JSON Schema does not define is checked by the
// function that formats has for its name.
func Read(document []byte, formats map[string]func(value any) error) (*Contract, error) {
	model, err := readModel(document)
	if err != nil {
		return nil, fmt.Errorf("read a contract: %w", err)
	}
	options := []config.Option{
		config.WithFormatAssertions(), config.WithStrictMode(), config.WithStrictIgnoredHeaders(transport...),
		config.WithoutSecurityValidation(),
	}
	for name, check := range formats {
		options = append(options, config.WithCustomFormat(name, check))
	}
	own, err := readModel(document) // rendering writes to the model, which callers read
	if err != nil {
		return nil, fmt.Errorf("read a contract: %w", err)
	}
	return &Contract{Model: model, validator: validator.NewValidatorFromV3Model(own, options...)}, nil
}

func readModel(document []byte) (*v3.Document, error) {
	var tree map[string]any
	if err := yaml.Unmarshal(document, &tree); err != nil {
		return nil, err
	}
	paths, ok := tree["paths"].(map[string]any)
	if !ok {
		return nil, errors.New("it has no paths")
	}
	closeObjects(tree)
	if answers, ok := tree["x-elsewhere"]; ok {
		paths[Elsewhere] = map[string]any{"get": answers}
	}
	hooks, _ := tree["webhooks"].(map[string]any)
	for name, hook := range hooks {
		paths[Webhooks+name] = hook
	}
	written, err := yaml.Marshal(tree)
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

// Exchange is a request and its answer.
type Exchange struct {
	Request *http.Request // its body is not read
	Sent    []byte        // the request's body
	Status  int
	Header  http.Header
	Body    []byte
}

// Check refuses an answer that the contract does not list for its request. The error
// names everything that is wrong.
func (c *Contract) Check(e Exchange) error {
	request, head := ask(e), e.Request.Method == http.MethodHead
	if head {
		request.Method = http.MethodGet
	}
	wrong := c.judge(request, e)
	if len(wrong) > 0 && isUnlisted(wrong[0]) || oddPath(e.Request.URL) {
		request.Method, request.URL = http.MethodGet, &url.URL{Path: Elsewhere}
		wrong = c.judge(request, e)
	}
	if !head && (len(e.Body) > 0) != (e.Header.Get("Content-Type") != "") {
		wrong = append(wrong, &invalid.ValidationError{Message: "a body and a Content-Type go together"})
	}
	return problems(e, fmt.Sprintf("was answered %d %s", e.Status, e.Body), wrong)
}

func (c *Contract) judge(request *http.Request, e Exchange) []*invalid.ValidationError {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, wrong := c.validator.ValidateHttpResponse(request, &http.Response{
		StatusCode: e.Status, Header: e.Header, Body: io.NopCloser(bytes.NewReader(e.Body)),
	})
	return without(wrong, "undeclared-property")
}

// CheckRequest refuses a request that the contract does not allow. It ignores the API key,
// requests to operations that are not listed, and unlisted headers and query parameters.
func (c *Contract) CheckRequest(e Exchange) error {
	request := ask(e)
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
	wrong = without(wrong, "undeclared-property", "undeclared-header", "undeclared-query-param")
	return problems(e, fmt.Sprintf("with %.2000q", e.Sent), wrong)
}

// CheckWebhook refuses a request that is not the contract's webhook of this name.
func (c *Contract) CheckWebhook(name string, header http.Header, body []byte) error {
	request := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: Webhooks + name}, Header: header}
	if c.Model.Paths.PathItems.GetOrZero(request.URL.Path) == nil {
		return fmt.Errorf("the contract has no webhook %s", name)
	}
	return c.CheckRequest(Exchange{Request: request, Sent: body})
}

// ask is a copy of an exchange's request, with its body.
func ask(e Exchange) *http.Request {
	request := &http.Request{Method: e.Request.Method, Header: e.Request.Header.Clone(), Body: http.NoBody}
	u := *e.Request.URL
	request.URL = &u
	if len(e.Sent) > 0 {
		request.Body = io.NopCloser(bytes.NewReader(e.Sent))
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

// without leaves out findings of the strict mode. It does not see the members of a part of
// a composition, so objects are closed by closeObjects.
func without(wrong []*invalid.ValidationError, findings ...string) []*invalid.ValidationError {
	return slices.DeleteFunc(wrong, func(w *invalid.ValidationError) bool { return slices.Contains(findings, w.ValidationSubType) })
}

func isUnlisted(w *invalid.ValidationError) bool {
	return w.IsPathMissingError() || w.IsOperationMissingError()
}

// problems is one error for all that is wrong with an exchange, or nil.
func problems(e Exchange, what string, wrong []*invalid.ValidationError) error {
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
	return fmt.Errorf("%s %s %s: %w", e.Request.Method, e.Request.URL.EscapedPath(), what, errors.Join(all...))
}
