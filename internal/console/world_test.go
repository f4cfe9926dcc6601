package console_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
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

// world is a console on a database of its own.
type world struct {
	db     *postgres.DB // as the owner
	server *httptest.Server
}

// newWorld serves a console with options. The database's user is that of the tests.
func newWorld(t *testing.T, o console.Options, tracer pgx.QueryTracer) *world {
	t.Helper()
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
	testrun.True(t, "the console has its database", func() bool { return w.get(t, "/learn").status == http.StatusOK })
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
