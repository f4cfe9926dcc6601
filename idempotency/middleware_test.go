package idempotency_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

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

func scopeOf(r *http.Request) string { return r.Header.Get("Tenant") }

type options = idempotency.HTTPOptions

func serve(db idempotency.Beginner, o options, handler http.HandlerFunc) http.Handler {
	return idempotency.Middleware(db, scopeOf, o)(handler)
}

// post sends a request with headers given as "name: value". No server has read it: without a
// body its Body is nil.
func post(t *testing.T, h http.Handler, target, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, nil)
	testdb.Must(t, err)
	if body != "" {
		r.Body = io.NopCloser(strings.NewReader(body))
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const (
	withKey = "Idempotency-Key: k1"
	asJSON  = "Content-Type: application/json; charset=utf-8"
)

func TestMiddleware(t *testing.T) {
	t.Parallel()

	t.Run("a replay has the status, body and listed headers of the first response", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		h := serve(db.Pool(), options{Headers: []string{"content-type", "location", "link", "etag"}}, handle)
		first, replay := post(t, h, "/orders", "a mug", withKey), post(t, h, "/orders", "a mug", withKey)
		if first.Code != http.StatusCreated || first.Body.String() != "a mug\n\x00\xff" || first.Header().Get("Set-Cookie") == "" {
			t.Errorf("the first response is %+v", first)
		}
		if replay.Code != first.Code || !bytes.Equal(replay.Body.Bytes(), first.Body.Bytes()) {
			t.Errorf("the replay is %+v", replay)
		}
		want := maps.Clone(first.Header())
		want.Del("Set-Cookie")
		want.Set("Idempotent-Replayed", "true")
		testrun.Same(t, "headers of the replay", want, replay.Header())
		wantEffects(t, db, 1)
	})

	for _, test := range []struct {
		name          string
		target, body  string
		headers       []string
		status        int
		title         string
		secondEffects int
	}{
		{"the same value in other JSON is the same request", "/orders?b=1&a=2", `{"b": 1.0, "a": 2}`, []string{withKey, asJSON}, http.StatusCreated, "", 0},
		{"another order of the query is the same request", "/orders?a=2&b=1", `{"a":2,"b":1}`, []string{withKey, asJSON}, http.StatusCreated, "", 0},
		{"another tenant has keys of its own", "/orders?b=1&a=2", `{"a":2,"b":1}`, []string{withKey, asJSON, "Tenant: globex"}, http.StatusCreated, "", 1},
		{"another body is refused", "/orders?b=1&a=2", `{"a":3,"b":1}`, []string{withKey, asJSON}, http.StatusUnprocessableEntity, idempotency.ErrReused.Error(), 0},
		{"another path is refused", "/refunds?b=1&a=2", `{"a":2,"b":1}`, []string{withKey, asJSON}, http.StatusUnprocessableEntity, idempotency.ErrReused.Error(), 0},
		{"another query is refused", "/orders?b=2&a=2", `{"a":2,"b":1}`, []string{withKey, asJSON}, http.StatusUnprocessableEntity, idempotency.ErrReused.Error(), 0},
		{"another media type is refused", "/orders?b=1&a=2", `{"a":2,"b":1}`, []string{withKey}, http.StatusUnprocessableEntity, idempotency.ErrReused.Error(), 0},
		{"no key is refused", "/orders", ``, nil, http.StatusBadRequest, idempotency.ErrMissing.Error(), 0},
		{"two keys are refused", "/orders", ``, []string{withKey, "Idempotency-Key: k2"}, http.StatusBadRequest, idempotency.ErrInvalid.Error(), 0},
		{"a large body is refused", "/orders", strings.Repeat("x", 1<<20+1), []string{withKey}, http.StatusRequestEntityTooLarge, idempotency.ErrBodyTooLarge.Error(), 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			h := serve(db.Pool(), options{}, handle)
			post(t, h, "/orders?b=1&a=2", `{"a":2,"b":1}`, withKey, asJSON)
			w := post(t, h, test.target, test.body, test.headers...)
			wantProblem(t, w, test.status, test.title)
			wantEffects(t, db, 1+test.secondEffects)
		})
	}

	t.Run("an expired key is gone", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		h := serve(db.Pool(), options{Retention: time.Nanosecond}, handle)
		post(t, h, "/orders", "", withKey)
		w := post(t, h, "/orders", "", withKey)
		wantProblem(t, w, http.StatusGone, idempotency.ErrExpired.Error())
		if got := w.Header().Get("Location"); got != "/orders/1" {
			t.Errorf("Location is %q", got)
		}
		wantEffects(t, db, 1)
	})

	t.Run("ten megabytes are replayed where the limits allow it", func(t *testing.T) {
		t.Parallel()
		db, body := testdb.Reused(t), strings.Repeat("x", 10<<20)
		h := serve(db.Pool(), options{MaxBody: 16 << 20, MaxResponse: 16 << 20}, handle)
		for range 2 {
			if w := post(t, h, "/orders", body, withKey); w.Code != http.StatusCreated || w.Body.String() != body+"\n\x00\xff" {
				t.Errorf("%d, %d bytes", w.Code, w.Body.Len())
			}
		}
		wantEffects(t, db, 1)
	})

	t.Run("a method is known in any case of its letters, and others pass through without a transaction", func(t *testing.T) {
		t.Parallel()
		h := serve(testdb.Reused(t).Pool(), options{Methods: []string{"put", "post"}}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, idempotency.Tx(r.Context()))
		})
		wantProblem(t, post(t, h, "/orders", ""), http.StatusBadRequest, idempotency.ErrMissing.Error())
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPatch, "/orders", nil))
		if w.Code != http.StatusOK || w.Body.String() != "<nil>" {
			t.Errorf("%+v", w)
		}
	})
}

// wantProblem checks a response of the middleware itself; a response of the handler if the
// title is empty.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, title string) {
	t.Helper()
	if w.Code != status {
		t.Errorf("the response is %d %s, want %d", w.Code, w.Body, status)
	}
	if title == "" {
		return
	}
	var p idempotency.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Title != title || p.Status != status || p.Detail == "" || p.Type == "" || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%v: the problem is %+v, want %s", err, p, title)
	}
}

func TestMiddleware_statuses(t *testing.T) {
	t.Parallel()
	none := func(int) bool { return false }
	for _, test := range []struct {
		status   int
		stores   func(int) bool
		replayed bool
		effects  int // of two requests
	}{
		{200, nil, true, 1},
		{303, nil, true, 1},
		{401, nil, false, 0},
		{403, nil, false, 0},
		{404, nil, true, 0},
		{422, nil, true, 0},
		{408, nil, false, 0},
		{409, nil, false, 0},
		{425, nil, false, 0},
		{429, nil, false, 0},
		{500, nil, false, 0},
		{503, func(int) bool { return true }, false, 0},
		{201, none, false, 0},
		{409, func(int) bool { return true }, true, 0},
	} {
		t.Run(fmt.Sprintf("%d is replayed: %v", test.status, test.replayed), func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			h, target := serve(db.Pool(), options{Stores: test.stores}, handle), fmt.Sprint("/orders?status=", test.status)
			for i := range 2 {
				w := post(t, h, target, "a mug", withKey)
				if replayed := w.Header().Get("Idempotent-Replayed") != ""; w.Code != test.status || w.Body.String() != "a mug\n\x00\xff" || replayed != (test.replayed && i > 0) {
					t.Errorf("request %d: %+v", i+1, w)
				}
			}
			wantEffects(t, db, test.effects)
		})
	}
}

func TestMiddleware_refusesToStore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		respond func(w http.ResponseWriter)
		says    string
	}{
		"a stream":                 {func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }, "it is a stream"},
		"a hijack":                 {func(w http.ResponseWriter) { _, _, _ = http.NewResponseController(w).Hijack() }, "it is a stream"},
		"a large response":         {func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 1<<20+1)) }, "it has more than 1048576 bytes"},
		"no response":              {func(http.ResponseWriter) {}, "the handler wrote none"},
		"an informational one":     {func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints) }, "the handler wrote none"},
		"a panic":                  {func(http.ResponseWriter) { panic("planted") }, ""},
		"a name in Latin-1":        {func(w http.ResponseWriter) { w.Header().Set("X-Name", "\xe4"); w.WriteHeader(http.StatusCreated) }, "its X-Name is not UTF-8"},
		"a place with a zero byte": {func(w http.ResponseWriter) { w.Header().Set("Location", "a\x00"); w.WriteHeader(http.StatusCreated) }, "its Location is not UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log, plain := testdb.Reused(t), &await.Log{}, false
			h := serve(db.Pool(), options{Log: slog.New(slog.NewJSONHandler(log, nil)), Headers: []string{"Location", "X-Name"}}, func(w http.ResponseWriter, r *http.Request) {
				if plain {
					handle(w, r)
					return
				}
				if _, err := idempotency.Tx(r.Context()).Exec(r.Context(), insertEffect); err != nil {
					t.Error(err)
				}
				test.respond(w)
			})
			func() {
				defer func() {
					if cause := recover(); (cause != nil) != (test.says == "") {
						t.Errorf("it panics with %v", cause)
					}
				}()
				wantProblem(t, post(t, h, "/orders", "", withKey), http.StatusInternalServerError, idempotency.ErrNotStorable.Error())
			}()
			if !strings.Contains(log.String(), test.says) {
				t.Errorf("the log is %s", log.String())
			}
			wantEffects(t, db, 0)
			plain = true
			if w := post(t, h, "/orders", "", withKey); w.Code != http.StatusCreated {
				t.Errorf("then %+v", w)
			}
		})
	}
}

func TestMiddleware_besideARivalInFlight(t *testing.T) {
	t.Parallel()
	for status, o := range map[int]options{
		http.StatusConflict: {Wait: idempotency.NoWait},
		http.StatusTooEarly: {Wait: idempotency.NoWait, InFlight: http.StatusTooEarly},
		http.StatusAccepted: {Wait: idempotency.NoWait, InFlight: http.StatusAccepted},
		http.StatusCreated:  {},
	} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			db, inHandler, goOn := testdb.Reused(t), make(chan struct{}, 2), make(chan struct{})
			h := serve(db.Pool(), o, func(w http.ResponseWriter, r *http.Request) {
				inHandler <- struct{}{}
				<-goOn
				handle(w, r)
			})
			var rivals errgroup.Group
			send := func(want int, replayed string) {
				w := post(t, h, "/orders", "", withKey)
				if w.Code != want || w.Header().Get("Idempotent-Replayed") != replayed {
					t.Errorf("%+v, want %d", w, want)
				}
				if retry := w.Header().Get("Retry-After"); (retry == "1") != (want != http.StatusCreated) {
					t.Errorf("Retry-After: %q", retry)
				}
			}
			rivals.Go(func() error { send(http.StatusCreated, ""); return nil })
			await.Receive(t, "the first request's handler", inHandler)
			if status == http.StatusCreated {
				rivals.Go(func() error { send(status, "true"); return nil })
				await.Blocked(t, db, 1)
			} else {
				send(status, "")
			}
			close(goOn)
			_ = rivals.Wait() // no error
			wantEffects(t, db, 1)
		})
	}
}

func TestMiddleware_faults(t *testing.T) {
	t.Parallel()

	t.Run("a commit whose outcome is unknown is 503, and the next request replays it", func(t *testing.T) {
		t.Parallel()
		url := testdb.URL(t)
		direct, proxy := testdb.OpenAt(t, url, postgres.Options{}), failpoint.StartCutter(t, url)
		h := serve(armed(testdb.OpenAt(t, proxy.URL(), postgres.Options{MaxConns: 1}).Pool(), func() { proxy.ArmLast(failpoint.After, -1) }), options{}, handle)
		w := post(t, h, "/orders", "a mug", withKey)
		wantProblem(t, w, http.StatusServiceUnavailable, idempotency.ErrUnknown.Error())
		if w.Header().Get("Retry-After") != "1" {
			t.Errorf("headers: %v", w.Header())
		}
		if w := post(t, serve(direct.Pool(), options{}, handle), "/orders", "a mug", withKey); w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("then %+v", w)
		}
		wantEffects(t, direct, 1)
	})

	t.Run("a missing table and a nil pool are 500 with a cause in the log alone", func(t *testing.T) {
		t.Parallel()
		bare := testdb.Connect(t, testdb.Empty(t)).Pool()
		for says, db := range map[string]*pgxpool.Pool{"idempotency_keys": bare, "database is nil": nil} {
			log := &await.Log{}
			w := post(t, serve(db, options{Log: slog.New(slog.NewJSONHandler(log, nil))}, handle), "/orders", "", withKey)
			wantProblem(t, w, http.StatusInternalServerError, "Internal Server Error")
			if !strings.Contains(log.String(), says) || strings.Contains(w.Body.String(), says) {
				t.Errorf("the log is %s, the response %s", log.String(), w.Body)
			}
		}
	})
}
