package e2e_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
)

// eventForwarder forwards the provider's events to the apis, in turn: the sandbox
// starts before them and needs an address. An event that comes too early is refused,
// and the provider repeats it.
type eventForwarder struct {
	server    *httptest.Server
	apis      atomic.Pointer[[]*url.URL]
	delivered atomic.Int64 // events that an api accepted
}

func newEventForwarder(t *testing.T) *eventForwarder {
	t.Helper()
	f := &eventForwarder{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			if apis := f.apis.Load(); apis != nil {
				r.SetURL((*apis)[int(f.delivered.Load())%len(*apis)])
			}
		},
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode == http.StatusOK {
				f.delivered.Add(1)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusServiceUnavailable) },
	}
	f.server = httptest.NewServer(proxy)
	t.Cleanup(f.server.Close)
	return f
}

func (f *eventForwarder) deliverTo(apis []string) {
	var urls []*url.URL
	for _, api := range apis {
		if u, err := url.Parse(api); err == nil {
			urls = append(urls, u)
		}
	}
	f.apis.Store(&urls)
}
