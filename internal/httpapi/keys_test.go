package httpapi_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/await"
)

func TestKey_isOneQuotedAndBare(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for _, r := range w.routes(t) {
		t.Run(r.name, func(t *testing.T) {
			const visible = "!#$%&'()*+-./:<=>?@[]^_`{|}~"
			longest := strings.Repeat("k", 255)
			for _, test := range []struct{ quoted, bare, echo string }{
				{`"key"`, "key", "key"},
				{`"` + longest + `"`, longest, longest},
				{`"` + visible + `"`, visible, visible},
				{`"a\"b\\c"`, ` "a\"b\\c"`, `a"b\c`},
				{`"order 17"`, `"order 17"`, "order 17"},
				{`"a,b;c"`, `"a,b;c"`, "a,b;c"},
			} {
				first := w.accepted(t, r.under(test.quoted))
				if echo := first.header.Get("Idempotency-Key"); echo != test.echo {
					t.Errorf("the echo of %s is %q, want %q", test.quoted, echo, test.echo)
				}
				wantReplay(t, first, w.send(t, r.under(test.bare)))
				wantReplay(t, first, w.send(t, r.under(" "+test.bare+"\t")))
			}
		})
	}
}

func TestKey_belongsToItsMerchantAndOperation(t *testing.T) {
	t.Parallel()
	w := serve(t)
	routes := w.routes(t)
	before := rows(t, w.db)
	for _, r := range routes {
		w.first(t, r.under("one"))
	}
	wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 3, "ledger_events": 3, "ledger_postings": 2, "outbox": 3})
	w.first(t, post("ONE", body()))

	// To another merchant the same paths are charges that do not exist.
	for _, r := range routes {
		a := w.send(t, r.under("one").as(strangerKey))
		if a.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("%s: another merchant's answer is given away: %s", r.name, a.body)
		}
	}
}

// The key is the client's: it may be of digits alone. What may be a card number is stored as
// a hash, and logged nowhere.
func TestKey_thatMayBeACardNumber(t *testing.T) {
	t.Parallel()
	w := serve(t)
	routes := w.routes(t)
	for _, r := range routes {
		for _, key := range []string{"4242424242424242", "refund-5555-5555-5555-4444"} {
			a := w.accepted(t, r.under(key))
			if a.header.Get("Idempotency-Key") != key {
				t.Errorf("%s: headers %v", r.name, a.header)
			}
			wantReplay(t, a, w.send(t, r.under(`"`+key+`"`)))
		}
	}
	for _, key := range []string{"4242424242424242", "refund-5555-5555-5555-4444"} {
		if uses := data(t, w.send(t, get("/v1/idempotency-keys/"+key))); len(uses) != len(routes) {
			t.Errorf("%s led to %v", key, uses)
		}
	}
	for _, column := range []string{"idempotency_keys.key", "ledger_events.metadata::text", "outbox.metadata::text"} {
		table, _, _ := strings.Cut(column, ".")
		await.Row(t, w.db, `select count(*) > 0 and not bool_or(`+column+` ~ '4242[ -]?4242|5555[ -]?5555') from `+table)
	}
	if regexp.MustCompile(`4242[ -]?4242|5555[ -]?5555`).MatchString(w.log.String()) {
		t.Errorf("the number is logged: %s", w.log)
	}
}
