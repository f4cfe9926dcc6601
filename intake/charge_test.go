package intake_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

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
		if _, err := in.AcceptCharge(t.Context(), acme(), request("k1"), c); !errors.Is(err, domain.ErrInvalid) {
			t.Errorf("accepted: %v", err)
		}
		c.Amount = 1
		until := func(d time.Duration) intake.Charge {
			c.ExpiresAt = new(time.Now().Add(d).Format(time.RFC3339Nano))
			return c
		}
		if _, err := in.AcceptCharge(t.Context(), acme(), request("k1"), until(-time.Second)); !errors.Is(err, intake.ErrExpiresInPast) {
			t.Errorf("accepted: %v", err)
		}
		wantCharges(t, db, 0)
		first, err := in.AcceptCharge(t.Context(), acme(), request("k1"), until(time.Hour)) // the key is free
		testdb.Must(t, err)
		again, err := in.AcceptCharge(t.Context(), acme(), request("k1"), until(-time.Second))
		testdb.Must(t, err)
		if !again.Replayed || again.Header.Get("Location") != first.Header.Get("Location") {
			t.Errorf("the replay is %+v", again)
		}
		wantCharges(t, db, 1)
	})
}

// TestAcceptCharge_onceForEachOrder: whatever its keys are, an order of an account with
// OneChargePerOrder has one charge until that fails. While the holder of the order is not known, nothing is decided.
func TestAcceptCharge_onceForEachOrder(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	in, account := keeping(t, db), acme()
	account.OneChargePerOrder = true
	testdb.Exec(t, db.Pool(), `alter table held_orders rename to away`)
	_, err := in.AcceptCharge(t.Context(), account, request("k0"), mug())
	testdb.Exec(t, db.Pool(), `alter table away rename to held_orders`)
	if !errors.Is(err, idempotency.ErrUnknown) {
		t.Errorf("the error is %v", err)
	}
	wantCharges(t, db, 0)
	const keys = 6
	ask := func(n int) idempotency.Result {
		answer, err := in.AcceptCharge(t.Context(), account, request("k"+strconv.Itoa(n)), mug())
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
	if other, err := in.AcceptCharge(t.Context(), acme(), request("other"), mug()); err != nil || other.StatusCode != http.StatusAccepted {
		t.Errorf("an account without the wish: %d, %v", other.StatusCode, err)
	}
}

// TestGroupCommit_ofSeveralRequests: requests of two merchants at once, whose accepts are
// committed together, and then some under keys that come three times. Of each key
// there is one charge, it is its merchant's own, and all have its answer.
func TestGroupCommit_ofSeveralRequests(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
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
					account := acme()
					account.MerchantID = []string{"acme", "globex"}[key%2]
					accepted, err := in.AcceptCharge(t.Context(), account, request(fmt.Sprint("k", key/2)), mug())
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
