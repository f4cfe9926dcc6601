package console_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/console"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

const (
	id      = "ch_01a1fd336ed47bf6827f5db90a1e2454"
	hostile = `"><script>alert(1)</script><img src=x onerror=alert(2)>{{.}}'`
)

func requested() domain.ChargeRequested {
	return domain.ChargeRequested{Terms: domain.Terms{MerchantID: "acme", OrderID: "order-1", Money: domain.Money{Amount: 12345, Currency: "EUR"}, PaymentMethod: "pm_card_visa"}, Steps: []string{domain.Inventory, domain.Payment, domain.Notification}, Skipped: []string{domain.Inventory, domain.Notification}}
}

// dead stores a dead letter of a charge, with one message behind it.
func (w *world) dead(t *testing.T, charge, reason string) {
	t.Helper()
	testdb.Exec(t, w.db.Pool(), `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first, attempts, last_error)
values ('notification', 'd-1', $1, 'charge.succeeded.v1', convert_to($2, 'UTF8'), jsonb_build_object('m', $2::text), '', 'dead', true, 12, $2),
       ('notification', 'd-2', $1, 'refund.succeeded.v1', '{}', '{}', '', 'pending', false, 0, null)`, charge, reason)
}

func (w *world) deadNumber(t *testing.T) string {
	t.Helper()
	return testdb.All[string](t, w.db, `select id::text from inbox where message_id = 'd-1'`)[0]
}

// TestPages shows what others have stored on every page, as text. No page takes a form, but for that of the lab.
func TestPages(t *testing.T) {
	testrun.Long(t, "it reads every page")
	t.Parallel()
	w := newWorld(t, console.Options{}, nil)
	w.merchant(t)
	request := requested()
	request.OrderID, request.Metadata = hostile, map[string]string{hostile: hostile}
	request.Items, request.Skipped = []domain.Item{{SKU: hostile, Quantity: 2}}, []string{domain.Notification}
	failed := domain.Failure{Code: domain.CardDeclined, Message: hostile}
	w.charge(t, request, domain.InventoryReserved{Items: request.Items}, domain.PaymentDeclined{Failure: failed},
		domain.InventoryReleased{Items: request.Items}, domain.ChargeFailed{Failure: failed})
	testdb.Exec(t, w.db.Pool(), `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, headers, body, expires_at)
values ('acme', 'POST /v1/charges', $1, '', 202, '{"Location":["/v1/charges/`+id+`"]}', '{}', now() + interval '1 day')`, hostile)
	w.dead(t, id, hostile)
	w.awaitPage(t, "/", "1 dead letter")
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
		"/dead-letters/" + w.deadNumber(t): {
			"Payload", "Held up behind it",
			"payonce inbox retry " + w.deadNumber(t), "payonce inbox discard " + w.deadNumber(t) + " --reason",
		},
		"/lab":                {"no crash lab here"},
		"/learn":              {"No charge has succeeded yet"},
		"/learn?charge=" + id: {"What if it dies here?", "charge.requested.v1"},
	} {
		p := w.get(t, path)
		p.is(t, path, http.StatusOK)
		for _, text := range holds {
			if !strings.Contains(p.body, text) {
				t.Errorf("%s does not show %q\n%s", path, text, p.body)
			}
		}
		for _, active := range []string{"<script>", "<img src=x", "onerror=alert(2)>", " style=", "ZgotmplZ", `method="post"`} {
			if strings.Contains(p.body, active) {
				t.Errorf("%s holds %q", path, active)
			}
		}
		if path, _, _ := strings.Cut(path, "?"); path != "/lab" {
			w.post(t, path, url.Values{}).is(t, "a form sent to "+path, http.StatusNotFound)
		}
		if !strings.Contains(p.header.Get("Content-Security-Policy"), "default-src 'none'") || p.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s has the headers %v", path, p.header)
		}
	}
	w.post(t, "/lab", url.Values{"action": {"kill-worker"}}).is(t, "an action without a lab", http.StatusNotFound)
	for path, status := range map[string]int{
		"/nowhere": 404, "/charges/ch_unknown": 404, "/dead-letters/999999": 404, "/dead-letters/x": 404, "/charges?q=%00": 400,
		"/charges/%00": 400, "/charges/%ff": 400, "/charges?q=%ff": 400, "/learn?charge=%fe": 400,
	} {
		if p := w.get(t, path); p.status != status || !strings.Contains(p.body, "<h1>") {
			t.Errorf("%s: %d, want %d", path, p.status, status)
		}
	}
}

// TestCharges_pagesByKey reads every charge once, page by page, but for one that cannot be read.
func TestCharges_pagesByKey(t *testing.T) {
	testrun.Long(t, "it stores many charges")
	t.Parallel()
	w := newWorld(t, console.Options{}, nil)
	testdb.Exec(t, w.db.Pool(), `
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || to_char(n, 'FM0000'), v,
       case when n = 181 then 'charge.later.v1' when v = 1 then 'charge.requested.v1' else 'charge.failed.v1' end, 'acme',
       case v when 1 then '{"merchant_id": "acme", "order_id": "o", "amount": 5, "currency": "EUR", "steps": ["payment"]}' else '{"code": "canceled"}' end::jsonb,
       '{}', now()
  from generate_series(1, 230) n,
       generate_series(1, 2) v
 where v = 1 or n % 2 = 0`)
	for query, want := range map[string]int{"": 229, "?status=failed": 115, "?amount=5": 229} {
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

// TestRequests_ofOtherSitesAreRefused: by host on every page, and by origin of a form.
func TestRequests_ofOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, console.Options{Do: func(string) (string, error) { return "", nil }}, nil)
	for _, c := range []struct {
		method, host, origin string
		status               int
	}{
		{http.MethodGet, "localhost:8088", "", http.StatusOK},
		{http.MethodGet, "LocalHost", "", http.StatusOK},
		{http.MethodGet, "127.0.0.1:9000", "", http.StatusOK},
		{http.MethodGet, "[::1]:8088", "", http.StatusOK},
		{http.MethodGet, "[::1]", "", http.StatusOK},
		{http.MethodGet, "evil.example", "", http.StatusMisdirectedRequest},
		{http.MethodGet, "localhost.evil.example:8088", "", http.StatusMisdirectedRequest},
		{http.MethodGet, "127.0.0.1.evil.example:80", "", http.StatusMisdirectedRequest},
		{http.MethodGet, "192.0.2.7:8088", "", http.StatusMisdirectedRequest},
		{http.MethodGet, "0.0.0.0:8088", "", http.StatusMisdirectedRequest},
		{http.MethodPost, "evil.example", "http://evil.example", http.StatusMisdirectedRequest},
		{http.MethodPost, "localhost:8088", "https://evil.example", http.StatusForbidden},
		{http.MethodPost, "localhost:8088", "http://localhost:8088", http.StatusNotFound}, // there is no action "x"
	} {
		request, err := http.NewRequestWithContext(t.Context(), c.method, w.server.URL+"/lab?action=x", http.NoBody)
		testdb.Must(t, err)
		request.Host = c.host
		if c.origin != "" {
			request.Header.Set("Origin", c.origin)
		}
		w.do(t, request).is(t, c.method+" under "+c.host+" from "+c.origin, c.status)
	}
}

// awaitPage waits until a page holds a text.
func (w *world) awaitPage(t *testing.T, path, holds string) {
	t.Helper()
	testrun.True(t, path+" shows "+holds, func() bool { return strings.Contains(w.get(t, path).body, holds) })
}

// TestFlow shows what changes: a charge, a claim, a program that dies, and the takeover of its
// message.
func TestFlow(t *testing.T) {
	testrun.Long(t, "it waits for a charge")
	t.Parallel()
	w := newWorld(t, console.Options{}, nil)
	w.awaitPage(t, "/", "no worker has a session")
	w.charge(t, requested())
	w.awaitPage(t, "/charges/"+id, "charge.requested.v1")
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
with registered as (insert into inbox_holders values ('fulfillment', $2 || '/RANDOM00', now() + interval '3 s'))
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first, holder, claimed_at, fence, done_fence)
values ('fulfillment', 'c-1', $1, 'charge.requested.v1', '{}', '{}', '', $3, $3 = 'running', $2 || '/RANDOM00', now(), $4, $4)
on conflict (message_id, receiver) do update set holder = excluded.holder, status = excluded.status, first = excluded.first, fence = excluded.fence, done_fence = excluded.fence,
            history = jsonb_build_array(jsonb_build_object('fence', 1, 'holder', 'vm:1/RANDOM00', 'at', now(), 'lease_ended_at', now()))`, id, holder, status, fence)
	}
	claim("vm:1", "running", 1)
	w.awaitPage(t, "/", "<code>vm:1</code>")
	w.awaitPage(t, "/charges/"+id, `running</span> charge.requested.v1 on <code>vm:1</code>`)
	end()
	w.awaitPage(t, "/", `class="dark"><b>worker</b> <code>vm:1</code> <span>died`)
	w.awaitPage(t, "/", "takeover in")
	claim("vm:2", "done", 2) // all of it between two reads of the console
	w.awaitPage(t, "/", "<code>vm:1</code></td><td><code>vm:2</code>")
	w.awaitPage(t, "/", "one capture per charge")
}

// TestAnswers_areKeptForASecond counts the statements of pages that many browsers ask for.
func TestAnswers_areKeptForASecond(t *testing.T) {
	testrun.Long(t, "it waits for audits and sends many requests")
	t.Parallel()
	counted := &counter{}
	w := newWorld(t, console.Options{}, counted)
	w.charge(t, requested())
	testrun.True(t, "the first audit has ended", func() bool { return strings.Contains(w.get(t, "/").body, "The last one ended") })
	before, began := counted.Load(), time.Now()
	var browsers sync.WaitGroup
	for range 50 {
		browsers.Go(func() {
			for range 10 {
				w.get(t, "/").is(t, "the flow", http.StatusOK)
				w.get(t, "/charges").is(t, "the list", http.StatusOK)
			}
		})
	}
	browsers.Wait()
	seconds := time.Since(began).Seconds()
	// In a second one statement of the line on each page, and two of the list: the ids and their streams.
	if n := float64(counted.Load() - before); n < 2 || n > 3*(seconds+1) {
		t.Errorf("%.0f statements in %.1f s", n, seconds)
	}
}

// TestFlow_readsABoundedPart counts the events that the statement of the Flow page reads of 2,000.
func TestFlow_readsABoundedPart(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	sql, err := os.ReadFile("flow.sql")
	testdb.Must(t, err)
	db := testdb.Open(t)
	testdb.Exec(t, db.Pool(), `
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
select md5(n::text)::uuid, 'ch_' || n, 1, 'charge.requested.v1', 'acme', '{}', '{}', now() from generate_series(1, 2000) n`)
	plan := testdb.All[string](t, db, "explain (analyze) "+string(sql), []string{"fulfillment"}, []int64{}, "charges")
	scan, scans := regexp.MustCompile(`Scan.* on ledger_events\b.* rows=(\d+)(\.\d+)? loops`), 0
	for _, line := range plan {
		found := scan.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		scans++
		if n, err := strconv.Atoi(found[1]); err != nil || n > 400 {
			t.Errorf("it reads %s events:%s", found[1], line)
		}
	}
	if scans == 0 {
		t.Errorf("it reads no event: %q", plan)
	}
}

// TestLearn_namesCodeThatIsThere: each step of the tour has its function.
func TestLearn_namesCodeThatIsThere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("assets/learn.html")
	testdb.Must(t, err)
	steps := regexp.MustCompile(`"file" "([^"]+)" "func" "([^"]+)"`).FindAllStringSubmatch(string(text), -1)
	if len(steps) != 10 {
		t.Errorf("the tour has %d steps", len(steps))
	}
	for _, step := range steps {
		code, err := os.ReadFile("../../" + step[1])
		if err != nil || !regexp.MustCompile(`(?m)^func (\([^)]+\) )?`+step[2]+`[[(]`).Match(code) {
			t.Errorf("%s has no %s: %v", step[1], step[2], err)
		}
	}
}

// TestLab: an operator takes one action at a time, and sees what each did.
func TestLab(t *testing.T) {
	t.Parallel()
	var w *world
	w = newWorld(t, console.Options{Actions: []console.Action{{Name: "kill", Title: "Kill"}, {Name: "send", Title: "Send"}}, Do: func(name string) (string, error) {
		w.post(t, "/lab", url.Values{"action": {"kill"}}).is(t, "another action meanwhile", http.StatusConflict)
		if name == "kill" {
			return "", errors.New("no program")
		}
		return "storm " + hostile, nil
	}}, nil)
	w.post(t, "/lab", url.Values{"action": {"nothing"}}).is(t, "an unknown action", http.StatusNotFound)
	for name, shows := range map[string]string{"kill": `failed</span> <span class="said">no program`, "send": `storm &#34;&gt;&lt;script&gt;`} {
		if p := w.post(t, "/lab", url.Values{"action": {name}}); p.status != http.StatusOK || !strings.Contains(p.body, shows) {
			t.Errorf("%s: %d %s", name, p.status, p.body)
		}
	}
}

// world is a console on a database of its own.
type world struct {
	db     *postgres.DB // as the owner
	server *httptest.Server
}

// newWorld serves a console with options. The database's user is that of the tests.
func newWorld(t *testing.T, o console.Options, tracer pgx.QueryTracer) *world {
	t.Helper()
	testrun.Long(t, "it needs a database")
	address := testdb.URL(t)
	w := &world{db: testdb.Connect(t, address)}
	o.Log, o.Now = slog.New(slog.NewTextHandler(t.Output(), nil)), time.Now
	c := console.New(o)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Run(ctx, address, postgres.Options{AllowPlaintext: true, AllowUnsafeDurability: true, Tracer: tracer}) // which may be stopped before it is open
	}()
	w.server = httptest.NewServer(c.Handler())
	t.Cleanup(func() {
		w.server.Close()
		cancel()
		<-ended
	})
	try := 0 // a page is kept for a second under its address
	testrun.True(t, "the console has its database", func() bool { try++; return w.get(t, fmt.Sprint("/learn?", try)).status == http.StatusOK })
	return w
}

// page is an answer.
type page struct {
	status int
	header http.Header
	body   string
}

// is checks the status of what an answer answers.
func (p page) is(t *testing.T, what string, status int) {
	t.Helper()
	if p.status != status {
		t.Errorf("%s: %d, want %d\n%s", what, p.status, status, p.body)
	}
}

func (w *world) do(t *testing.T, request *http.Request) page {
	t.Helper()
	response, err := w.server.Client().Do(request)
	testdb.Must(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	testdb.Must(t, err)
	return page{response.StatusCode, response.Header, string(body)}
}

func (w *world) get(t *testing.T, path string) page {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+path, http.NoBody)
	testdb.Must(t, err)
	return w.do(t, request)
}

// post sends a form, after which the page is that to which the answer leads.
func (w *world) post(t *testing.T, path string, form url.Values) page {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL+path, strings.NewReader(form.Encode()))
	testdb.Must(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return w.do(t, request)
}

// merchant registers the merchant of the charges.
func (w *world) merchant(t *testing.T) {
	t.Helper()
	b := &pgx.Batch{}
	merchants.Register(b, merchants.Merchant{ID: "acme"}, merchants.Webhook{}, nil)
	testdb.Must(t, w.db.Commit(t.Context(), b))
}

// charge stores a charge with its message.
func (w *world) charge(t *testing.T, request domain.ChargeRequested, more ...domain.Event) {
	t.Helper()
	b := &pgx.Batch{}
	_, err := ledger.Append(b, ledger.New(id), ledger.Cause{Actor: "test"}, append([]domain.Event{request}, more...)...)
	testdb.Must(t, err)
	testdb.Must(t, outbox.Append(b, outbox.Message{Topic: "charges", ID: "m-1", Type: "charge.requested.v1", OrderingKey: id, Payload: []byte("{}")}))
	testdb.Must(t, w.db.Commit(t.Context(), b))
}

// counter counts the statements of the console's sessions, but for batches.
type counter struct{ atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.Add(1)
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestMain(m *testing.M) { testrun.Main(m) }
