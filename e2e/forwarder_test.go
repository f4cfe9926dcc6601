package e2e_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// forwarder carries the provider's events to the apis, in turn. The sandbox starts
// before them, and his address is known before theirs.
type eventForwarder struct {
	server *httptest.Server

	mu    sync.Mutex
	apis  []string
	count int // events that an api took
}

func newEventForwarder(t *testing.T) *eventForwarder {
	t.Helper()
	p := &eventForwarder{}
	p.server = httptest.NewServer(p)
	t.Cleanup(p.server.Close)
	return p
}

func (p *eventForwarder) url() string { return p.server.URL + "/v1/webhooks/stripe" }

func (p *eventForwarder) deliverTo(apis []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.apis = apis
}

func (p *eventForwarder) delivered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// ServeHTTP carries one event. Where no api is there it is refused, and comes
// again.
func (p *eventForwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	p.mu.Lock()
	api := ""
	if len(p.apis) > 0 {
		api = p.apis[p.count%len(p.apis)]
	}
	p.mu.Unlock()
	if err != nil || api == "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	request, err := http.NewRequestWithContext(r.Context(), http.MethodPost, api+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	request.Header = r.Header.Clone()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	_ = response.Body.Close()
	if response.StatusCode == http.StatusOK {
		p.mu.Lock()
		p.count++
		p.mu.Unlock()
	}
	w.WriteHeader(response.StatusCode)
}
