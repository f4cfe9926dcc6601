package intake_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

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
func tables(t *testing.T, db postgres.Querier) map[string]int64 {
	t.Helper()
	counted := testdb.Rows(t, db)
	maps.DeleteFunc(counted, func(table string, n int64) bool {
		return n == 0 || slices.Contains([]string{"payonce_migrations", "followers", "restore_mark", "audit_progress"}, table)
	})
	return counted
}

// wantCharges checks that so many charges were accepted, each of them whole.
func wantCharges(t *testing.T, db postgres.Querier, n int64) {
	t.Helper()
	want := map[string]int64{"idempotency_keys": n, "ledger_events": n, "ledger_postings": n, "outbox": n}
	maps.DeleteFunc(want, func(_ string, n int64) bool { return n == 0 })
	testrun.Same(t, "rows", want, tables(t, db))
}

// captured accepts a charge of 1000 and captures it, as a worker would.
func captured(t *testing.T, db *postgres.DB, key string) (id string) {
	t.Helper()
	id = charge(t, keeping(t, db), key)
	capture(t, db, id)
	return id
}

func capture(t *testing.T, db *postgres.DB, id string) {
	t.Helper()
	record(t, db, id, func(c domain.Charge) []domain.Event {
		return []domain.Event{
			domain.InventoryReserved{Items: c.Items},
			domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_" + id},
			domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_" + id, Amount: 1000, Currency: "EUR", Fee: c.Fee},
			domain.ChargeSucceeded{},
		}
	})
}

// record commits decisions about a charge, as a worker would.
func record(t *testing.T, db *postgres.DB, id string, decisions ...func(domain.Charge) []domain.Event) {
	t.Helper()
	s, b := load(t, db, id), &pgx.Batch{}
	for _, decide := range decisions {
		var err error
		s, err = ledger.Append(b, s, ledger.Cause{CausationID: "worker"}, decide(s.Charge)...)
		testdb.Must(t, err)
	}
	testdb.Must(t, db.Commit(t.Context(), b))
}

func some(amount int64) intake.Refund { return intake.Refund{Amount: &amount} }

// TestRequestRefund: a refund is accepted with its key, event, posting and message. One that the database has lost, and
// that was observed at the provider, is not requested again.
func TestRequestRefund(t *testing.T) {
	t.Parallel()
	db, lost := testdb.Reused(t), testdb.Reused(t)
	charge := captured(t, db, "charge")
	before := tables(t, db)
	got, err := keeping(t, db).RequestRefund(t.Context(), acme(), to("refunds", "k1"), charge, intake.Refund{Amount: some(400).Amount, Reason: "broken"})
	testdb.Must(t, err)
	for table, rows := range tables(t, db) {
		if rows != before[table]+1 {
			t.Errorf("%s grew from %d to %d", table, before[table], rows)
		}
	}
	id := strings.TrimPrefix(got.Header.Get("Location"), "/v1/charges/"+charge+"/refunds/")
	want := domain.RefundRequested{RefundID: id, Amount: 400, Reason: "broken", Notify: true}
	testrun.Same(t, "event", domain.Event(want), load(t, db, charge).Head().Event)
	var view domain.RefundView
	testdb.Must(t, json.Unmarshal(got.Body, &view))
	shown := domain.RefundView{ID: id, ChargeID: charge, Amount: 400, Currency: "EUR", Status: domain.RefundStatusPending}
	if diff := cmp.Diff(shown, view); diff != "" || got.StatusCode != http.StatusAccepted || got.Replayed {
		t.Errorf("answer %d (-want +got):\n%s", got.StatusCode, diff)
	}

	// What an owner of the tables reads is not hidden from it, so the charge itself says whose it is.
	other, err := (&intake.Intake{DB: db}).RequestRefund(t.Context(), intake.Account{MerchantID: "globex"}, to("refunds", "k2"), charge, some(1))
	if err != nil || string(other.Body) != ledger.ErrNotFound.Error() {
		t.Errorf("another merchant is answered %s, %v", other.Body, err)
	}

	charge = captured(t, lost, "charge")
	record(t, lost, charge, func(domain.Charge) []domain.Event {
		return []domain.Event{domain.RefundObserved{RefundID: id, Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 400}}
	})
	got, err = keeping(t, lost).RequestRefund(t.Context(), acme(), to("refunds", "k1"), charge, some(400))
	if last := load(t, lost, charge).Head().Type; err != nil || got.Header.Get("Location") != "/v1/charges/"+charge+"/refunds/"+id || last != "refund.observed.v1" {
		t.Errorf("answered %s: %v, and the charge ends with %s", got.Header.Get("Location"), err, last)
	}
}

// refunds are the amounts of a charge's refunds.
func refunds(t *testing.T, db *postgres.DB, chargeID string) []int64 {
	t.Helper()
	var amounts []int64
	for _, r := range load(t, db, chargeID).Charge.Refunds {
		amounts = append(amounts, r.Amount)
	}
	return amounts
}

func TestRivalRefunds(t *testing.T) {
	testdb.Long(t, "it races many against each other")
	t.Parallel()
	db := testdb.Reused(t)
	in := keeping(t, db)
	for round := range 10 {
		charge := captured(t, db, fmt.Sprint("charge", round))
		var accepted atomic.Int64
		var work errgroup.Group
		for i := range 10 {
			work.Go(func() error {
				got, err := in.RequestRefund(t.Context(), acme(), to("refunds", fmt.Sprint(round, "-", i)), charge, some(600))
				if got.StatusCode == http.StatusAccepted {
					accepted.Add(1)
				}
				return err
			})
		}
		testdb.Must(t, work.Wait())
		if accepted.Load() != 1 || !cmp.Equal(refunds(t, db, charge), []int64{600}) {
			t.Fatalf("round %d: of ten refunds of 600 of 1000 %d are accepted, refunds of %v", round, accepted.Load(), refunds(t, db, charge))
		}
	}
}
