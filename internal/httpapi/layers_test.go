package httpapi_test

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const maxBody = 65536 // bytes

// padded is a charge request of so many bytes.
func padded(size int) string {
	request := body()
	return request + strings.Repeat(" ", size-len(request))
}

// sendLarge sends again when the server had refused and closed before the client
// had written all: such a client never sees the answer.
func (w *world) sendLarge(t *testing.T, c call) answer {
	t.Helper()
	for range 50 {
		a, err := w.try(t, c)
		if err == nil {
			return a
		}
		if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
	}
	t.Fatal("the connection was cut each time")
	return answer{}
}

func TestSize(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.accept(t, "key-1", padded(maxBody))
	before := rows(t, w.db)
	for _, test := range []struct {
		name string
		call call
	}{
		{"a megabyte", post("key-2", padded(1<<20))},
		{"one byte too much and not JSON", post("key-2", strings.Repeat("x", maxBody+1))},
	} {
		t.Run(test.name, func(t *testing.T) {
			wantProblem(t, w.sendLarge(t, test.call), "/problems/too-large")
			wantRows(t, w.db, before, nil)
		})
	}
	t.Run("a body that does not say its size", func(t *testing.T) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/charges",
			io.MultiReader(strings.NewReader(padded(maxBody+1))))
		if err != nil {
			t.Fatal(err)
		}
		request.Header = post("key-2", "").header
		response, err := (&http.Client{Timeout: patience}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		raw, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		wantProblem(t, answer{response.StatusCode, response.Header, string(raw)}, "/problems/too-large")
		wantRows(t, w.db, before, nil)
	})
}

func TestMediaType(t *testing.T) {
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	for _, test := range []struct {
		name  string
		types []string
	}{
		{"missing", nil},
		{"empty", []string{""}},
		{"text", []string{"text/plain"}},
		{"a form", []string{"application/x-www-form-urlencoded"}},
		{"JSON of another kind", []string{"application/merge-patch+json"}},
		{"JSON with a broken parameter", []string{"application/json; charset"}},
		{"no media type", []string{"json"}},
		{"two at once", []string{"application/json, text/plain"}},
		{"the same twice", []string{"application/json", "application/json"}},
		{"JSON in another charset", []string{"application/json; charset=utf-16"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, post("key-1", body()).with("Content-Type", test.types...))
			wantProblem(t, a, "/problems/unsupported-media-type")
			wantRows(t, w.db, before, nil)
		})
	}
	t.Run("JSON in UTF-8, and as it is", func(t *testing.T) {
		accepts := serve(t)
		for i, kind := range []string{"application/json", "Application/JSON;charset=UTF-8", `application/json; charset="utf-8"; profile=x`} {
			c := post("key-"+strconv.Itoa(i), body()).with("Content-Type", kind).with("Content-Encoding", "identity")
			if a := accepts.send(t, c); a.status != http.StatusAccepted {
				t.Errorf("%s: status %d: %s", kind, a.status, a.body)
			}
		}
	})
	t.Run("missing without a body", func(t *testing.T) {
		wantProblem(t, w.send(t, post("key-1", "").with("Content-Type")), "/problems/malformed")
	})
}

func TestUnauthorized(t *testing.T) {
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	reasons := map[string][]string{
		"missing":                        nil,
		"empty":                          {""},
		"a scheme alone":                 {"Bearer"},
		"a scheme and a space":           {"Bearer "},
		"only spaces after the scheme":   {"Bearer   "},
		"Basic":                          {"Basic c2tfdGVzdDo="},
		"Basic with the API key":         {"Basic " + apiKey},
		"the key without a scheme":       {apiKey},
		"an unknown key":                 {"Bearer sk_test_unknown"},
		"a key's prefix":                 {"Bearer " + apiKey[:12]},
		"a key and more":                 {"Bearer " + apiKey + "x"},
		"a key in other case":            {"Bearer " + strings.ToUpper(apiKey)},
		"two keys":                       {"Bearer " + apiKey + " " + apiKey},
		"not UTF-8":                      {"Bearer \xff\xfe"},
		"a very long key":                {"Bearer " + strings.Repeat("k", 8000)},
		"a wrong key before a right one": {"Bearer nobody", "Bearer " + apiKey},
	}
	first := w.send(t, post("key-1", body()).with("Authorization"))
	for name, values := range reasons {
		t.Run(name, func(t *testing.T) {
			a := w.send(t, post("key-1", body()).with("Authorization", values...))
			wantProblem(t, a, "/problems/unauthorized")
			if diff := cmp.Diff(first.body, a.body); diff != "" {
				t.Errorf("told apart from a missing key (-missing +this):\n%s", diff)
			}
			if got := a.header.Get("WWW-Authenticate"); got != "Bearer" {
				t.Errorf("WWW-Authenticate is %q", got)
			}
			wantRows(t, w.db, before, nil)
		})
	}
	for _, path := range []string{"/v1/charges/ch_1", "/v1/charges/ch_1/events", "/v1/balances", "/v1/audit", "/v1/nothing"} {
		t.Run("on "+path, func(t *testing.T) {
			a := w.send(t, get(path).with("Authorization"))
			p := wantProblem(t, a, "/problems/unauthorized")
			if strings.Replace(a.body, p.Instance, "/v1/charges", 1) != first.body || p.Instance != path {
				t.Errorf("more than the instance differs:\n%s%s", first.body, a.body)
			}
		})
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		t.Run("not on "+path, func(t *testing.T) {
			if a := w.send(t, get(path).with("Authorization")); a.status != http.StatusOK {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		})
	}
	t.Run("the scheme's case and spaces around the key do not count", func(t *testing.T) {
		for _, value := range []string{"bearer " + apiKey, "BEARER  " + apiKey + " "} {
			if a := w.send(t, get("/v1/balances").with("Authorization", value)); a.status != http.StatusOK {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		}
	})
}
