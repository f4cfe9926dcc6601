package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

type options = idempotency.HTTPOptions

// handle makes one effect and answers with the status of the query, 201 without one.
func handle(w http.ResponseWriter, r *http.Request) {
	if _, err := idempotency.Tx(r.Context()).Exec(r.Context(), insertEffect); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "text/x-order")
	w.Header().Set("Location", "/orders/1")
	w.Header().Add("Link", "</a>")
	w.Header().Add("Link", "</b>")
	w.Header().Set("Set-Cookie", "a=b")
	status := http.StatusCreated
	_, _ = fmt.Sscan(r.URL.Query().Get("status"), &status)
	w.WriteHeader(status)
	_, _ = w.Write(append(body, "\n\x00\xff"...))
}

// send sends a request with headers given as "name: value", under the key k1.
func send(t *testing.T, h http.Handler, target, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body))
	r.Header.Set(idempotency.HeaderKey, "k1")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const asJSON = "Content-Type: application/json; charset=utf-8"

func TestMiddleware_replaysStatusHeadersAndBody(t *testing.T) {
	t.Parallel()
	db, n := testdb.Reused(t), 0
	keyed := idempotency.Middleware(db.Pool(), options{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Del("X-Frame-Options")
		w.Header().Set("Cache-Control", "no-store")
		handle(w, r)
	}))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		w.Header().Set("X-Request-Id", strconv.Itoa(n)) // of this request
		w.Header().Set("X-Frame-Options", "DENY")
		w.Header().Set("Cache-Control", "private")
		keyed.ServeHTTP(w, r)
	})
	first, replay := send(t, h, "/orders", "a mug"), send(t, h, "/orders", "a mug")
	if first.Code != http.StatusCreated || first.Body.String() != "a mug\n\x00\xff" || first.Header().Get("Set-Cookie") == "" {
		t.Errorf("the first response is %+v", first)
	}
	if replay.Code != first.Code || replay.Body.String() != first.Body.String() {
		t.Errorf("the replay is %+v", replay)
	}
	want := maps.Clone(first.Header())
	want.Del("Set-Cookie")
	want.Set("X-Request-Id", "2")
	want.Set(idempotency.HeaderReplayed, "true")
	testrun.Same(t, "headers of the replay", want, replay.Result().Header)
	wantEffects(t, db, 1)
}

func TestMiddleware_ofARequestWithoutABody(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	h := idempotency.Middleware(db.Pool(), options{})(http.HandlerFunc(handle))
	for range 2 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		r.Body = nil // as http.NewRequest makes it
		r.Header.Set(idempotency.HeaderKey, "k1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusCreated {
			t.Errorf("%+v", w)
		}
	}
	wantEffects(t, db, 1)
}

// form is a multipart body of one file, under a boundary.
func form(boundary, name, text string) (body, header string) {
	return "--" + boundary + "\r\nContent-Disposition: form-data; name=\"" + name + "\"; filename=\"f\"\r\nContent-Type: text/plain\r\n\r\n" + text + "\r\n--" + boundary + "--\r\n",
		"Content-Type: multipart/form-data; boundary=" + boundary
}

func TestMiddleware_tellsRequestsApart(t *testing.T) {
	t.Parallel()
	const same, reused = http.StatusCreated, http.StatusUnprocessableEntity
	type request struct{ target, body, header string }
	multipart := func(boundary, name, text string) request {
		body, header := form(boundary, name, text)
		return request{"/", body, header}
	}
	for _, test := range []struct {
		name          string
		first, second request
		want          int
	}{
		{"the same value in other JSON is the same request", request{"/?b=1&a=2", `{"a":2,"b":1}`, asJSON}, request{"/?b=1&a=2", `{"b": 1, "a": 2}`, asJSON}, same},
		{"another order of the query is", request{"/?b=1&a=2", "", asJSON}, request{"/?a=2&b=1", "", asJSON}, same},
		{"a form under another boundary is", multipart("b1", "a", "--b2"), multipart("b3", "a", "--b2"), same},
		{"another text in a form is not", multipart("b1", "a", "1"), multipart("b2", "a", "2"), reused},
		{"another name in a form is not", multipart("b1", "a", "1"), multipart("b2", "b", "1"), reused},
		{"a boundary within a text is none", multipart("b1", "a", "a--b1"), multipart("b2", "a", "a--b2"), reused},
		{"another body is not", request{"/", `{"a":2}`, asJSON}, request{"/", `{"a":3}`, asJSON}, reused},
		{"what is no JSON is compared as it is", request{"/", `{"a":2`, asJSON}, request{"/", `{"a": 2`, asJSON}, reused},
		{"another path is not", request{"/a", "", asJSON}, request{"/b", "", asJSON}, reused},
		{"another query is not", request{"/?a=1", "", asJSON}, request{"/?a=2", "", asJSON}, reused},
		{"another query that is no list of values is not", request{"/?a=1;b=2", "", asJSON}, request{"/?a=2;b=2", "", asJSON}, reused},
		{"another media type is not", request{"/", "1", asJSON}, request{"/", "1", "Content-Type: text/plain"}, reused},
		{"another method is not", request{"/", "", asJSON}, request{"/", "", "X-Method: PATCH"}, reused},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := idempotency.Middleware(testdb.Reused(t).Pool(), options{})(http.HandlerFunc(handle))
			byHeader := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if method := r.Header.Get("X-Method"); method != "" {
					r.Method = method
				}
				h.ServeHTTP(w, r)
			})
			for i, r := range []request{test.first, test.second} {
				if w := send(t, byHeader, r.target, r.body, r.header); w.Code != [2]int{same, test.want}[i] {
					t.Errorf("request %d: %d %s", i+1, w.Code, w.Body)
				}
			}
		})
	}

	t.Run("a hook may leave out what is new in each sending", func(t *testing.T) {
		t.Parallel()
		o := options{Fingerprint: func(_ *http.Request, body []byte) []byte {
			text, _, _ := strings.Cut(string(body), "|")
			return idempotency.Fingerprint([]byte(text))
		}}
		h := idempotency.Middleware(testdb.Reused(t).Pool(), o)(http.HandlerFunc(handle))
		for _, test := range []struct {
			body string
			want int
		}{{"a mug|1", same}, {"a mug|2", same}, {"a pen|1", reused}} {
			if w := send(t, h, "/", test.body); w.Code != test.want {
				t.Errorf("%s: %d %s", test.body, w.Code, w.Body)
			}
		}
	})
}

// wantProblem checks a response of the middleware itself.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, title string) {
	t.Helper()
	var p struct {
		Type, Title string
		Status      int
	}
	err := json.Unmarshal(w.Body.Bytes(), &p)
	if err != nil || w.Code != status || p.Status != status || p.Type != "about:blank" || !strings.HasPrefix(p.Title, title) || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("the response is %d %v %s, want %d %s", w.Code, w.Header(), w.Body, status, title)
	}
	if retry := w.Header().Get("Retry-After"); (retry == "1") != (status == http.StatusServiceUnavailable || strings.HasPrefix(title, idempotency.ErrInFlight.Error())) {
		t.Errorf("Retry-After: %q", retry)
	}
}

func TestMiddleware_problems(t *testing.T) {
	t.Parallel()
	read := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			h.ServeHTTP(w, r)
		})
	}
	bound := func(h http.Handler) http.Handler { return http.MaxBytesHandler(h, 2) }
	same := func(h http.Handler) http.Handler { return h }
	for _, test := range []struct {
		name   string
		around func(http.Handler) http.Handler
		key    string
		body   string
		status int
		title  string
	}{
		{"no key", same, "", "", http.StatusBadRequest, idempotency.ErrMissing.Error()},
		{"a header that is no key", same, "a,b", "", http.StatusBadRequest, idempotency.ErrInvalid.Error()},
		{"a large body", same, "k1", strings.Repeat("x", 1<<20+1), http.StatusRequestEntityTooLarge, "the body is too large"},
		{"a body beyond another bound", bound, "k1", "a=1", http.StatusRequestEntityTooLarge, "the body is too large"},
		{"a body that was read before", read, "k1", "a=1", http.StatusInternalServerError, "Internal Server Error"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := test.around(idempotency.Middleware(nil, options{})(http.HandlerFunc(handle)))
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(test.body))
			if test.key != "" {
				r.Header.Set(idempotency.HeaderKey, test.key)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			wantProblem(t, w, test.status, test.title)
		})
	}

	t.Run("an expired key is gone, and its Location is kept", func(t *testing.T) {
		t.Parallel()
		o := options{Options: idempotency.Options{Retention: 1}}
		h := idempotency.Middleware(testdb.Reused(t).Pool(), o)(http.HandlerFunc(handle))
		send(t, h, "/orders", "")
		w := send(t, h, "/orders", "")
		wantProblem(t, w, http.StatusGone, idempotency.ErrExpired.Error())
		if w.Header().Get("Location") != "/orders/1" || w.Header().Get("Link") != "" {
			t.Errorf("headers %v", w.Header())
		}
	})

	t.Run("a rival in flight has the status of the policy", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		entry{operation: "HTTP"}.rival(t, db)
		for status, o := range map[int]options{http.StatusConflict: {}, http.StatusTooEarly: {InFlight: http.StatusTooEarly}, http.StatusAccepted: {InFlight: http.StatusAccepted}} {
			o.Wait, o.Scope = -1, func(*http.Request) string { return "acme" }
			wantProblem(t, send(t, idempotency.Middleware(db.Pool(), o)(http.HandlerFunc(handle)), "/", ""), status, idempotency.ErrInFlight.Error())
		}
	})

	t.Run("other methods pass through without a transaction", func(t *testing.T) {
		t.Parallel()
		w := httptest.NewRecorder()
		idempotency.Middleware(nil, options{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, idempotency.Tx(r.Context()))
		})).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/orders", nil))
		if w.Code != http.StatusOK || w.Body.String() != "<nil>" {
			t.Errorf("%+v", w)
		}
	})
}

func TestMiddleware_statuses(t *testing.T) {
	t.Parallel()
	for status, test := range map[int]struct {
		replayed bool
		effects  int // of two requests
	}{
		200: {true, 1}, 303: {true, 1}, 404: {true, 0}, 422: {true, 0},
		401: {}, 403: {}, 408: {}, 409: {}, 425: {}, 429: {}, 500: {}, 503: {},
	} {
		t.Run(fmt.Sprintf("%d is replayed: %v", status, test.replayed), func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			h := idempotency.Middleware(db.Pool(), options{})(http.HandlerFunc(handle))
			for i := range 2 {
				w := send(t, h, fmt.Sprint("/orders?status=", status), "a mug")
				if replayed := w.Header().Get(idempotency.HeaderReplayed) != ""; w.Code != status || w.Body.String() != "a mug\n\x00\xff" || replayed != (test.replayed && i > 0) {
					t.Errorf("request %d: %+v", i+1, w)
				}
			}
			wantEffects(t, db, test.effects)
		})
	}
}

func TestMiddleware_refusesToStore(t *testing.T) {
	t.Parallel()
	set := func(name, value string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.Header().Set(name, value); w.WriteHeader(http.StatusCreated) }
	}
	for says, respond := range map[string]func(http.ResponseWriter){
		"it has more than 1048576 bytes": func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 1<<20+1)) },
		"the handler wrote none":         func(http.ResponseWriter) {},
		"the handler wrote none ":        func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints) },
		"it is encoded":                  set("Content-Encoding", "gzip"),
		"its X-Name is not UTF-8":        set("X-Name", "\xe4"),
		"its Location is not UTF-8":      set("Location", "a\x00"),
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			db, plain := testdb.Reused(t), false
			var cause error
			o := options{Error: func(w http.ResponseWriter, _ *http.Request, status int, err error) {
				cause = err
				w.WriteHeader(status)
			}}
			h := idempotency.Middleware(db.Pool(), o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if plain {
					handle(w, r)
					return
				}
				if _, err := idempotency.Tx(r.Context()).Exec(r.Context(), insertEffect); err != nil {
					t.Error(err)
				}
				respond(w)
			}))
			if w := send(t, h, "/orders", ""); w.Code != http.StatusInternalServerError || cause == nil || !strings.Contains(cause.Error(), strings.TrimSpace(says)) {
				t.Errorf("%d, %v", w.Code, cause)
			}
			wantEffects(t, db, 0)
			plain = true
			if w := send(t, h, "/orders", ""); w.Code != http.StatusCreated {
				t.Errorf("then %+v", w)
			}
		})
	}
}

// response is what a client sees.
type response struct {
	Status int
	Header http.Header
	Body   string
	Err    error
}

// sendForm sends a form in chunks, under the key k1.
func sendForm(ctx context.Context, t *testing.T, to string) response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, io.MultiReader(strings.NewReader("a=1")))
	testdb.Must(t, err)
	r.Header.Set("Idempotency-Key", "k1")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	got, err := http.DefaultTransport.RoundTrip(r) // without redirects
	if err != nil {
		return response{Err: err}
	}
	body, err := io.ReadAll(got.Body)
	_ = got.Body.Close() // it was read
	got.Header.Del("Date")
	got.Header.Del("Idempotent-Replayed")
	return response{got.StatusCode, got.Header, string(body), err}
}

func TestMiddleware_changesNothingThatAClientSees(t *testing.T) {
	t.Parallel()
	write := func(w http.ResponseWriter, text string) { _, _ = io.WriteString(w, text) }
	status := func(statuses ...int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for _, status := range statuses {
				w.WriteHeader(status)
			}
			write(w, "x")
		}
	}
	db := testdb.Reused(t)
	for name, handler := range map[string]http.HandlerFunc{
		"a body without a type":   func(w http.ResponseWriter, _ *http.Request) { write(w, "<html>") },
		"no content, with a body": status(http.StatusNoContent),
		"a second status":         status(http.StatusCreated, http.StatusNotFound),
		"an early hint":           status(http.StatusEarlyHints, http.StatusCreated),
		"a status after the body": func(w http.ResponseWriter, _ *http.Request) { write(w, "x"); w.WriteHeader(http.StatusNotFound) },
		"a header after the status": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			w.Header().Set("Location", "/late")
		},
		"a form": func(w http.ResponseWriter, r *http.Request) { write(w, r.FormValue("a")) },
		"a body read late": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.Copy(w, r.Body)
		},
		"an abort after a part": func(w http.ResponseWriter, _ *http.Request) { write(w, "x"); panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plain := httptest.NewServer(handler)
			t.Cleanup(plain.Close)
			o := options{Scope: func(*http.Request) string { return name }}
			keyed := httptest.NewServer(idempotency.Middleware(db.Pool(), o)(handler))
			t.Cleanup(keyed.Close)
			want := sendForm(t.Context(), t, plain.URL)
			for range 2 {
				if diff := cmp.Diff(want, sendForm(t.Context(), t, keyed.URL), cmp.Comparer(func(a, b error) bool { return errors.Is(a, b) })); diff != "" {
					t.Errorf("(-plain +keyed):\n%s", diff)
				}
			}
		})
	}
}
