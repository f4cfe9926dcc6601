package e2e_test

import (
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/openapi"
)

// contract is the OpenAPI document, read once.
var contract = sync.OnceValues(func() (*openapi.Contract, error) {
	document, err := os.ReadFile("../internal/httpapi/openapi.yaml")
	if err != nil {
		return nil, err
	}
	return openapi.Read(document, nil)
})

// checkAnswer returns an error for an answer outside the contract, and records it: a
// client that retries would drop it.
func (c *client) checkAnswer(r *http.Request, got answer) error {
	if !c.merchant {
		return nil
	}
	document, err := contract()
	if err != nil {
		return err
	}
	err = document.Check(openapi.Exchange{Request: r, Status: got.Status, Header: got.Header, Body: got.Body})
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.violations = append(c.violations, err)
	}
	return err
}

// checkContract fails if an answer of an api was outside the contract.
func (d *deployment) checkContract(t *testing.T) {
	t.Helper()
	if d.client == nil {
		return
	}
	d.client.mu.Lock()
	defer d.client.mu.Unlock()
	for _, err := range d.client.violations {
		t.Error(err)
	}
}
