package httpapi_test

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestTheContractIsServed: to anybody, and once.
func TestTheContractIsServed(t *testing.T) {
	t.Parallel()
	w := serve(t)
	document, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	anybody := get("/openapi.yaml").with("Authorization")
	a := w.send(t, anybody)
	if a.status != http.StatusOK || a.body != string(document) || a.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("status %d, %s, %d bytes", a.status, a.header.Get("Content-Type"), len(a.body))
	}
	for condition, status := range map[string]int{
		a.header.Get("Etag"):           http.StatusNotModified,
		`"a", ` + a.header.Get("Etag"): http.StatusNotModified,
		"*":                            http.StatusNotModified,
		`"0123456789abcdef"`:           http.StatusOK,
	} {
		again := w.send(t, anybody.with("If-None-Match", condition))
		if again.status != status || status == http.StatusNotModified && again.body != "" {
			t.Errorf("If-None-Match: %s: status %d, want %d", condition, again.status, status)
		}
	}
}

// TestTheManualIsServed follows the link of the problem that names it, and then
// every file that the page loads. None is from elsewhere, and the page's policy
// would not let it be.
func TestTheManualIsServed(t *testing.T) {
	t.Parallel()
	w := serve(t)
	missing := w.send(t, post("", body()).with("Idempotency-Key"))
	wantProblem(t, missing, "/problems/idempotency-key-missing")
	link := regexp.MustCompile(`^<([^>]+)>; rel="describedby"$`).FindStringSubmatch(missing.header.Get("Link"))
	if link == nil {
		t.Fatalf("Link is %q", missing.header.Get("Link"))
	}
	page := w.send(t, get(link[1]).with("Authorization"))
	if page.status != http.StatusOK || !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
		t.Fatalf("%s: status %d, %s", link[1], page.status, page.header.Get("Content-Type"))
	}
	for directive := range strings.SplitSeq(page.header.Get("Content-Security-Policy"), ";") {
		name, sources, _ := strings.Cut(strings.TrimSpace(directive), " ")
		for source := range strings.FieldsSeq(sources) {
			switch source {
			case "'none'", "'self'":
			case "data:":
				if name != "img-src" {
					t.Errorf("%s lets data in", name)
				}
			case "'unsafe-inline'":
				if name != "style-src" {
					t.Errorf("%s lets inline content in", name)
				}
			default:
				t.Errorf("%s lets %s in", name, source)
			}
		}
	}
	if !strings.HasPrefix(page.header.Get("Content-Security-Policy"), "default-src 'none';") {
		t.Error("what the policy does not name may come from elsewhere")
	}
	files := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(page.body, -1)
	if len(files) < 4 {
		t.Fatalf("the page has %v", files)
	}
	for _, file := range files {
		if file[1] == "data:," { // no icon
			continue
		}
		a := w.send(t, get(file[1]).with("Authorization").with("Accept-Encoding", "identity"))
		packed := w.send(t, get(file[1]).with("Authorization").with("Accept-Encoding", "gzip"))
		if a.status != http.StatusOK || a.header.Get("Content-Encoding") != "" || len(a.body) == 0 || packed.status != http.StatusOK {
			t.Errorf("%s: status %d and %d, %s, %d bytes", file[1], a.status, packed.status, a.header.Get("Content-Encoding"), len(a.body))
		}
		if tag := packed.header.Get("Etag"); packed.header.Get("Content-Encoding") != "gzip" || !strings.HasPrefix(tag, `W/"`) {
			t.Errorf("%s packed has %d bytes, and the tag %s", file[1], len(packed.body), tag)
		}
	}
	wantProblem(t, w.send(t, get("/docs/other.js")), "/problems/not-found")
	wantProblem(t, w.send(t, get("/docs/%2e%2e%2fopenapi.yaml")), "/problems/not-found")
}
