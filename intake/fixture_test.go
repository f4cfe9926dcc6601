package intake_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

func TestMain(m *testing.M) { testrun.Main(m) }

func acme() intake.Account {
	return intake.Account{MerchantID: "acme", FeeBasisPoints: 250, FeeFixed: map[string]int64{"EUR": 5}, Notify: true}
}

// request is one under a key.
func request(key string) intake.Request {
	r := intake.Request{
		Key:     idempotency.Key{Scope: "acme", Operation: "POST /v1/charges", Value: key},
		Request: idempotency.Request{Fingerprint: []byte("f")},
		ID:      "req_1",
	}
	r.Refuse = func(err error) (idempotency.Answer, bool) {
		if taken, ok := errors.AsType[*intake.OrderTakenError](err); ok {
			return idempotency.Answer{StatusCode: http.StatusConflict, Body: []byte(taken.Charge.ID)}, true
		}
		for _, known := range []error{ledger.ErrNotFound, domain.ErrFinished, domain.ErrNotCaptured, domain.ErrExceedsCaptured} {
			if errors.Is(err, known) {
				return idempotency.Answer{StatusCode: http.StatusConflict, Body: []byte(known.Error())}, true
			}
		}
		return idempotency.Answer{}, false
	}
	return r
}

// to is a request under a key for what is done with a charge.
func to(operation, key string) intake.Request {
	r := request(key)
	r.Key.Operation = "POST /v1/charges/:id/" + operation
	return r
}

func mug() intake.Charge {
	return intake.Charge{
		OrderID: "order 1", Amount: 1000, Currency: "EUR", PaymentMethod: "pm_card_visa", Customer: "cus_ada",
		Items: []domain.Item{{SKU: "mug", Quantity: 2}}, Description: "two mugs",
		Metadata: map[string]string{"basket": "7"},
	}
}

func accept(t *testing.T, in *intake.Intake, r intake.Request) idempotency.Result {
	t.Helper()
	accepted, err := in.AcceptCharge(t.Context(), acme(), r, mug())
	testdb.Must(t, err)
	return accepted
}

// charge accepts a charge and returns its id.
func charge(t *testing.T, in *intake.Intake, key string) (id string) {
	t.Helper()
	return strings.TrimPrefix(accept(t, in, request(key)).Header.Get("Location"), "/v1/charges/")
}

func load(t *testing.T, db *postgres.DB, id string) ledger.Stream {
	t.Helper()
	s, err := ledger.Load(t.Context(), db, id)
	testdb.Must(t, err)
	return s
}

// keeping accepts into a database as the api does, in its role.
func keeping(t *testing.T, db *postgres.DB) *intake.Intake {
	t.Helper()
	acting := testdb.As(t, db, postgres.RoleAPI)
	return &intake.Intake{DB: acting, Options: idempotency.Options{Read: intake.BatchedRead(acting, 0), Retention: time.Hour}}
}

// tables counts the rows of every table that is not empty, but for what migrations
// leave there.
func tables(t *testing.T, db postgres.Querier) map[string]int {
	t.Helper()
	return testdb.One[map[string]int](t, db, `
select coalesce(json_object_agg(relname, n) filter (where n > 0), '{}')
  from (select c.relname,
               (xpath('/row/count/text()', query_to_xml('select count(*) from ' || c.oid::regclass, false, true, '')))[1]::text::int as n
          from pg_class c
         where c.relnamespace = 'public'::regnamespace
           and c.relkind = 'r'
           and c.relname not in ('payonce_migrations', 'followers', 'restore_mark', 'audit_progress')) as counted`)
}

// wantCharges checks that so many charges were accepted, each of them whole.
func wantCharges(t *testing.T, db postgres.Querier, n int) {
	t.Helper()
	want := map[string]int{"idempotency_keys": n, "ledger_events": n, "ledger_postings": n, "outbox": n}
	if n == 0 {
		want = map[string]int{}
	}
	testrun.Same(t, "rows", want, tables(t, db))
}
