package console_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/console"
)

// lab takes an action of each kind, which says something, and ends when the test lets it.
type lab struct{ end chan struct{} }

func actions() []console.Action {
	return []console.Action{{Name: "kill", Group: "program", Title: "Kill"}, {Name: "once", Group: "guard", Title: "Remove once", Shows: "one answer"}}
}

func (l lab) do(_ context.Context, name string, progress func(string)) (string, []byte, error) {
	progress("storm " + hostile)
	<-l.end
	if name == "kill" {
		return "", nil, errors.New("no program")
	}
	return "violated", []byte(`{"guard": "once", "violated": [{"name": "one answer", "violated": 1, "examples": ["` + id + `"]}],
  "timelines": [{"charges": [{"id": "` + id + `", "amount": 1}], "entries": [{"at": "2026-01-01T00:00:00Z", "kind": "key", "what": "<script>"}]}]}`), nil
}

// TestLab: an operator takes one action at a time and sees how far it has come. The finding of the
// guard lab has the invariant beside the swim lanes of the charge.
func TestLab(t *testing.T) {
	t.Parallel()
	l := lab{make(chan struct{})}
	w := newWorld(t, console.Options{Actions: actions(), Do: l.do}, nil)
	for _, action := range []string{"once", "kill"} {
		w.post(t, "/lab", url.Values{"action": {"nothing"}}).is(t, "an unknown action", http.StatusNotFound)
		if p := w.post(t, "/lab", url.Values{"action": {action}}); p.status != http.StatusOK || !strings.Contains(p.body, "in progress") {
			t.Errorf("%s: %d %s", action, p.status, p.body)
		}
		w.awaitPage(t, "/lab", "storm &#34;&gt;&lt;script&gt;")
		w.post(t, "/lab", url.Values{"action": {"kill"}}).is(t, "another action meanwhile", http.StatusConflict)
		l.end <- struct{}{}
		await.True(t, "the action has ended", func() bool { return !strings.Contains(w.get(t, "/lab").body, "in progress") })
	}
	await.True(t, "the finding is shown beside the failed action", func() bool {
		body := w.get(t, "/lab").body
		return strings.Contains(body, "<b> 1 violated</b><code>"+id) && strings.Contains(body, `class="lanes"`) &&
			strings.Contains(body, `failed</span> <span class="said">no program`) && !strings.Contains(body, "<script>")
	})
}
