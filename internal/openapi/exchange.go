package openapi

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Exchange is a request and its answer.
type Exchange struct {
	Request *http.Request // its body is not read
	Sent    []byte        // the body
	Status  int
	Header  http.Header
	Body    []byte
}

// Check refuses an answer that is not in the contract. The error holds all that
// is wrong with it.
func (c *Contract) Check(e Exchange) error {
	at := "/x-elsewhere"
	if o, listed := c.operation(e.Request); listed {
		at = o.pointer
	}
	at, response := c.response(at+"/responses", e.Status)
	var err error
	if response == nil {
		err = errors.New("the status is not listed")
	} else {
		err = errors.Join(c.checkHeader(at, response, e.Header), c.checkBody(at, response, e))
	}
	if err != nil {
		return fmt.Errorf("%s %s was answered %d %s: %w", e.Request.Method, e.Request.URL.EscapedPath(), e.Status, e.Body, err)
	}
	return nil
}

// response finds a status, or else its class.
func (c *Contract) response(responses string, status int) (at string, node map[string]any) {
	for _, name := range []string{strconv.Itoa(status), strconv.Itoa(status/100) + "XX", "default"} {
		if at, node = c.object(responses + "/" + name); node != nil {
			return at, node
		}
	}
	return "", nil
}

// transport tells the headers that say nothing of the API: they are the server's,
// a cache's or a browser's.
func transport(name string) bool {
	return strings.HasPrefix(name, "Access-Control-") || slices.Contains([]string{
		"Cache-Control", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Date", "Transfer-Encoding",
		"Vary", "X-Content-Type-Options",
	}, name)
}

func (c *Contract) checkHeader(at string, response map[string]any, header http.Header) error {
	var wrong []error
	listed, _ := response["headers"].(map[string]any)
	for name := range header {
		known := slices.ContainsFunc(keys(listed), func(l string) bool { return http.CanonicalHeaderKey(l) == name })
		if !known && !transport(name) {
			wrong = append(wrong, fmt.Errorf("the header %s is not listed", name))
		}
	}
	for name := range listed {
		pointer, node := c.object(at + "/headers/" + escape(name))
		values := header.Values(name)
		if required, _ := node["required"].(bool); required && len(values) == 0 {
			wrong = append(wrong, fmt.Errorf("the header %s is missing", name))
		}
		for _, value := range values {
			if err := c.validate(pointer+"/schema", value); err != nil {
				wrong = append(wrong, fmt.Errorf("the header %s is %q: %w", name, value, err))
			}
		}
	}
	return errors.Join(wrong...)
}

func (c *Contract) checkBody(at string, response map[string]any, e Exchange) error {
	content, _ := response["content"].(map[string]any)
	if len(content) == 0 {
		if len(e.Body) > 0 {
			return errors.New("a body is not listed")
		}
		return nil
	}
	media, _, err := mime.ParseMediaType(e.Header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("the media type: %w", err)
	}
	if content[media] == nil {
		return fmt.Errorf("the media type %s is not listed", media)
	}
	if e.Request.Method == http.MethodHead || !isJSON(media) {
		return nil
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(e.Body))
	if err != nil {
		return fmt.Errorf("the body: %w", err)
	}
	return c.validate(at+"/content/"+escape(media)+"/schema", value)
}

// validate holds a value to the schema at a pointer, which may be a reference.
func (c *Contract) validate(pointer string, value any) error {
	at, _, found := c.find(pointer)
	if !found {
		return fmt.Errorf("there is no schema at %s", pointer)
	}
	schema, err := c.Schema(at)
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

func keys(m map[string]any) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	return names
}
