package openapi

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// CheckWebhook refuses a request that a server sends and that is not the webhook
// of this name: a header that must be there is missing or wrong, or the body is.
func (c *Contract) CheckWebhook(name string, header http.Header, body []byte) error {
	at, webhook := c.object("/webhooks/" + escape(name) + "/post")
	if webhook == nil {
		return fmt.Errorf("no webhook %s is listed", name)
	}
	var wrong []error
	parameters, _ := webhook["parameters"].([]any)
	for i, listed := range parameters {
		parameter, _ := listed.(map[string]any)
		if parameter["in"] != "header" {
			continue
		}
		called := fmt.Sprint(parameter["name"])
		if header.Get(called) == "" {
			if parameter["required"] == true {
				wrong = append(wrong, fmt.Errorf("the header %s is missing", called))
			}
			continue
		}
		schema, err := c.Schema(fmt.Sprintf("%s/parameters/%d/schema", at, i))
		if err == nil {
			err = schema.Validate(header.Get(called))
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("the header %s: %w", called, err))
		}
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err == nil {
		err = c.validate(at+"/requestBody/content/application~1json/schema", value)
	}
	if err != nil {
		wrong = append(wrong, fmt.Errorf("the body %s: %w", body, err))
	}
	return errors.Join(wrong...)
}
