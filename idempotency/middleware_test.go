package idempotency_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

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

// asked is a request: POST / under the key k1 if it does not say otherwise.
type asked struct{ method, target, key, body, media string }

func (a asked) of(t *testing.T, h http.Handler) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), cmp.Or(a.method, http.MethodPost), cmp.Or(a.target, "/"), strings.NewReader(a.body))
	if a.body == "" {
		r.Body = nil // as http.NewRequest makes it
	}
	if a.key != "none" {
		r.Header.Set("Idempotency-Key", cmp.Or(a.key, "k1"))
	}
	r.Header.Set("Content-Type", a.media)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A replay has the headers of the handler, which take the place of those around it, and those of its own request.
func TestMiddleware_replaysHeaders(t *testing.T) {
	t.Parallel()
	n, keyed := 0, idempotency.Middleware(testdb.Reused(t).Pool(), options{})(http.HandlerFunc(handle))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		w.Header().Set("X-Request-Id", strconv.Itoa(n))
		w.Header().Set("Location", "/around")
		keyed.ServeHTTP(w, r)
	})
	want := asked{}.of(t, h).Header()
	if want.Get("Set-Cookie") == "" || want.Get("Location") != "/orders/1" {
		t.Errorf("the first response has %v", want)
	}
	want.Del("Set-Cookie")
	want.Set("X-Request-Id", "2")
	want.Set("Idempotent-Replayed", "true")
	testrun.Same(t, "headers of the replay", want, asked{}.of(t, h).Header())
}

// form is a request with a multipart body of one file, under a boundary.
func form(boundary, name, text string) asked {
	return asked{
		body:  "--" + boundary + "\r\nContent-Disposition: form-data; name=\"" + name + "\"; filename=\"f\"\r\n\r\n" + text + "\r\n--" + boundary + "--\r\n",
		media: "multipart/form-data; boundary=" + boundary,
	}
}

func TestMiddleware_tellsRequestsApart(t *testing.T) {
	t.Parallel()
	const same, reused = http.StatusCreated, http.StatusUnprocessableEntity
	of := func(target, body string) asked {
		return asked{target: target, body: body, media: "application/json; charset=utf-8"}
	}
	pool := testdb.Reused(t).Pool()
	h := idempotency.Middleware(pool, options{})(http.HandlerFunc(handle))
	for i, test := range []struct {
		name          string
		first, second asked
		want          int
	}{
		{"the same value in other JSON is the same request", of("/?b=1&a=2", `{"a":2,"b":1}`), of("/?b=1&a=2", `{"b": 1, "a": 2}`), same},
		{"a form under another boundary is", form("b1", "a", "--b2"), form("b3", "a", "--b2"), same},
		{"another text in a form is not", form("b1", "a", "1"), form("b2", "a", "2"), reused},
		{"another name in a form is not", form("b1", "a", "1"), form("b2", "b", "1"), reused},
		{"a boundary within a text is none", form("b1", "a", "a--b1"), form("b2", "a", "a--b2"), reused},
		{"another body is not", of("/", `{"a":2}`), of("/", `{"a":3}`), reused},
		{"what is no JSON is compared as it is", of("/", `{"a":2`), of("/", `{"a": 2`), reused},
		{"another path is not", of("/a", ""), of("/b", ""), reused},
		{"another query is not", of("/?a=1", ""), of("/?a=2", ""), reused},
		{"another media type is not", of("/", "1"), asked{body: "1", media: "text/plain"}, reused},
		{"another method is not", asked{}, asked{method: http.MethodPatch}, reused},
	} {
		for n, r := range []asked{test.first, test.second} {
			r.key = fmt.Sprint("k", i)
			if w := r.of(t, h); w.Code != [2]int{same, test.want}[n] {
				t.Errorf("%s: request %d: %d %s", test.name, n+1, w.Code, w.Body)
			}
		}
	}
	signed := idempotency.Middleware(pool, options{Fingerprint: func(_ *http.Request, body []byte) []byte {
		text, _, _ := strings.Cut(string(body), "|")
		return idempotency.Fingerprint([]byte(text))
	}})(http.HandlerFunc(handle))
	for n, want := range []int{same, same, reused} {
		r := asked{key: "signed", body: []string{"a mug|1", "a mug|2", "a pen|1"}[n]}
		if w := r.of(t, signed); w.Code != want {
			t.Errorf("a body whose fingerprint leaves out the signature: request %d: %d %s", n+1, w.Code, w.Body)
		}
	}
}

// wantProblem checks a response of the middleware itself.
func wantProblem(t *testing.T, name string, w *httptest.ResponseRecorder, status int, title string) {
	t.Helper()
	var p struct {
		Type, Title string
		Status      int
	}
	err := json.Unmarshal(w.Body.Bytes(), &p)
	if err != nil || w.Code != status || p.Status != status || p.Type != "about:blank" ||
		!strings.HasPrefix(p.Title, title) || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s: the response is %d %v %s, want %d %s", name, w.Code, w.Header(), w.Body, status, title)
	}
	if retry := w.Header().Get("Retry-After"); (retry == "1") != (status == http.StatusServiceUnavailable ||
		strings.HasPrefix(title, idempotency.ErrInFlight.Error())) {
		t.Errorf("%s: Retry-After: %q", name, retry)
	}
}

func TestMiddleware_problems(t *testing.T) {
	t.Parallel()
	before := func(do func(http.ResponseWriter, *http.Request)) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { do(w, r); h.ServeHTTP(w, r) })
		}
	}
	read := before(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) })
	bound := before(func(w http.ResponseWriter, r *http.Request) { r.Body = http.MaxBytesReader(w, r.Body, 2) })
	cut := before(func(_ http.ResponseWriter, r *http.Request) { r.Body = io.NopCloser(iotest.ErrReader(errPlanted)) })
	same := before(func(http.ResponseWriter, *http.Request) {})
	db := testdb.Reused(t)
	unreachable := testdb.Connect(t, testdb.Empty(t))
	entry{operation: "HTTP"}.rival(t, db)
	const unreadableBody = "the body cannot be read: "
	acme := options{Options: idempotency.Options{Wait: -1}, Scope: func(*http.Request) string { return "acme" }}
	for _, test := range []struct {
		name   string
		around func(http.Handler) http.Handler
		db     idempotency.Beginner
		o      options
		r      asked
		status int
		title  string
	}{
		{"no key", same, nil, options{}, asked{key: "none"}, http.StatusBadRequest, idempotency.ErrMissing.Error()},
		{"a header that is no key", same, nil, options{}, asked{key: "a,b"}, http.StatusBadRequest, idempotency.ErrInvalid.Error()},
		{"a large body", same, nil, options{}, asked{body: strings.Repeat("x", 1<<20+1)}, http.StatusRequestEntityTooLarge, unreadableBody + "http: request body too large"},
		{"a body beyond another bound", bound, nil, options{}, asked{body: "a=1"}, http.StatusRequestEntityTooLarge, unreadableBody + "http: request body too large"},
		{"a body that is cut", cut, nil, options{}, asked{body: "a=1"}, http.StatusBadRequest, unreadableBody + "planted"},
		{"a body that was read before", read, nil, options{}, asked{body: "a=1"}, http.StatusInternalServerError, "Internal Server Error"},
		{"a key that cannot be read", same, unreachable.Pool(), options{}, asked{}, http.StatusServiceUnavailable, "Service Unavailable"},
		{"a rival in flight", same, db.Pool(), acme, asked{}, http.StatusConflict, idempotency.ErrInFlight.Error()},
	} {
		h := test.around(idempotency.Middleware(test.db, test.o)(http.HandlerFunc(handle)))
		wantProblem(t, test.name, test.r.of(t, h), test.status, test.title)
	}

	t.Run("an expired key is gone, and its Location is kept", func(t *testing.T) {
		h := idempotency.Middleware(db.Pool(), options{Options: idempotency.Options{Retention: 1}})(http.HandlerFunc(handle))
		asked{}.of(t, h)
		w := asked{}.of(t, h)
		wantProblem(t, "an expired key", w, http.StatusGone, idempotency.ErrExpired.Error())
		if w.Header().Get("Location") != "/orders/1" || w.Header().Get("Link") != "" {
			t.Errorf("headers %v", w.Header())
		}
	})

	t.Run("other methods pass through without a transaction", func(t *testing.T) {
		w := asked{method: http.MethodPut}.of(t, idempotency.Middleware(nil, options{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, idempotency.Tx(r.Context()))
		})))
		if w.Code != http.StatusOK || w.Body.String() != "<nil>" {
			t.Errorf("%+v", w)
		}
	})
}

func TestMiddleware_statuses(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
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
				w := asked{target: fmt.Sprint("/?status=", status), body: "a mug"}.of(t, h)
				if replayed := w.Header().Get("Idempotent-Replayed") != ""; w.Code != status ||
					w.Body.String() != "a mug\n\x00\xff" || replayed != (test.replayed && i > 0) {
					t.Errorf("request %d: %+v", i+1, w)
				}
			}
			wantEffects(t, db, test.effects)
		})
	}
}

func TestMiddleware_refusesToStore(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
	t.Parallel()
	set := func(name, value string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.Header().Set(name, value); w.WriteHeader(http.StatusCreated) }
	}
	for says, respond := range map[string]func(http.ResponseWriter){
		"it has more than 1048576 bytes": func(w http.ResponseWriter) {
			for range 1<<10 + 1 { // of several writes
				_, _ = w.Write(make([]byte, 1<<10))
			}
		},
		"the handler wrote none":        func(http.ResponseWriter) {},
		"the handler wrote none ":       func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints) },
		"it is encoded":                 set("Content-Encoding", "gzip"),
		"invalid input syntax for type": set("X-Name", "\xe4"),
		"unsupported Unicode escape":    set("Location", "a\x00"),
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			o := options{Error: func(w http.ResponseWriter, _ *http.Request, status int, err error) {
				http.Error(w, err.Error(), status)
			}}
			h := idempotency.Middleware(db.Pool(), o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := idempotency.Tx(r.Context()).Exec(r.Context(), insertEffect); err != nil {
					t.Error(err)
				}
				respond(w)
			}))
			if w := (asked{}).of(t, h); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), strings.TrimSpace(says)) {
				t.Errorf("%d, %s", w.Code, w.Body)
			}
			wantEffects(t, db, 0)
			if w := (asked{}).of(t, idempotency.Middleware(db.Pool(), o)(http.HandlerFunc(handle))); w.Code != http.StatusCreated {
				t.Errorf("then %+v", w)
			}
		})
	}
}

// sendForm sends a form in chunks, under the key k1, and returns what the client sees.
func sendForm(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, io.MultiReader(strings.NewReader("a=1")))
	testdb.Must(t, err)
	r.Header.Set("Idempotency-Key", "k1")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	got, err := http.DefaultTransport.RoundTrip(r) // without redirects
	if err != nil {
		return "an error" // which one is chance, of a connection that is closed with a body unread
	}
	defer got.Body.Close()
	got.Header.Del("Date")
	got.Header.Del("Idempotent-Replayed")
	seen, err := httputil.DumpResponse(got, true)
	testdb.Must(t, err)
	return string(seen)
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
		keyed := idempotency.Middleware(db.Pool(), options{Scope: func(*http.Request) string { return name }})(handler)
		want := sendForm(t, handler)
		for range 2 {
			testrun.Same(t, name, want, sendForm(t, keyed))
		}
	}
}
