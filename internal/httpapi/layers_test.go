package httpapi_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

const maxBody = 65536 // bytes

// padded is a charge request of so many bytes.
func padded(size int) string {
	request := body()
	return request + strings.Repeat(" ", size-len(request))
}

func TestTheBodysSizeAndMediaType(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.accept(t, "key-1", padded(maxBody))
	for i, kind := range []string{"Application/JSON;charset=UTF-8", `application/json; charset="utf-8"; profile=x`} {
		w.accepted(t, post("key-2"+strconv.Itoa(i), body()).with("Content-Type", kind).with("Content-Encoding", "identity"))
	}
	before := rows(t, w.db)
	t.Run("a body that does not say its size", func(t *testing.T) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/charges",
			io.MultiReader(strings.NewReader(padded(maxBody+1))))
		if err != nil {
			t.Fatal(err)
		}
		request.Header = post("key-3", "").header
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
	})
	for name, types := range map[string][]string{
		"missing":                      nil,
		"empty":                        {""},
		"a form":                       {"application/x-www-form-urlencoded"},
		"JSON of another kind":         {"application/merge-patch+json"},
		"JSON with a broken parameter": {"application/json; charset"},
		"two at once":                  {"application/json, text/plain"},
		"the same twice":               {"application/json", "application/json"},
		"JSON in another charset":      {"application/json; charset=utf-16"},
	} {
		t.Run(name, func(t *testing.T) {
			wantProblem(t, w.send(t, post("key-3", body()).with("Content-Type", types...)), "/problems/unsupported-media-type")
		})
	}
	wantProblem(t, w.send(t, post("key-3", padded(1<<20))), "/problems/too-large")
	wantProblem(t, w.send(t, post("key-3", "").with("Content-Type")), "/problems/malformed")
	wantRows(t, w.db, before, nil)
}
