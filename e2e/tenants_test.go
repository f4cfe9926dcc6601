package e2e_test

import (
	"bytes"
	"context"
	"net/http"
	"regexp"
	"sync"
	"testing"
)

// tenants are the merchants as which a client speaks, by their API keys: in turn
// for new idempotency keys, and as the one of before for whatever follows.
type tenants struct {
	mu      sync.Mutex
	apiKeys []string
	turn    int
	of      map[string]string // idempotency key or charge → API key
}

// pathOf finds what a path is about.
var pathOf = regexp.MustCompile(`^/v1/(?:charges|idempotency-keys)/([^/?]+)`)

// speaker is the API key for a request. An unknown charge is the first one's.
func (t *tenants) speaker(path, key string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if about := pathOf.FindStringSubmatch(path); about != nil {
		key = about[1]
	} else if path != "/v1/charges" || key == "" {
		return t.apiKeys[0]
	} else if t.of[key] == "" {
		t.of[key] = t.apiKeys[t.turn%len(t.apiKeys)]
		t.turn++
	}
	if known := t.of[key]; known != "" {
		return known
	}
	return t.apiKeys[0]
}

// met remembers whose the charge is that an answer leads to.
func (t *tenants) met(location, apiKey string) {
	if about := pathOf.FindStringSubmatch(location); about != nil {
		t.remember(about[1], apiKey)
	}
}

func (t *tenants) remember(what, apiKey string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of[what] = apiKey
}

// checkTenants requires that neither merchant is shown a charge of the other.
func (d *deployment) checkTenants(t *testing.T) {
	t.Helper()
	if d.oneMerchant || len(d.Losses()) > 0 {
		return
	}
	for i, name := range []string{merchant, neighbour} {
		own, other := d.client.tenants.apiKeys[i], d.client.tenants.apiKeys[1-i]
		for _, id := range rows[string](t, d, `select distinct stream_id from ledger_events where merchant_id = $1 limit 3`, name) {
			path := "/v1/charges/" + id
			if got := d.ask(t, request{method: http.MethodGet, path: path}, own); got.Status != http.StatusOK {
				t.Errorf("%s of %s is answered %d %s", path, name, got.Status, got.Body)
			}
			for _, r := range []request{
				{method: http.MethodGet, path: path},
				{method: http.MethodGet, path: path + "/events"},
				{method: http.MethodGet, path: path + "/refunds"},
				{path: path + "/cancel", key: "key-" + unique(), body: []byte("{}")},
				{path: path + "/refunds", key: "key-" + unique(), body: []byte("{}")},
			} {
				mustBeProblem(t, d.ask(t, r, other), http.StatusNotFound, "not-found")
			}
			if got := d.ask(t, request{method: http.MethodGet, path: "/v1/charges"}, other); bytes.Contains(got.Body, []byte(id)) {
				t.Errorf("the list of the other merchant has %s of %s", id, name)
			}
		}
	}
}

// merchantOf is the merchant of a charge.
func (d *deployment) merchantOf(t *testing.T, id string) string {
	t.Helper()
	return row[string](t, d, `select merchant_id from ledger_events where stream_id = $1 and version = 1`, id)
}

// ask sends a request as a merchant, by its API key.
func (d *deployment) ask(t *testing.T, r request, apiKey string) answer {
	t.Helper()
	r.header = http.Header{"Authorization": {"Bearer " + apiKey}}
	got, err := d.client.insist(context.WithoutCancel(t.Context()), r)
	if err != nil {
		t.Error(err)
	}
	return got
}
