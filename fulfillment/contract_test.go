package fulfillment_test

import (
	"net/http"
	"os"
	"sync"

	"github.com/payonce/payonce/internal/openapi"
)

// contract is what merchants may rely on, read once.
var contract = sync.OnceValues(func() (*openapi.Contract, error) {
	document, err := os.ReadFile("../internal/httpapi/openapi.yaml")
	if err != nil {
		return nil, err
	}
	return openapi.Read(document, nil)
})

// contracted refuses a delivery to a shop that is not the contract's webhook.
func contracted(header http.Header, body []byte) error {
	c, err := contract()
	if err != nil {
		return err
	}
	return c.CheckWebhook("outcome", header, body)
}
