package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/traffic"
)

// once keeps net/http from retrying a request with an Idempotency-Key when a reused
// connection is cut: the test must see what is unanswered.
type once struct{ http.RoundTripper }

func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.GetBody = nil
	return o.RoundTripper.RoundTrip(r)
}

func newTransport() *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}
}

// client sends requests for one merchant, or for several in turn. It records the
// keys that it sent and what was accepted under them.
type client struct {
	apis    []string
	tenants tenants
	http    *http.Client
	turn    atomic.Int64
	retries atomic.Int64 // of all requests

	merchant bool // talks to apis, which are held to the contract

	mu         sync.Mutex
	keys       []string
	accepted   map[string]answer
	violations []error // of the contract
}

// requestPatience is long: a program that dies closes its connections, so a client
// waits only for a machine that is busy.
const requestPatience = await.Stall

func newClient(apis []string, apiKeys ...string) *client {
	return &client{
		apis: apis, tenants: tenants{apiKeys: apiKeys, of: map[string]string{}}, accepted: map[string]answer{}, merchant: true,
		http: &http.Client{Transport: once{newTransport()}, Timeout: requestPatience},
	}
}

// request is what a client sends. Zero values: a POST of a charge with the
// client's key, to the apis in turn.
type request struct {
	method string
	path   string
	key    string // none where empty
	body   []byte
	header http.Header // wins over what is usual; a name without values is left out
	api    string
}

// answer is what came back, whole.
type answer struct {
	Status int
	Header http.Header
	Body   []byte
}

func (c *client) do(ctx context.Context, r request) (answer, error) {
	method, path, api := r.method, r.path, r.api
	if method == "" {
		method = http.MethodPost
	}
	if path == "" {
		path = "/v1/charges"
	}
	if api == "" {
		api = c.apis[int(c.turn.Add(1))%len(c.apis)]
	}
	var body io.Reader = http.NoBody
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	request, err := http.NewRequestWithContext(ctx, method, api+path, body)
	if err != nil {
		return answer{}, err
	}
	key := r.key
	if given := r.header["Idempotency-Key"]; key == "" && len(given) == 1 {
		key = given[0]
	}
	speaker := c.tenants.speaker(path, key)
	request.Header.Set("Authorization", "Bearer "+speaker)
	if r.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		request.Header.Set("Idempotency-Key", r.key)
		c.mu.Lock()
		c.keys = append(c.keys, r.key)
		c.mu.Unlock()
	}
	for name, values := range r.header {
		if request.Header[name] = values; len(values) == 0 {
			delete(request.Header, name)
		}
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	got := answer{Status: response.StatusCode, Header: response.Header}
	if got.Body, err = io.ReadAll(response.Body); err != nil {
		return got, err
	}
	c.tenants.met(got.Header.Get("Location"), strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer "))
	return got, c.checkAnswer(request, got)
}

// try sends a request once. An accepted answer must equal the first one under its
// key.
func (c *client) try(ctx context.Context, r request) (answer, error) {
	got, err := c.do(ctx, r)
	if err != nil || got.Status != http.StatusAccepted {
		return got, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first, known := c.accepted[r.key]
	if !known {
		c.accepted[r.key] = got
		return got, nil
	}
	if complaint := differ(first, got); complaint != "" {
		return got, fmt.Errorf("%s: %s", r.key, complaint)
	}
	return got, nil
}

// adopt records what other traffic of the merchant was answered, for the checks at
// the end.
func (c *client) adopt(records []traffic.Record) {
	for _, r := range records {
		c.keys = append(c.keys, r.Charge.Key)
		answers := slices.Clone(r.Answers)
		for _, refund := range r.Refunds {
			c.keys = append(c.keys, refund.Refund.Key)
			answers = append(answers, refund.Answers...)
		}
		for _, a := range answers {
			if a.Status == http.StatusAccepted {
				c.accepted[a.Location] = answer{Body: []byte(a.Body)}
			}
		}
	}
}

// insist retries a request under the same key until it has a definitive answer: it
// retries what is unanswered, unavailable or in flight. It returns how often.
func (c *client) insist(ctx context.Context, r request) (got answer, retries int, err error) {
	ctx, cancel := context.WithTimeout(ctx, await.Stall)
	defer cancel()
	for ; ; retries++ {
		got, err = c.try(ctx, r)
		if err == nil && definitive(got) {
			return got, retries, nil
		}
		if ctx.Err() != nil {
			return got, retries, fmt.Errorf("no definitive answer to %s in %s, last %d %s: %w", r.key, await.Stall, got.Status, got.Body, err)
		}
		c.retries.Add(1)
		pause(ctx, 50*time.Millisecond)
	}
}

// do sends a request once.
func (d *deployment) do(t *testing.T, r request) answer {
	t.Helper()
	got, err := d.client.do(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// get reads a path and decodes its JSON.
func (d *deployment) get(t *testing.T, path string, into any) {
	t.Helper()
	got := d.do(t, request{method: http.MethodGet, path: path})
	if err := json.Unmarshal(got.Body, into); err != nil || got.Status != http.StatusOK {
		t.Fatalf("%s is answered %d %s: %v", path, got.Status, got.Body, err)
	}
}

// insist sends a request until it has a definitive answer.
func (d *deployment) insist(t *testing.T, r request) answer {
	t.Helper()
	got, _, err := d.client.insist(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func definitive(a answer) bool {
	switch a.Status {
	case http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	default:
		return a.Status < http.StatusInternalServerError
	}
}

// problem is an RFC 9457 problem as payonce sends it.
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Instance  string `json:"instance"`
	Retryable bool   `json:"retryable"`
	RetryWith string `json:"retry_with"`
}

// mustBeProblem checks that an answer is a problem of this status and type.
func mustBeProblem(t *testing.T, got answer, status int, kind string) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal(got.Body, &p); err != nil {
		t.Errorf("answered %d %q, which is no problem: %v", got.Status, got.Body, err)
		return p
	}
	if got.Status != status || p.Status != status || p.Type != "/problems/"+kind {
		t.Errorf("answered %d %s, want %d /problems/%s", got.Status, got.Body, status, kind)
	}
	if media := got.Header.Get("Content-Type"); media != "application/problem+json" {
		t.Errorf("a problem is sent as %q", media)
	}
	if p.Title == "" {
		t.Errorf("a problem without a title: %s", got.Body)
	}
	return p
}
