package e2e_test

import (
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/openapi"
)

// contract is what merchants may rely on, read once.
var contract = sync.OnceValues(func() (*openapi.Contract, error) { //nolint:gochecknoglobals // the document of all tests
	document, err := os.ReadFile("../internal/httpapi/openapi.yaml")
	if err != nil {
		return nil, err
	}
	return openapi.Read(document, nil)
})

// hold refuses an answer that is not in the contract, and remembers it: a client
// that tries again would forget.
func (c *client) hold(r *http.Request, got answer) error {
	if !c.merchant {
		return nil
	}
	held, err := contract()
	if err != nil {
		return err
	}
	err = held.Check(openapi.Exchange{Request: r, Status: got.Status, Header: got.Header, Body: got.Body})
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.wrong = append(c.wrong, err)
	}
	return err
}

// contracted fails where an answer of an api was not in the contract.
func (w *world) contracted(t *testing.T) {
	t.Helper()
	if w.client == nil {
		return
	}
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	for _, err := range w.client.wrong {
		t.Error(err)
	}
}

// TestTheContractIsServed: an api serves the contract that these tests hold it to,
// and its answers are seen to be held to it.
func TestTheContractIsServed(t *testing.T) {
	t.Parallel()
	long(t)
	w := newWorld(t, setup{apis: 1})
	document, err := os.ReadFile("../internal/httpapi/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.client.do(t.Context(), request{method: http.MethodGet, path: "/openapi.yaml"})
	if err != nil || string(got.Body) != string(document) {
		t.Errorf("answered %d with %d bytes, want %d: %v", got.Status, len(got.Body), len(document), err)
	}
	stranger := newClient(w.client.apis, w.keys.api)
	asked, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.apis[0].URL()+"/v1/balances", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	got.Header = http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"1"}}
	got.Body = []byte(`{"data":[],"as_of_position":"0"}`)
	if err := stranger.hold(asked, got); err == nil || len(stranger.wrong) != 1 {
		t.Errorf("an answer that is not in the contract is found: %v, %v", err, stranger.wrong)
	}
}
