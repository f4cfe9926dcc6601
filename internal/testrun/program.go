package testrun

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// Run is a program: it works until ctx ends, with the settings of environ.
type Run = func(ctx context.Context, log *slog.Logger, environ map[string]string) error

// Running is a program that runs in the process of a test.
type Running struct {
	URL string // that it listens on
	Log *Log

	// Stop stops the program, which must end without an error. The end of the test calls
	// it too.
	Stop func()
}

// Start runs a program and returns when it listens.
func Start(t *testing.T, run Run, environ map[string]string) *Running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, ended := &Running{Log: &Log{}}, make(chan error, 1)
	go func() { ended <- run(ctx, logger(r.Log), environ) }()
	r.Stop = sync.OnceFunc(func() {
		cancel()
		if err := Receive(t, "the end of the program", ended); err != nil {
			t.Errorf("the program ended with %v", err)
		}
		if t.Failed() {
			t.Logf("the program logged:\n%s", r.Log)
		}
	})
	t.Cleanup(r.Stop)
	Progress(t, "the program listens", func() (string, bool) {
		select {
		case err := <-ended:
			ended <- nil // for Stop
			t.Fatalf("the program does not start: %v\n%s", err, r.Log)
		default:
		}
		addr, found := r.Log.Find(t, "listening", "addr")
		r.URL = "http://" + addr
		return r.Log.String(), found
	})
	return r
}

// Refusal runs a program that must not start. Its error must say what is given, and neither
// it nor the log may show a secret: tests spell those hunter2.
func Refusal(t *testing.T, run Run, environ map[string]string, says string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Stall)
	defer cancel()
	lines := &Log{}
	err := run(ctx, logger(lines), environ)
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), says) {
		t.Fatalf("the program is not refused with %q: %v\n%s", says, err, lines)
	}
	if strings.Contains(err.Error()+lines.String(), "hunter2") {
		t.Errorf("a secret is shown: %v\n%s", err, lines)
	}
}

// Response is a response that was read.
type Response struct {
	Status int
	Header http.Header
	Body   string
}

// Get requests a path of a program.
func (r *Running) Get(t *testing.T, path string) Response {
	t.Helper()
	return r.Do(t, http.MethodGet, path, "", nil)
}

// Do sends a request to a program, on a connection of its own.
func (r *Running) Do(t *testing.T, method, path, body string, header map[string]string) Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.URL+path, strings.NewReader(body))
	Must(t, err)
	request.GetBody = nil // whether a request is sent twice is the test's decision
	for name, value := range header {
		request.Header.Set(name, value)
	}
	client := &http.Client{Timeout: Stall, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	Must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	Must(t, err)
	return Response{response.StatusCode, response.Header, string(text)}
}

func logger(to *Log) *slog.Logger { return slog.New(slog.NewJSONHandler(to, nil)) }
