package sandbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

// fixture is a sandbox, and a client that sends each request once.
type fixture struct {
	t      testing.TB
	url    string
	client *http.Client
	it     *sandbox.Sandbox
	stop   context.CancelFunc // of the sandbox
	ahead  atomic.Int64       // of its clock, in nanoseconds
}

// start serves a sandbox; its events are delivered while the test runs.
func start(tb testing.TB, o sandbox.Options) *fixture {
	tb.Helper()
	f := &fixture{t: tb}
	// It opens a connection per request: on a used one net/http would silently repeat a POST that carries
	// an Idempotency-Key.
	f.client = &http.Client{Timeout: testrun.Stall, Transport: &http.Transport{DisableKeepAlives: true}}
	o.Now = func() time.Time { return time.Now().Add(time.Duration(f.ahead.Load())) }
	ctx, stop := context.WithCancel(tb.Context())
	it, err := sandbox.New(ctx, o)
	testrun.Must(tb, err)
	server := httptest.NewServer(it)
	tb.Cleanup(func() {
		server.Close()
		if err := it.Close(); !errors.Is(err, os.ErrClosed) { // by a test
			testrun.Must(tb, err)
		}
	})
	f.url, f.it, f.stop = server.URL, it, stop
	return f
}

// pass lets time pass for the sandbox.
func (f *fixture) pass(d time.Duration) { f.ahead.Add(int64(d)) }

// answered is an answer.
type answered struct {
	status int
	header http.Header
	raw    string
	object map[string]any
}

// at is the value at a dotted path, of which a part may be an index or the size of a list; nil if there is none.
func (a answered) at(path string) any {
	var v any = a.object
	for name := range strings.SplitSeq(path, ".") {
		switch of := v.(type) {
		case map[string]any:
			v = of[name]
		case []any:
			v = len(of)
			if name != "size" {
				n, err := strconv.Atoi(name)
				if err != nil || n >= len(of) {
					return nil
				}
				v = of[n]
			}
		default:
			return nil
		}
	}
	return v
}

func (a answered) text(path string) string {
	s, _ := a.at(path).(string)
	return s
}

// lacks returns the first of some members, PATH=VALUE, that the answer has not. A value is written as JSON, but for a text.
func (a answered) lacks(members ...string) string {
	for _, member := range members {
		path, want, _ := strings.Cut(member, "=")
		value := a.at(path)
		got, is := value.(string)
		if !is {
			text, _ := json.Marshal(value) // it was JSON
			got = string(text)
		}
		if got != want {
			return path + " is " + got + ", want " + want
		}
	}
	return ""
}

// want compares the status and some members.
func (a answered) want(tb testing.TB, status int, members ...string) {
	tb.Helper()
	if lacks := a.lacks(members...); lacks != "" || a.status != status {
		tb.Errorf("status %d, want %d; %s\n%s", a.status, status, lacks, a.raw)
	}
}

// do sends one request; an error means that no whole answer came.
func (f *fixture) do(method, path, body string, header http.Header) (a answered, err error) {
	request, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	request.Header = header
	r, err := harness.Exchange(f.client, request)
	a = answered{status: r.Status, header: r.Header, raw: string(r.Body)}
	_ = json.Unmarshal(r.Body, &a.object) // what is deleted has no object
	return a, err
}

func (f *fixture) must(a answered, err error) answered {
	f.t.Helper()
	testrun.Must(f.t, err)
	return a
}

// bearer is the header of a call of the provider about the charge ch_1.
func bearer() http.Header {
	return http.Header{"Authorization": {"Bearer sk_test_1"}, "Payonce-Charge": {"ch_1"}}
}

// tryPost posts a form to the provider. A pair name=value is a parameter or, of a name with capitals, a header.
func (f *fixture) tryPost(path string, pairs ...string) (answered, error) {
	form, header := url.Values{}, bearer()
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		if name != strings.ToLower(name) {
			header.Set(name, value)
		} else {
			form.Add(name, value)
		}
	}
	return f.do(http.MethodPost, path, form.Encode(), header)
}

func (f *fixture) post(path string, pairs ...string) answered {
	f.t.Helper()
	return f.must(f.tryPost(path, pairs...))
}

func (f *fixture) get(path string) answered {
	f.t.Helper()
	return f.must(f.do(http.MethodGet, path, "", bearer()))
}

// control sends a control call.
func (f *fixture) control(method, path, body string) answered {
	f.t.Helper()
	return f.must(f.do(method, path, body, http.Header{}))
}

func (f *fixture) faults(plan string) {
	f.t.Helper()
	f.control(http.MethodPut, "/faults", plan).want(f.t, http.StatusOK)
}

const (
	intents = "/v1/payment_intents"
	key     = "Idempotency-Key=k"
)

// eur are the parameters of a creation, and more.
func eur(amount string, more ...string) []string {
	return append([]string{"amount=" + amount, "currency=eur"}, more...)
}

// create makes an intent of 1000 eur for reference ch_1.
func (f *fixture) create(method string) string {
	f.t.Helper()
	pairs := eur("1000")
	if method != "" {
		pairs = append(pairs, "payment_method="+method)
	}
	a := f.post(intents, pairs...)
	a.want(f.t, http.StatusOK)
	return a.text("id")
}

func confirmation(id string) string { return intents + "/" + id + "/confirm" }

// captured makes an intent of 1000 eur and confirms it.
func (f *fixture) captured() string {
	f.t.Helper()
	id := f.create("pm_card_visa")
	f.post(confirmation(id)).want(f.t, http.StatusOK, "status=succeeded")
	return id
}

// books are the sandbox's own.
func (f *fixture) books() harness.Books {
	f.t.Helper()
	b, err := harness.Sandbox(f.url).Books(f.t.Context())
	testrun.Must(f.t, err)
	return b
}
