package idempotency_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
)

const asForm = "application/x-www-form-urlencoded"

// seen is what a client sees of a response.
type seen struct {
	Status int
	Header http.Header
	Body   string
	Err    error
}

// send sends a form in chunks, under the key k1.
func send(ctx context.Context, t *testing.T, method, to string) seen {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, to, io.MultiReader(strings.NewReader("a=1")))
	testdb.Must(t, err)
	r.Header.Set("Idempotency-Key", "k1")
	r.Header.Set("Content-Type", asForm)
	response, err := http.DefaultTransport.RoundTrip(r) // without redirects
	if err != nil {
		return seen{Err: err}
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close() // it was read
	response.Header.Del("Date")
	response.Header.Del("Idempotent-Replayed")
	return seen{response.StatusCode, response.Header, string(body), err}
}

func TestMiddleware_changesNothingThatAClientSees(t *testing.T) {
	t.Parallel()
	write := func(w http.ResponseWriter, text string) { _, _ = io.WriteString(w, text) }
	db := testdb.Reused(t)
	for name, handler := range map[string]http.HandlerFunc{
		"a body without a type": func(w http.ResponseWriter, _ *http.Request) { write(w, "<html>") },
		"a status alone":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
		"no content, with a body": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			write(w, "x")
		},
		"not modified, with a body": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotModified)
			write(w, "x")
		},
		"a second status": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			w.WriteHeader(http.StatusNotFound)
		},
		"a status after the body": func(w http.ResponseWriter, _ *http.Request) {
			write(w, "x")
			w.WriteHeader(http.StatusNotFound)
		},
		"an early hint": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusCreated)
		},
		"a header after the status": func(w http.ResponseWriter, _ *http.Request) {
			headers := w.Header()
			w.WriteHeader(http.StatusCreated)
			w.Header().Set("Location", "/late")
			headers.Set("Location", "/late")
		},
		"a header with a line break": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/a\r\nX-B: c")
			w.WriteHeader(http.StatusCreated)
		},
		"a compressed body": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			w.Header().Set("Content-Type", "text/plain")
			write(w, "\x01\x02\x03")
		},
		"a length of its own": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			write(w, "abc")
		},
		"a large body": func(w http.ResponseWriter, _ *http.Request) {
			for range 1 << 10 {
				write(w, strings.Repeat("x", 1<<10))
			}
		},
		"a form": func(w http.ResponseWriter, r *http.Request) { write(w, r.FormValue("a")) },
		"a body read late": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.Copy(w, r.Body)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusSeeOther) },
		"an abort after a part": func(w http.ResponseWriter, _ *http.Request) {
			write(w, "x")
			panic(http.ErrAbortHandler)
		},
	} {
		for _, method := range []string{http.MethodPost, http.MethodHead} {
			t.Run(name+", "+method, func(t *testing.T) {
				t.Parallel()
				plain := httptest.NewServer(handler)
				t.Cleanup(plain.Close)
				scope := func(*http.Request) string { return name + method }
				keyed := httptest.NewServer(idempotency.Middleware(db.Pool(), scope, options{Methods: []string{method}})(handler))
				t.Cleanup(keyed.Close)
				want := send(t.Context(), t, method, plain.URL)
				for range 2 {
					if diff := cmp.Diff(want, send(t.Context(), t, method, keyed.URL), cmp.Comparer(func(a, b error) bool { return errors.Is(a, b) })); diff != "" {
						t.Errorf("(-plain +keyed):\n%s", diff)
					}
				}
			})
		}
	}
}

func TestMiddleware_tellsRequestsApart(t *testing.T) {
	t.Parallel()
	same := func(h http.Handler) http.Handler { return h }
	reads := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = r.FormValue("a")
			h.ServeHTTP(w, r)
		})
	}
	bounds := func(h http.Handler) http.Handler { return http.MaxBytesHandler(h, 2) }
	const created, reused = http.StatusCreated, http.StatusUnprocessableEntity
	for _, test := range []struct {
		name    string
		around  func(http.Handler) http.Handler
		method  string // of the second request
		targets [2]string
		bodies  [2]string
		want    [2]int
	}{
		{"by a body without a bound", same, http.MethodPost, [2]string{"/", "/"}, [2]string{"a=1", "a=2"}, [2]int{created, reused}},
		{"by a query that is no list of values", same, http.MethodPost, [2]string{"/?a=1;b=2", "/?a=2;b=2"}, [2]string{}, [2]int{created, reused}},
		{"by a query with a broken escape", same, http.MethodPost, [2]string{"/?a=%zz1", "/?a=%zz2"}, [2]string{}, [2]int{created, reused}},
		{"by the method", same, http.MethodPatch, [2]string{"/", "/"}, [2]string{}, [2]int{created, reused}},
		{"and refuses a body that was read before", reads, http.MethodPost, [2]string{"/", "/"}, [2]string{"a=1", "a=2"}, [2]int{http.StatusInternalServerError, http.StatusInternalServerError}},
		{"and says that another bound is passed", bounds, http.MethodPost, [2]string{"/", "/"}, [2]string{"a=1", "a=2"}, [2]int{http.StatusRequestEntityTooLarge, http.StatusRequestEntityTooLarge}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := test.around(serve(testdb.Reused(t).Pool(), options{MaxBody: math.MaxInt}, handle))
			for i, method := range []string{http.MethodPost, test.method} {
				r := httptest.NewRequestWithContext(t.Context(), method, test.targets[i], strings.NewReader(test.bodies[i]))
				r.Header.Set("Idempotency-Key", "k1")
				r.Header.Set("Content-Type", asForm)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != test.want[i] || w.Code == created && !strings.HasPrefix(w.Body.String(), test.bodies[i]) {
					t.Errorf("request %d: %d %s, want %d", i+1, w.Code, w.Body, test.want[i])
				}
			}
		})
	}
}

func TestMiddleware_ofAClientThatLeavesInTheMiddleCommits(t *testing.T) {
	t.Parallel()
	db, started := testdb.Reused(t), make(chan struct{}, 1)
	server := httptest.NewServer(serve(db.Pool(), options{}, func(w http.ResponseWriter, r *http.Request) {
		if _, err := idempotency.Tx(r.Context()).Exec(r.Context(), insertEffect); err != nil {
			t.Error(err)
		}
		started <- struct{}{}
		<-r.Context().Done()
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(server.Close)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-started
		leave()
	}()
	if got := send(ctx, t, http.MethodPost, server.URL); !errors.Is(got.Err, context.Canceled) {
		t.Errorf("%+v", got)
	}
	if got := send(t.Context(), t, http.MethodPost, server.URL); got.Status != http.StatusCreated {
		t.Errorf("then %+v", got)
	}
	wantEffects(t, db, 1)
}
