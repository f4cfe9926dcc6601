package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRulesHEADAnswersLikeEveryGET(t *testing.T) {
	t.Parallel()
	w := serve(t)
	reads := w.reads(t)
	reads["no path of the API"] = "/nowhere"
	before := rows(t, w.db)
	for name, path := range reads {
		t.Run(name, func(t *testing.T) {
			read := w.send(t, get(path))
			head := w.send(t, get(path).like(http.MethodHead))
			if head.status != read.status || head.body != "" {
				t.Errorf("HEAD %d %q, GET %d", head.status, head.body, read.status)
			}
			if got, want := head.header.Get("Content-Type"), read.header.Get("Content-Type"); got != want {
				t.Errorf("Content-Type is %s, of GET %s", got, want)
			}
			if strings.HasPrefix(path, "/v1/") {
				nobody := w.send(t, get(path).like(http.MethodHead).with("Authorization"))
				if nobody.status != http.StatusUnauthorized || nobody.header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("without an API key: %d %v", nobody.status, nobody.header)
				}
			}
			wantRows(t, w.db, before, nil)
		})
	}
}

func TestRulesAMethodThatARouteDoesNotKnow(t *testing.T) {
	t.Parallel()
	w := serve(t)
	reads := w.reads(t)
	before := rows(t, w.db)
	charge := reads["a charge"]
	read, write := []string{"GET", "HEAD", "OPTIONS"}, []string{"OPTIONS", "POST"}
	for path, allow := range map[string][]string{
		charge + "/cancel":                      write,
		charge + "/refunds":                     {"GET", "HEAD", "OPTIONS", "POST"},
		reads["a refund"]:                       read,
		"/v1/idempotency-keys/a-charge-to-read": read,
		"/v1/charges":                           {"GET", "HEAD", "OPTIONS", "POST"},
		charge:                                  read,
		reads["its events"]:                     read,
		"/v1/balances":                          read,
		"/v1/audit":                             read,
		"/healthz":                              read,
		"/readyz":                               read,
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "BREW"} {
			if slices.Contains(allow, method) {
				continue
			}
			t.Run(method+" "+strings.Replace(path, charge, "", 1), func(t *testing.T) {
				a := w.send(t, to(path, "key", "{}").like(method))
				if method == http.MethodHead {
					if a.status != http.StatusMethodNotAllowed {
						t.Errorf("status %d", a.status)
					}
				} else {
					wantProblem(t, a, "/problems/method-not-allowed")
				}
				allowed := strings.Split(a.header.Get("Allow"), ", ")
				slices.Sort(allowed)
				if diff := cmp.Diff(allow, allowed); diff != "" {
					t.Errorf("Allow (-want +got):\n%s", diff)
				}
				wantRows(t, w.db, before, nil)
			})
		}
	}
}
