package program_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// logger is a program's, and what it has logged.
func logger() (*slog.Logger, *testrun.Log) {
	lines := &testrun.Log{}
	return program.Logger(lines, "test", nil), lines
}

func TestMain_returnsTheExitCode(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error
		code int
		log  string
	}{
		{"a program that ends is a success", nil, 0, ""},
		{"a program that was stopped is a success", fmt.Errorf("wait: %w", context.Canceled), 0, ""},
		{"a program that cannot run says so in one line", errors.New("HTTP_ADDR is odd: set it"), 1, "HTTP_ADDR is odd: set it"},
	} {
		lines := &testrun.Log{}
		code := program.Main(nil, io.Discard, lines, "sample", func(context.Context, *slog.Logger, map[string]string) error { return test.err })
		var line struct{ Level, Msg, Program string }
		if lines.String() != "" {
			testdb.Must(t, json.Unmarshal([]byte(lines.String()), &line)) // one line
		}
		if code != test.code || line.Msg != test.log || test.log != "" && (line.Level != "ERROR" || line.Program != "sample") {
			t.Errorf("%s: exit code %d, logged: %s", test.name, code, lines)
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		code := program.Main(nil, io.Discard, io.Discard, "sample", func(ctx context.Context, _ *slog.Logger, _ map[string]string) error {
			if err := syscall.Kill(os.Getpid(), sig); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Minute):
				return errors.New("the signal did not stop it")
			}
		})
		if code != 0 {
			t.Errorf("exit code %d after %s", code, sig)
		}
	}
}

func TestMain_endsAProgramThatDoesNotStop(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	log, lines := logger()
	hung := make(chan struct{})
	defer close(hung)
	err := program.Bounded(ctx, log, time.Millisecond, func(context.Context, *slog.Logger, map[string]string) error {
		<-hung
		return nil
	})
	testdb.Must(t, err)
	lines.Field(t, "stopped with work unfinished, others take it over", "level")
}

// TestServe: after its stop a server finishes what is in flight, and takes no other connection. A request
// that does not end in time is cut, which is no failure, and what net/http says is a line of the log.
func TestServe(t *testing.T) {
	t.Parallel()
	for path, test := range map[string]struct {
		drain time.Duration
		want  string
	}{"/done": {time.Hour, "done"}, "/slow": {50 * time.Millisecond, ""}} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			log, lines := logger()
			ctx, stop := context.WithCancel(t.Context())
			listener, err := program.Listen(ctx, "HTTP_ADDR", "127.0.0.1:0")
			testdb.Must(t, err)
			refuses := func() bool {
				conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", listener.Addr().String())
				if err == nil {
					_ = conn.Close()
				}
				return errors.Is(err, syscall.ECONNREFUSED) || t.Context().Err() != nil // or the test ended before it was asked
			}
			server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				stop()
				if !testrun.Within(time.Minute, refuses) {
					t.Error("the server takes connections after its stop")
				}
				if r.URL.Path == "/slow" {
					<-r.Context().Done()
				}
				_, _ = io.WriteString(w, "done")
			})}
			ended := make(chan error, 1)
			go func() { ended <- program.ServeWithin(ctx, log, listener, server, test.drain) }()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+path, http.NoBody)
			testdb.Must(t, err)
			var body []byte
			response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
			if err == nil {
				body, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			if string(body) != test.want || (err == nil) != (test.want != "") {
				t.Errorf("it is answered %q, %v", body, err)
			}
			testdb.Must(t, testrun.Receive(t, "the end", ended))
			server.ErrorLog.Print("odd")
			lines.Field(t, "odd", "program")
			if cut := strings.Contains(lines.String(), "requests were cut off"); cut != (test.want == "") {
				t.Errorf("logged: %s", lines)
			}
		})
	}
}
