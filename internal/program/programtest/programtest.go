// Package programtest runs a program in the process of a test.
package programtest

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/program"
)

// Run is a program as its main function calls it: it ends with ctx.
type Run func(ctx context.Context, log *slog.Logger, now func() time.Time) error

// Running is a program that was started.
type Running struct {
	URL string // that it listens on
	Log *await.Log

	// Stop stops the program, which must end without an error. The end of the test calls
	// it too.
	Stop func()
}

// Start runs a program with the settings of the environment, and returns when it listens.
func Start(t *testing.T, run Run) *Running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, ended := &Running{Log: &await.Log{}}, make(chan error, 1)
	go func() { ended <- run(ctx, program.Logger(r.Log, "test"), time.Now) }()
	r.Stop = sync.OnceFunc(func() {
		cancel()
		if err := await.Receive(t, "the end of the program", ended); err != nil {
			t.Errorf("the program ended with %v", err)
		}
	})
	t.Cleanup(r.Stop)
	await.Progress(t, "the program listens", func() (string, bool) {
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

// Refusal runs a program that must not start, and returns its error and its log.
func Refusal(t *testing.T, run Run) (refusal, log string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Stall)
	defer cancel()
	lines := &await.Log{}
	err := run(ctx, program.Logger(lines, "test"), time.Now)
	if err == nil || ctx.Err() != nil {
		t.Fatalf("the program is not refused: %v\n%s", err, lines)
	}
	return err.Error(), lines.String()
}

// Setenv sets variables and unsets the other settings of a program, until the test ends.
// Settings is the type that program.Load fills.
func Setenv[Settings any](t *testing.T, variables map[string]string) {
	t.Helper()
	for field := range reflect.TypeFor[Settings]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("env"), ",")
		if name == "" {
			continue
		}
		t.Setenv(name, variables[name])
		if _, set := variables[name]; !set {
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Get requests a path of a program.
func (r *Running) Get(t *testing.T, path string) (status int, body string) {
	t.Helper()
	response, body := r.Do(t, http.MethodGet, path, "", nil)
	return response.StatusCode, body
}

// Do sends a request to a program, on a connection of its own.
func (r *Running) Do(t *testing.T, method, path, body string, header map[string]string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.GetBody = nil // a request that is sent twice is the test's decision
	for name, value := range header {
		request.Header.Set(name, value)
	}
	client := &http.Client{Timeout: await.Stall, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}
