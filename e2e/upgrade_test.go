package e2e_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // goose speaks database/sql
	"github.com/pressly/goose/v3"
)

// Rows that the programs of an older schema left behind when they were killed in
// the midst of work, with the books of their provider: made by those programs, not
// written by hand. testdata/upgrade says how.
var inFlight = map[int64]struct{ shop string }{ //nolint:gochecknoglobals // a table of cases
	6:  {shop: "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0"},
	10: {shop: "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0"},
	16: {shop: "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0MTIzNDU2Nzg="}, // rotated a moment before
}

const (
	upgradedKey    = "sk_test_upgradedupgradedupgraded"
	refundsCame    = 10 // the first schema of these whose programs could refund and cancel
	upgradedCharge = `{"order_id":%q,"amount":1000,"currency":"USD","payment_method":%q,"items":[{"sku":"tshirt","quantity":2}],"metadata":{"cart":"7"},"description":"two shirts"}`
)

// TestUpgrade migrates what programs of an older schema left in flight: messages
// unsent, pending, claimed and parked, intents started, refunds, a cancellation, a
// webhook that is wanted once more. Today's programs carry all of it, each charge
// once, and a client that sends again what it sent to the old api gets the answer
// that the old api gave.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	long(t)
	for version, left := range inFlight {
		t.Run(fmt.Sprintf("from schema %d", version), func(t *testing.T) {
			t.Parallel()
			w := upgraded(t, version, left.shop)
			answered := rows[string](t, w, `select convert_from(body, 'UTF8') from idempotency_keys`)
			w.payonce(t, "migrate")
			w.payonce(t, "seed", "--merchant", merchant, "--api-key", upgradedKey, "--webhook-url", w.sandbox.URL()+"/shop/webhooks")
			w.setup.apis, w.setup.workers = 1, 1
			w.startServices(t)
			var parked struct{ Data []parkedMessage }
			if err := json.Unmarshal(w.payonce(t, "inbox", "list", "--json"), &parked); err != nil || len(parked.Data) == 0 {
				t.Fatalf("nothing is parked: %v", err)
			}
			for _, m := range parked.Data {
				w.payonce(t, "inbox", "retry", strconv.FormatInt(m.ID, 10))
			}
			w.calm(t)
			w.replayed(t, version, answered)
			for order, status := range endings(version) {
				if got := w.charge(t.Context(), w.chargeOf(t, order)); got.Status != status {
					t.Errorf("order %s is %s, want %s", order, got.Status, status)
				}
			}
		})
	}
}

// endings are how the orders end.
func endings(version int64) map[string]string {
	ends := map[string]string{"declined": "failed", "unsent-declined": "failed"}
	for _, order := range []string{"untold", "waiting", "parked", "processing", "claimed", "unsent", "captured", "refunded", "refunding"} {
		ends[order] = "succeeded"
		if version >= refundsCame && (order == "captured" || order == "refunded" || order == "refunding") {
			ends[order] = "partially_refunded"
		}
	}
	return ends
}

// upgraded is a world at an older schema with its rows in flight, and with its
// provider.
func upgraded(t *testing.T, version int64, shop string) *world {
	t.Helper()
	server := sharedServer(t)
	w := &world{
		setup:    setup{alone: true, server: server},
		log:      t.TempDir(),
		database: server.database(t, "service"),
		keys:     keys{api: upgradedKey, neighbour: "sk_test_none" + unique(), provider: "sk_test_provider" + unique(), shop: shop, events: "whsec_events" + unique()},
	}
	outside := server.database(t, "sandbox")
	w.tables = openTables(t, w.database)
	t.Cleanup(func() { w.end(t) })
	migrateTo(t, w.database, version)
	fill(t, w.database, version, "service")
	w.outside = map[string]string{"DATABASE_URL": outside, "SHOP_WEBHOOK_SECRET": shop}
	w.sandbox = w.start(t, "sandbox", binaries(t).Sandbox, w.outside)
	if w.sandbox == nil {
		t.FailNow()
	}
	fill(t, outside, version, "sandbox")
	return w
}

func migrateTo(t *testing.T, database string, version int64) {
	t.Helper()
	db, err := sql.Open("pgx", database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(filepath.Join("..", "migrations")), goose.WithTableName("schema_migrations"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
}

// The rows are as old as the file; what goes by the clock is made young again.
const youngerAgain = `
update idempotency_keys
   set expires_at = clock_timestamp() + interval '1 day'`

func fill(t *testing.T, database string, version int64, of string) {
	t.Helper()
	rows, err := os.ReadFile(filepath.Join("testdata", "upgrade", fmt.Sprintf("%05d_%s.sql", version, of)))
	if err != nil {
		t.Fatal(err)
	}
	statements := "set session_replication_role = replica;\n" + string(rows) // as a restore does: the rows refer to one another
	if of == "service" {
		statements += youngerAgain
	}
	if _, err := openTables(t, database).Exec(t.Context(), statements); err != nil {
		t.Fatalf("fill: %v", err)
	}
}

func (w *world) chargeOf(t *testing.T, order string) string {
	t.Helper()
	return row[string](t, w, `select stream_id from ledger_events where version = 1 and data ->> 'order_id' = $1`, order)
}

// replayed sends everything that the old api answered once more.
func (w *world) replayed(t *testing.T, version int64, answered []string) {
	t.Helper()
	requests := []request{}
	for order := range endings(version) {
		method := visa
		switch order {
		case "declined", "unsent-declined":
			method = cardDeclined
		case "processing":
			method = "pm_card_processing"
		}
		requests = append(requests, request{key: "key-" + order, body: fmt.Appendf(nil, upgradedCharge, order, method)})
	}
	if version >= refundsCame {
		for order, refund := range map[string]struct {
			key    string
			amount int
		}{"refunded": {"refund-done", 400}, "refunding": {"refund-waiting", 300}, "captured": {"refund-unsent", 250}} {
			requests = append(requests, request{
				path: "/v1/charges/" + w.chargeOf(t, order) + "/refunds", key: "key-" + refund.key, body: fmt.Appendf(nil, `{"amount":%d}`, refund.amount),
			})
		}
		requests = append(requests, request{path: "/v1/charges/" + w.chargeOf(t, "unsent-declined") + "/cancel", key: "key-cancel-unsent", body: []byte(`{}`)})
	}
	if len(requests) != len(answered) {
		t.Errorf("the old api had %d answers, and %d requests are known", len(answered), len(requests))
	}
	told := strings.Join(answered, "")
	for _, r := range requests {
		got, _, err := w.client.insist(t.Context(), r)
		if err != nil || got.Status != http.StatusAccepted || !strings.Contains(told, string(got.Body)) {
			t.Errorf("%s %s is answered %d %s (%v), which the old api did not say", r.key, r.path, got.Status, got.Body, err)
		}
	}
}
