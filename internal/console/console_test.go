package console_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/console"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
)

const (
	id      = "ch_01a1fd336ed47bf6827f5db90a1e2454"
	hostile = `"><script>alert(1)</script><img src=x onerror=alert(2)>{{.}}'`
)

func requested() domain.ChargeRequested {
	return domain.ChargeRequested{MerchantID: "acme", OrderID: "order-1", Amount: 12345, Currency: "EUR", PaymentMethod: "pm_card_visa", Steps: []string{domain.Inventory, domain.Payment, domain.Notification}, Skipped: []string{domain.Inventory, domain.Notification}}
}

// dead stores a dead letter of a charge, with one message behind it.
func (w *world) dead(t *testing.T, charge, reason string) {
	t.Helper()
	testdb.Exec(t, w.db.Pool(), `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, attempts, last_error)
values ('notification', 'd-1', $1, 'charge.succeeded.v1', convert_to($2, 'UTF8'), jsonb_build_object('m', $2::text), '', 'dead', 12, $2),
       ('notification', 'd-2', $1, 'refund.succeeded.v1', '{}', '{}', '', 'pending', 0, null)`, charge, reason)
}

func (w *world) deadNumber(t *testing.T) string {
	t.Helper()
	return testdb.All[string](t, w.db, `select id::text from inbox where message_id = 'd-1'`)[0]
}

// TestPages shows what others have stored on every page, as text.
func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, open, nil)
	w.key(t, "acme", merchants.Admin)
	request := requested()
	request.OrderID, request.Metadata = hostile, map[string]string{hostile: hostile}
	request.Items = []domain.Item{{SKU: hostile, Quantity: 2}}
	failed := domain.Failure{Code: domain.CardDeclined, Message: hostile}
	w.charge(t, request, domain.InventoryReserved{Items: request.Items}, domain.PaymentDeclined{Failure: failed}, domain.InventoryReleased{Items: request.Items}, domain.ChargeFailed{Failure: failed})
	testdb.Exec(t, w.db.Pool(), `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, location, body, expires_at)
values ('acme', 'POST /v1/charges', $1, '', 202, 'application/json', '/v1/charges/`+id+`', '{}', now() + interval '1 day')`, hostile)
	w.dead(t, id, hostile)
	for path, holds := range map[string][]string{
		"/":                                      {"Flow", "one outcome per charge", "1 dead letter", "no api has a session"},
		"/charges":                               {id, "123.45 EUR", "failed", "card_declined"},
		"/charges?q=" + id:                       {id},
		"/charges?q=" + url.QueryEscape(hostile): {id},
		"/charges?status=failed&amount=12345":    {id},
		"/charges?status=succeeded":              {"No charge matches"},
		"/charges?amount=x":                      {"No charge matches"},
		"/charges/" + id:                         {"charge.failed.v1", "inventory.reserved.v1", "Timeline"},
		"/charges/" + url.PathEscape(hostile):    {id},
		"/dead-letters":                          {"Message", "1 message", "charge.succeeded.v1"},
		"/dead-letters/" + w.deadNumber(t):       {"Payload", "Held up behind it"},
		"/lab":                                   {"no crash lab here"},
		"/learn":                                 {"No charge has succeeded yet"},
		"/learn?charge=" + id:                    {"What if it dies here?", "charge.requested.v1"},
	} {
		p := w.get(t, path)
		p.is(t, path, http.StatusOK)
		for _, text := range holds {
			if !strings.Contains(p.body, text) {
				t.Errorf("%s does not show %q\n%s", path, text, p.body)
			}
		}
		for _, active := range []string{"<script>", "<img src=x", "onerror=alert(2)>", " style=", "ZgotmplZ"} {
			if strings.Contains(p.body, active) {
				t.Errorf("%s holds %q", path, active)
			}
		}
		if !strings.Contains(p.header.Get("Content-Security-Policy"), "default-src 'none'") || p.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s has the headers %v", path, p.header)
		}
	}
	w.post(t, "/dead-letters", "/lab", url.Values{"action": {"kill-worker"}}).is(t, "an action without a lab", http.StatusForbidden)
	for path, status := range map[string]int{
		"/nowhere": 404, "/charges/ch_unknown": 404, "/dead-letters/999999": 404, "/dead-letters/x": 404, "/charges?q=%00": 400,
		"/charges/%00": 400, "/charges/%ff": 400, "/charges?q=%ff": 400, "/charges?q=%zz": 400, "/learn?charge=%fe": 400,
	} {
		if p := w.get(t, path); p.status != status || !strings.Contains(p.body, "<h1>") {
			t.Errorf("%s: %d, want %d", path, p.status, status)
		}
	}
}

// TestCharges_pagesByKey reads every charge once, page by page.
func TestCharges_pagesByKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, open, nil)
	testdb.Exec(t, w.db.Pool(), `
insert into charge_list (generation, charge_id, merchant_id, order_id, status, created_at, version, view)
select 1, 'ch_' || to_char(n, 'FM0000'), 'acme', 'o', case when n % 2 = 0 then 'failed' else 'pending' end, now(), 1,
       json_build_object('id', 'ch_' || to_char(n, 'FM0000'), 'amount', 5, 'currency', 'EUR', 'status', 'failed', 'created_at', now())
  from generate_series(1, 230) n`)
	for query, want := range map[string]int{"": 230, "?status=failed": 115, "?amount=5": 230} {
		seen, path := map[string]int{}, "/charges"+query
		for range 10 {
			body := w.get(t, path).body
			for part := range strings.SplitSeq(body, `<a href="/charges/`) {
				if name, _, _ := strings.Cut(part, `"`); strings.HasPrefix(name, "ch_") {
					seen[name]++
				}
			}
			_, rest, more := strings.Cut(body, `class="pager"><a href="`)
			if !more {
				break
			}
			path, _, _ = strings.Cut(strings.ReplaceAll(rest, "&amp;", "&"), `"`)
		}
		if len(seen) != want {
			t.Errorf("%q shows %d charges, want %d", query, len(seen), want)
		}
		for name, n := range seen {
			if n != 1 {
				t.Errorf("%s is shown %d times", name, n)
			}
		}
	}
}

// TestDeadLetters: a decision is stored once, with the operator and the reason, in the audit log.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, console.Options{}, nil)
	key := w.key(t, "ops", merchants.Operator)
	w.charge(t, requested())
	w.dead(t, id, "the shop does not answer")
	n := w.deadNumber(t)
	w.post(t, "/login", "/login", url.Values{"key": {key}})
	w.post(t, "/dead-letters", "/dead-letters/"+n+"/discard", url.Values{"reason": {"  "}}).is(t, "discarded without a reason", http.StatusUnprocessableEntity)
	if p := w.post(t, "/dead-letters", "/dead-letters/"+n+"/retry", url.Values{}); p.url != "/dead-letters/"+n || !strings.Contains(p.body, "console:"+merchants.Prefix(key)+" decided") {
		t.Errorf("retried: %d %s", p.status, p.body)
	}
	w.post(t, "/dead-letters", "/dead-letters/"+n+"/retry", url.Values{}).is(t, "retried twice", http.StatusConflict)
	testdb.Exec(t, w.db.Pool(), `update inbox set status = 'dead' where message_id = 'd-1'`)
	w.post(t, "/dead-letters/"+n, "/dead-letters/"+n+"/discard", url.Values{"reason": {"paid by hand"}}).is(t, "discarded", http.StatusOK)
	got := testdb.All[string](t, w.db, `
select concat_ws(' ', action, actor, after ->> 'status', after ->> 'reason')
  from operator_actions
 where action like 'inbox %'
 order by action_id`)
	actor := "console:" + merchants.Prefix(key)
	if fmt.Sprint(got) != fmt.Sprint([]string{"inbox retry " + actor + " pending", "inbox discard " + actor + " discarded paid by hand"}) {
		t.Errorf("the audit log has %q", got)
	}
	testdb.Exec(t, w.db.Pool(), `
do $$ begin
  perform set_config('payonce.actor', repeat('a', 5000), true), set_config('payonce.reason', repeat('r', 5000), true);
  update inbox set status = 'dead' where message_id = 'd-2';
  update inbox set status = 'pending', decided_by = 'x', decided_at = now() where message_id = 'd-2';
end $$`)
	if long := testdb.All[string](t, w.db, `select length(actor) || ' ' || length(after ->> 'reason') from operator_actions order by action_id desc limit 1`)[0]; long != "255 2000" {
		t.Errorf("of long texts the audit log keeps %s characters", long)
	}
	if body := w.get(t, "/dead-letters").body; !strings.Contains(body, "paid by hand") || !strings.Contains(body, actor) {
		t.Error("the page does not show what was decided")
	}
}

// TestLogin: only a key of scope operator that is in force opens the console.
func TestLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, console.Options{Settings: console.Settings{AuthenticationFailures: 3}}, nil)
	for _, path := range []string{"/", "/charges", "/charges/" + id, "/dead-letters", "/dead-letters/1", "/lab", "/learn", "/live"} {
		if p := w.get(t, path); p.url != "/login" || strings.Contains(p.body, "Dead letters") {
			t.Errorf("%s leads to %s", path, p.url)
		}
	}
	operator := w.key(t, "ops", merchants.Operator)
	for path, form := range map[string]url.Values{"/dead-letters/1/retry": {}, "/dead-letters/1/discard": {"reason": {"r"}}, "/lab": {"action": {"x"}}} {
		if p := w.post(t, "/login", path, form); p.url != "/login" {
			t.Errorf("%s without a key: %d %s", path, p.status, p.url)
		}
	}
	w.post(t, "/login", "/login", url.Values{"key": {w.key(t, "acme", merchants.Scopes()...)}}).is(t, "a merchant's key of every scope", http.StatusForbidden)
	before, err := url.Parse(w.server.URL)
	testdb.Must(t, err)
	anonymous := w.browser.Jar.Cookies(before)[0].Value
	if p := w.post(t, "/login", "/login", url.Values{"key": {operator}}); p.status != http.StatusOK || p.url != "/" {
		t.Fatalf("an operator's key: %d %s", p.status, p.url)
	}
	if cookies := w.browser.Jar.Cookies(before); cookies[0].Value == anonymous {
		t.Error("the id of the browser is the one from before")
	}
	testdb.Exec(t, w.db.Pool(), `update api_keys set revoked_at = now() where merchant_id = 'ops'`)
	if p := w.post(t, "/", "/logout", url.Values{}); p.url != "/login" {
		t.Errorf("sign out leads to %s", p.url)
	}
	if p := w.get(t, "/charges"); p.url != "/login" {
		t.Errorf("signed out, and the page is %s", p.url)
	}
	for _, want := range []int{http.StatusForbidden, http.StatusForbidden, http.StatusTooManyRequests, http.StatusTooManyRequests} {
		w.post(t, "/login", "/login", url.Values{"key": {operator}}).is(t, "a revoked key", want)
	}
}

// TestLogin_behindAProxy: a wrong key counts for the client that sent it.
func TestLogin_behindAProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, console.Options{Settings: console.Settings{AuthenticationFailures: 1, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}, nil)
	for _, c := range []struct {
		from string
		want int
	}{{"203.0.113.1", http.StatusForbidden}, {"203.0.113.1", http.StatusTooManyRequests}, {"203.0.113.2", http.StatusForbidden}} {
		w.from = c.from
		w.post(t, "/login", "/login", url.Values{"key": {"sk_wrong"}}).is(t, "a wrong key of "+c.from, c.want)
	}
}

// TestLogin_ends: an operator whose key was revoked sees nothing on any page, half a minute later.
// With TLS no other host can set the cookie.
func TestLogin_ends(t *testing.T) {
	t.Parallel()
	var later atomic.Int64
	w := newWorld(t, console.Options{Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }}, nil)
	w.post(t, "/login", "/login", url.Values{"key": {w.key(t, "ops", merchants.Operator)}})
	if p := w.get(t, "/"); !strings.Contains(p.body, `class="strip"`) {
		t.Fatalf("signed in: %d %s", p.status, p.body)
	}
	testdb.Exec(t, w.db.Pool(), `update api_keys set revoked_at = now()`)
	later.Store(int64(31 * time.Second))
	for _, path := range []string{"/nowhere", "/login", "/"} {
		if p := w.get(t, path); strings.Contains(p.body, "strip") || strings.Contains(p.body, "Sign out") {
			t.Errorf("%s shows %s", path, p.body)
		}
	}
	w = newWorld(t, console.Options{Settings: console.Settings{Certificate: program.Certificate{TLSCertFile: "c"}}}, nil)
	w.browser = newBrowser(t)
	if set := w.get(t, "/login").header.Get("Set-Cookie"); !strings.HasPrefix(set, "__Host-") || !strings.Contains(set, "; Path=/; HttpOnly; Secure; SameSite=Strict") {
		t.Errorf("the cookie is %s", set)
	}
}

// TestRequests_ofOtherSitesAreRefused: by host, by origin, and without the visitor's own token.
func TestRequests_ofOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, open, nil)
	w.charge(t, requested())
	w.dead(t, id, "no answer")
	path := "/dead-letters/" + w.deadNumber(t) + "/discard"
	other := newBrowser(t)
	w.browser, other = other, w.browser
	token := tokenIn.FindStringSubmatch(w.get(t, "/dead-letters").body)[1]
	w.browser = other
	w.post(t, "/dead-letters", path, url.Values{"reason": {"\xff"}}).is(t, "a reason that is no text", http.StatusBadRequest)
	for name, c := range map[string]struct {
		token, host, origin string
		status              int
	}{
		"without a token":       {"", "", "", http.StatusForbidden},
		"another visitor's":     {token, "", "", http.StatusForbidden},
		"from another origin":   {"own", "", "https://evil.example", http.StatusForbidden},
		"under another host":    {"own", "evil.example", "", http.StatusMisdirectedRequest},
		"under a host with dot": {"own", "127.0.0.1.evil.example:80", "", http.StatusMisdirectedRequest},
	} {
		form := url.Values{"reason": {"r"}, "token": {c.token}}
		if c.token == "own" {
			form.Set("token", tokenIn.FindStringSubmatch(w.get(t, "/dead-letters").body)[1])
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL+path, strings.NewReader(form.Encode()))
		testdb.Must(t, err)
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Host = c.host
		if c.origin != "" {
			request.Header.Set("Origin", c.origin)
		}
		w.do(t, request).is(t, name, c.status)
	}
	if left := testdb.All[string](t, w.db, `select status from inbox where message_id = 'd-1'`); left[0] != "dead" {
		t.Errorf("the message is %s", left[0])
	}
}

// lines are what a stream sends.
func (w *world) lines(t *testing.T, path string) <-chan string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+path, http.NoBody)
	testdb.Must(t, err)
	response, err := w.browser.Do(request)
	testdb.Must(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %s", path, response.Status)
	}
	all := make(chan string, 10_000)
	go func() {
		scanner := bufio.NewScanner(response.Body)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			all <- scanner.Text()
		}
	}()
	return all
}

func awaitLine(t *testing.T, lines <-chan string, holds string) {
	t.Helper()
	await.True(t, holds+" is sent", func() bool {
		for {
			select {
			case line := <-lines:
				if strings.Contains(line, "\r") {
					t.Errorf("a browser reads two lines in %q", line)
				}
				if strings.Contains(line, holds) {
					return true
				}
			default:
				return false
			}
		}
	})
}

// TestStream shows what changes without another request: a charge, a claim, a program that dies,
// the takeover of its message, and the end of a session.
func TestStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, open, nil)
	flow, own := w.lines(t, "/live?page=Flow"), w.lines(t, "/live?page=Charge&charge="+id)
	awaitLine(t, flow, "no worker has a session")
	w.charge(t, requested())
	awaitLine(t, own, "charge.requested.v1")
	session := func(name string) (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		conn, err := w.db.Pool().Acquire(ctx)
		testdb.Must(t, err)
		session := conn.Hijack()
		_, err = session.Exec(ctx, `set application_name = 'payonce-worker `+name+`'`)
		testdb.Must(t, err)
		return func() { _ = session.Close(ctx); cancel() }
	}
	end := session("vm:1")
	defer session("vm:2")()
	claim := func(holder, status string, fence int) {
		testdb.Exec(t, w.db.Pool(), `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, holder, due_at, fence, done_fence)
values ('fulfillment', 'c-1', $1, e'charge.requested.v1\revent: forged', '{}', '{}', '', $3, $2, now() + interval '3 s', $4, $4)
on conflict (message_id, receiver) do update set holder = excluded.holder, status = excluded.status, fence = excluded.fence, done_fence = excluded.fence,
            history = jsonb_build_array(jsonb_build_object('fence', 1, 'holder', 'vm:1', 'at', now(), 'lease_ended_at', now()))`, id, holder, status, fence)
	}
	claim("vm:1", "running", 1)
	awaitLine(t, flow, "<code>vm:1</code>")
	awaitLine(t, own, "running")
	end()
	awaitLine(t, flow, "died")
	awaitLine(t, flow, "takeover in")
	claim("vm:2", "done", 2) // all of it between two reads of the console
	awaitLine(t, flow, "<code>vm:1</code></td><td><code>vm:2</code>")
	awaitLine(t, flow, "one capture per charge")
}

// TestLive_costsTheDatabaseTheSame counts the statements with no page and with many.
func TestLive_costsTheDatabaseTheSame(t *testing.T) {
	t.Parallel()
	counted := &counter{}
	w := newWorld(t, open, counted)
	w.charge(t, requested())
	const most, during = 3, 8 * time.Second
	measure := func(pages int) (statements int64) {
		for range pages {
			w.lines(t, "/live?page=Flow")
		}
		before := counted.n.Load()
		ctx, cancel := context.WithTimeout(t.Context(), during)
		defer cancel()
		<-ctx.Done()
		return counted.n.Load() - before
	}
	if n := measure(0); n > int64(most*during.Seconds()) {
		t.Errorf("%d statements without a page", n)
	}
	if n := measure(200); n > int64(most*during.Seconds()) || n < 5 {
		t.Errorf("%d statements in %s with 200 pages", n, during)
	}
}
