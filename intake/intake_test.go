package intake_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// request is one of acme under a key.
func request(key string) intake.Request {
	r := intake.Request{
		Key:      idempotency.Key{Scope: "acme", Operation: "POST /v1/charges", Value: key},
		Request:  idempotency.Request{Fingerprint: []byte("f")},
		Merchant: merchants.Merchant{ID: "acme", FeeBasisPoints: 250, FeeFixed: map[string]int64{"EUR": 5}, HasWebhook: true},
		ID:       "req_1",
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

// refunding is a request under a key for a refund.
func refunding(key string) intake.Request {
	r := request(key)
	r.Key.Operation = "POST /v1/charges/:id/refunds"
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
	accepted, err := in.AcceptCharge(t.Context(), r, mug())
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
	got, err := keeping(t, db).RequestRefund(t.Context(), refunding("k1"), charge, intake.Refund{Amount: some(400).Amount, Reason: "broken"})
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
	globex := refunding("k2")
	globex.Merchant = merchants.Merchant{ID: "globex"}
	other, err := (&intake.Intake{DB: db}).RequestRefund(t.Context(), globex, charge, some(1))
	if err != nil || string(other.Body) != ledger.ErrNotFound.Error() {
		t.Errorf("another merchant is answered %s, %v", other.Body, err)
	}

	charge = captured(t, lost, "charge")
	record(t, lost, charge, func(domain.Charge) []domain.Event {
		return []domain.Event{domain.RefundObserved{RefundID: id, Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 400}}
	})
	got, err = keeping(t, lost).RequestRefund(t.Context(), refunding("k1"), charge, some(400))
	if last := load(t, lost, charge).Head().Type; err != nil || got.Header.Get("Location") != "/v1/charges/"+charge+"/refunds/"+id || last != "refund.observed.v1" {
		t.Errorf("answered %s: %v, and the charge ends with %s", got.Header.Get("Location"), err, last)
	}
}

func TestRivalRefunds(t *testing.T) {
	testrun.Long(t, "it races many against each other")
	t.Parallel()
	db := testdb.Reused(t)
	in := keeping(t, db)
	for round := range 10 {
		charge := captured(t, db, fmt.Sprint("charge", round))
		var accepted atomic.Int64
		var work errgroup.Group
		for i := range 10 {
			work.Go(func() error {
				got, err := in.RequestRefund(t.Context(), refunding(fmt.Sprint(round, "-", i)), charge, some(600))
				if got.StatusCode == http.StatusAccepted {
					accepted.Add(1)
				}
				return err
			})
		}
		testdb.Must(t, work.Wait())
		if stored := load(t, db, charge).Charge.Refunds; accepted.Load() != 1 || len(stored) != 1 || stored[0].Amount != 600 {
			t.Fatalf("round %d: of ten refunds of 600 of 1000 %d are accepted: %+v", round, accepted.Load(), stored)
		}
	}
}

func TestAcceptCharge(t *testing.T) {
	t.Parallel()

	t.Run("a charge is accepted in one commit of key, event, posting and message, and answered as it is stored", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in, r, before := keeping(t, db), request("k1"), time.Now().Add(-time.Minute)
		r.Metadata = map[string]string{
			"traceparent": "t1", "type": "forged", "ordering_key": "forged", "correlation_id": "forged", "causation_id": "forged",
		}
		got := accept(t, in, r)
		wantCharges(t, db, 1)
		commits := testdb.One[int](t, db, `
select count(distinct xid)
  from (select xmin::text as xid from idempotency_keys
         union all
        select xmin::text from ledger_events
         union all
        select xmin::text from ledger_postings
         union all
        select xmin::text from outbox) as written`)
		if commits != 1 {
			t.Errorf("%d commits", commits)
		}
		id, ok := strings.CutPrefix(got.Header.Get("Location"), "/v1/charges/")
		if !ok || got.StatusCode != http.StatusAccepted || got.Header.Get("Content-Type") != "application/json" || got.Replayed {
			t.Errorf("the answer is %+v", got)
		}
		if digits, ok := strings.CutPrefix(id, "ch_"); !ok || len(digits) != 32 || strings.Trim(digits, "0123456789abcdef") != "" {
			t.Errorf("the charge's id is %q", id)
		}
		s := load(t, db, id)
		var view domain.View
		testdb.Must(t, json.Unmarshal(got.Body, &view))
		testrun.Same(t, "the answer, beside the stream", s.View(), view)
		want := domain.ChargeRequested{Terms: domain.Terms{
			MerchantID: "acme", OrderID: "order 1", Money: domain.Money{Amount: 1000, Currency: "EUR"}, Fee: 30, PaymentMethod: "pm_card_visa", Customer: "cus_ada",
			Items: []domain.Item{{SKU: "mug", Quantity: 2}}, Description: "two mugs",
			Metadata: map[string]string{"basket": "7"}, Notify: true,
			Reference: "ref_822b33ad87c148a04cd6187403f4a754907a8a1dd02ffe01", // the same for ever: the provider knows it
		}, Steps: []string{"inventory", "payment", "notification"}}
		e := s.Head()
		testrun.Same(t, "event", domain.Event(want), e.Event)
		if at := e.OccurredAt; at.Before(before) || at.After(time.Now().Add(time.Minute)) {
			t.Errorf("it occurred at %v", at)
		}
		if got.Body[len(got.Body)-1] != '\n' {
			t.Error("the body does not end its line")
		}

		// The message names the event, and has the metadata of the request, which is no part of what is asked.
		var topic, messageID string
		var payload []byte
		var metadata map[string]string
		testdb.Must(t, db.QueryRow(t.Context(), `select topic, message_id, payload, metadata from outbox`).Scan(&topic, &messageID, &payload, &metadata))
		envelope, err := ledger.DecodeEnvelope(payload)
		testdb.Must(t, err)
		if topic != domain.Topic || messageID != e.ID.String() || envelope.ID != messageID || envelope.ChargeID != s.ID || envelope.Version != 1 {
			t.Errorf("topic %s, message %s, envelope %+v, event %s of %s", topic, messageID, envelope, e.ID, s.ID)
		}
		wantMetadata := map[string]string{
			"traceparent": "t1", "type": "charge.requested.v1", "ordering_key": s.ID, "partition_key": "acme", "correlation_id": "req_1", "causation_id": e.ID.String(),
		}
		testrun.Same(t, "metadata", wantMetadata, metadata)
		r.Metadata = map[string]string{"traceparent": "t2"}
		if again := accept(t, in, r); !again.Replayed {
			t.Error("a request with other metadata is another request")
		}
	})

	t.Run("what is no charge, or expires in the past, is refused and leaves the key free; a replay is not refused", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in, c := keeping(t, db), mug()
		c.Amount = -1
		if _, err := in.AcceptCharge(t.Context(), request("k1"), c); !errors.Is(err, domain.ErrInvalid) {
			t.Errorf("accepted: %v", err)
		}
		c.Amount = 1
		until := func(d time.Duration) intake.Charge {
			c.ExpiresAt = new(time.Now().Add(d).Format(time.RFC3339Nano))
			return c
		}
		if _, err := in.AcceptCharge(t.Context(), request("k1"), until(-time.Second)); !errors.Is(err, intake.ErrExpiresInPast) {
			t.Errorf("accepted: %v", err)
		}
		wantCharges(t, db, 0)
		first, err := in.AcceptCharge(t.Context(), request("k1"), until(time.Hour)) // the key is free
		testdb.Must(t, err)
		again, err := in.AcceptCharge(t.Context(), request("k1"), until(-time.Second))
		testdb.Must(t, err)
		if !again.Replayed || again.Header.Get("Location") != first.Header.Get("Location") {
			t.Errorf("the replay is %+v", again)
		}
		wantCharges(t, db, 1)
	})
}

// TestCancelCharge: whatever the keys are, a charge is asked to be canceled once.
func TestCancelCharge(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	in := keeping(t, db)
	id := charge(t, in, "charge")
	for _, key := range []string{"k1", "k1", "k2"} {
		r := request(key)
		r.Key.Operation = "POST /v1/charges/:id/cancel"
		got, err := in.CancelCharge(t.Context(), r, id)
		testdb.Must(t, err)
		testrun.Same(t, "status", http.StatusAccepted, got.StatusCode)
	}
	testrun.Same(t, "messages", 2, testdb.One[int](t, db, `select count(*) from outbox`))
	testrun.Same(t, "events", 2, len(load(t, db, id).Events))
}

// TestAcceptCharge_onceForEachOrder: whatever its keys are, an order of a merchant with
// OneChargePerOrder has one charge until that fails. While the holder of the order is not known, nothing is decided.
func TestAcceptCharge_onceForEachOrder(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	in := keeping(t, db)
	once := func(key string) intake.Request {
		r := request(key)
		r.Merchant.OneChargePerOrder = true
		return r
	}
	testdb.Exec(t, db.Pool(), `alter table held_orders rename to away`)
	_, err := in.AcceptCharge(t.Context(), once("k0"), mug())
	testdb.Exec(t, db.Pool(), `alter table away rename to held_orders`)
	if !errors.Is(err, idempotency.ErrUnknown) {
		t.Errorf("the error is %v", err)
	}
	wantCharges(t, db, 0)
	const keys = 6
	ask := func(n int) idempotency.Result {
		answer, err := in.AcceptCharge(t.Context(), once("k"+strconv.Itoa(n)), mug())
		if err != nil {
			t.Error(err)
		}
		return answer
	}
	// rivals ask twice under each key, all at the same moment. One of the keys gets the charge, also
	// where its other request has accepted that a moment before; the other keys get the refusal.
	rivals := func(from int) (id string) {
		answers := make([]idempotency.Result, 2*keys)
		var asking sync.WaitGroup
		for n := range answers {
			asking.Go(func() { answers[n] = ask(from + n%keys) })
		}
		asking.Wait()
		accepted := 0
		for n, a := range answers {
			if first := answers[n%keys]; string(a.Body) != string(first.Body) {
				t.Errorf("key %d has two answers: %s and %s", n%keys, first.Body, a.Body)
			}
			if a.StatusCode == http.StatusAccepted {
				accepted, id = accepted+1, strings.TrimPrefix(a.Header.Get("Location"), "/v1/charges/")
			}
		}
		if accepted != 2 {
			t.Fatalf("%d answers accept a charge, want the two of one key", accepted)
		}
		for _, a := range answers {
			if a.StatusCode == http.StatusConflict && string(a.Body) != id {
				t.Errorf("the refusal names %s, want %s", a.Body, id)
			}
		}
		return id
	}
	failed := rivals(0)
	record(t, db, failed, func(c domain.Charge) []domain.Event { return c.RejectInventory(domain.OutOfStock) })
	succeeded := rivals(100)
	if again := ask(0); !again.Replayed {
		t.Errorf("the first key has another answer after its charge failed: %s", again.Body)
	}
	capture(t, db, succeeded)
	record(t, db, succeeded,
		func(domain.Charge) []domain.Event {
			return []domain.Event{domain.RefundRequested{RefundID: "re_1", Amount: 1000}}
		},
		func(c domain.Charge) []domain.Event { return c.Refunds[0].Resolve("re_x", false, "") })
	if late := ask(200); string(late.Body) != succeeded {
		t.Errorf("a refunded charge has lost its order: %s", late.Body)
	}
	if other, err := in.AcceptCharge(t.Context(), request("other"), mug()); err != nil || other.StatusCode != http.StatusAccepted {
		t.Errorf("a merchant without the wish: %d, %v", other.StatusCode, err)
	}
}

// TestGroupCommit_ofSeveralRequests: requests of two merchants at once, whose accepts are
// committed together, and then some under keys that come three times. Of each key
// there is one charge, it is its merchant's own, and all have its answer.
func TestGroupCommit_ofSeveralRequests(t *testing.T) {
	testrun.Long(t, "it takes a large part of the time")
	t.Parallel()
	owner := testdb.Reused(t)
	// As the api's.
	db := testdb.OpenAt(t, owner.Pool().Config().ConnString(), postgres.Options{
		Role:   postgres.RoleAPI,
		Writes: groupcommit.NewStatements(slices.Concat(idempotency.Writes(), ledger.Writes(), outbox.Writes())...), LockTimeout: 25 * time.Millisecond,
	})
	in := &intake.Intake{DB: db, Options: idempotency.Options{
		Read: intake.BatchedRead(db, 0), Retention: time.Hour, Wait: time.Minute,
	}}
	const keys, repeated, times = 80, 20, 3
	answers := make([][times]string, keys)
	accept := func(from, to, times int) {
		var work errgroup.Group
		for i := range times {
			for key := from; key < to; key++ {
				work.Go(func() error {
					r := request(fmt.Sprint("k", key/2))
					r.Merchant.ID = []string{"acme", "globex"}[key%2]
					accepted, err := in.AcceptCharge(t.Context(), r, mug())
					answers[key][i] = string(accepted.Body)
					return err
				})
			}
		}
		testdb.Must(t, work.Wait())
	}
	accept(0, keys-repeated, 1)
	if db.Committer().Stats().Batches == 0 {
		t.Error("no accept shared a commit")
	}
	accept(keys-repeated, keys, times)
	for key, same := range answers {
		if same[0] == "" || key >= keys-repeated && (same[1] != same[0] || same[2] != same[0]) {
			t.Errorf("key %d has the answers %q", key, same)
		}
	}
	wantCharges(t, owner, keys)
	strays := testdb.One[int](t, owner, `
select count(*)
  from idempotency_keys k
  left join ledger_events e
    on e.merchant_id = k.scope
   and k.headers #>> '{Location,0}' like '%' || e.stream_id
 where e.stream_id is null
    or e.txid::text <> k.xmin::text`)
	if strays != 0 {
		t.Errorf("%d keys without a charge of their merchant and their commit", strays)
	}
}

// TestBatchedRead asks for many keys while all connections are in use: those that then share
// a round trip are each read as the tenant of their scope.
func TestBatchedRead(t *testing.T) {
	t.Parallel()
	owner := testdb.Reused(t)
	db := testdb.OpenAt(t, owner.Pool().Config().ConnString(), postgres.Options{Role: postgres.RoleAPI, MaxConns: 1})
	for _, scope := range []string{"acme", "globex"} {
		b := &pgx.Batch{}
		idempotency.Claim(b, idempotency.Key{Scope: scope, Value: "taken"}, idempotency.Request{},
			idempotency.Answer{StatusCode: http.StatusOK, Body: []byte(scope)}, time.Now().Add(time.Hour))
		testdb.Must(t, owner.Commit(t.Context(), b))
	}
	held, err := db.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	read := intake.BatchedRead(db, 1)
	var asked errgroup.Group
	for n := range 300 {
		key := idempotency.Key{Scope: []string{"acme", "globex", "initech"}[n%3], Value: []string{"taken", "free"}[n%2]}
		asked.Go(func() error {
			state, err := read(t.Context(), nil, key)
			taken := key.Scope != "initech" && key.Value == "taken"
			if state.Key != key || state.Found != taken || state.Now.IsZero() || taken && string(state.Body) != key.Scope {
				t.Errorf("%+v: found %v, %+v", key, state.Found, state)
			}
			return err
		})
	}
	held.Release()
	if err := asked.Wait(); err != nil {
		t.Error(err)
	}
}
