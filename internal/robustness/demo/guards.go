package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// Guard is a guard of docs/reference/guards.md that the guard lab can remove.
type Guard struct {
	Name string `json:"guard"`
	Kind string `json:"kind"`
	// Remove is the SQL that removes it from the migrated database.
	Remove string `json:"removed"`
	// Fault is what happens, and what the guard refuses.
	Fault string `json:"fault"`
	// Red are the checks of the audit that are violated without the guard, and no others.
	Red []string `json:"expected"`
	// Charge is what then happened to a charge.
	Charge string `json:"charge"`

	inflict fault
}

// The checks of the audit that several guards have.
const (
	legal    = "streams are legal"
	supplied = "stock is what was supplied, and what charges hold"
	postings = "postings are what the events cause"
)

// Guards are the guards of the lab, in the order in which `--break all` removes them. The last
// entry removes guards that stand behind others: without them nothing is violated.
func Guards() []Guard {
	return []Guard{
		{
			"idempotency_keys_once", "primary key", `alter table idempotency_keys drop constraint idempotency_keys_once`,
			"10 requests with one key at the same instant",
			[]string{"one stored answer per key"},
			"several requests made a charge of their own; one of these has the payment, and the others failed", sameKey,
		},
		{
			"held_orders_one_charge", "primary key", `alter table held_orders drop constraint held_orders_one_charge`,
			"8 requests with keys of their own for one order at the same instant",
			[]string{"one charge per order, where that is wanted"},
			"several charges of its order were captured", rivalKeys,
		},
		{
			"ledger_events_version_once", "unique, and those behind it",
			`
alter table ledger_events drop constraint ledger_events_version_once cascade;
alter table ledger_postings drop constraint ledger_postings_leg_once;
create index on ledger_events (stream_id, version, position); -- all readers see the same order
drop trigger ledger_events_of_the_api on ledger_events;
alter policy request on ledger_postings with check (true) -- it finds two events at a version`,
			"8 refunds of 70% of a charge at the same instant",
			[]string{legal, postings, "no accepted charge or refund is lost", "refunds never exceed the capture"},
			"several refunds were accepted at one version, together more than was captured; one is paid, the others are void", rivalRefunds,
		},
		{
			"ledger_events_previous_exists", "foreign key", `alter table ledger_events drop constraint ledger_events_previous_exists`,
			"an insert by hand skips a version, as a failover does that loses an event",
			[]string{legal},
			"its stream has a gap: what was decided there is lost",
			byHand("lab-gap", "", `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), stream_id, version + 2, 'payment.attempt_failed.v1', 1, merchant_id, '{}', metadata, occurred_at
  from ledger_events
 where stream_id = '$charge'
 order by version desc
 limit 1`),
		},
		{
			"ledger_events_append_only", "trigger", `drop trigger ledger_events_append_only on ledger_events`,
			"an update by hand doubles the amount of a request",
			[]string{legal, postings, "an answer names what it accepted", "provider: a succeeded charge was captured in full"},
			"it shows twice the amount that was captured",
			byHand("lab-amount", "", `update ledger_events set data = jsonb_set(data, '{amount}', '2000') where stream_id = '$charge' and version = 1`),
		},
		{
			"inbox_done_by_holder", "check", `alter table inbox drop constraint inbox_done_by_holder`,
			"an update by hand ends a message under a fence that another holder has taken",
			[]string{"a finished message was finished by its holder"},
			"a worker without the lease ended its message",
			byHand("lab-fence", "", `update inbox set fence = fence + 1 where ordering_key = '$charge' and receiver = 'fulfillment'`),
		},
		{
			"stock_available_not_negative", "check", `alter table stock drop constraint stock_available_not_negative`,
			"10 charges take the last piece at the same instant",
			[]string{supplied},
			"several charges were captured for one piece", lastPiece,
		},
		{
			"stock_adds_up", "check", `alter table stock drop constraint stock_adds_up`,
			"an update by hand adds 5 pieces to what is available",
			[]string{supplied},
			"later charges could buy 5 pieces that do not exist",
			byHand("lab-restock", "mug", `update stock set available = available + 5 where sku = 'mug'`),
		},
		{
			"reservations_known_sku", "foreign key", `alter table reservations drop constraint reservations_known_sku`,
			"an article is deleted by hand that a charge has reserved",
			[]string{supplied},
			"it was captured for an article that does not exist",
			byHand("lab-gone", "gone", `delete from stock where sku = 'gone'`),
		},
		{
			"second line", "several",
			`
alter table ledger_events drop constraint ledger_events_event_once;
alter table ledger_postings drop constraint ledger_postings_leg_once;
alter table reservations drop constraint reservations_once;
alter table stock drop constraint stock_reserved_not_negative;
drop index ledger_events_one_beginning, ledger_events_one_capture, ledger_events_one_outcome,
           ledger_events_one_capture_per_reference, ledger_events_one_refund_outcome,
           ledger_events_one_refund_reversal, ledger_events_one_refund_per_reference, ledger_events_one_dispute,
           inbox_one_first_per_key`,
			"all faults above", nil,
			"nothing: another guard refused the same fault", allFaults,
		},
	}
}

// sceneStock is the supply of the articles of the guard lab.
var sceneStock = []string{"mug=10", "last=1", "gone=1"}

// fault is a fault of the guard lab, which leaves payonce sound as long as all guards are there. It
// returns the charges whose timelines show what happened.
type fault func(context.Context, *stage) ([]string, error)

// allFaults inflicts the faults of all guards in turn.
func allFaults(ctx context.Context, s *stage) (shown []string, err error) {
	for _, g := range Guards() {
		if g.Kind == "several" {
			continue
		}
		if shown, err = g.inflict(ctx, s); err != nil {
			return nil, fmt.Errorf("%s: %w", g.Fault, err)
		}
	}
	return shown, nil
}

// byHand runs a statement that a guard may refuse, after a charge of a SKU or of none.
func byHand(key, sku, sql string) fault {
	return func(ctx context.Context, s *stage) ([]string, error) {
		ids, err := s.endedCharge(ctx, key, sku)
		if err == nil {
			_, err = s.db.Exec(ctx, strings.ReplaceAll(sql, "$charge", ids[0]))
		}
		if refused, is := errors.AsType[*pgconn.PgError](err); is && strings.HasPrefix(refused.Code, "23") {
			err = nil
		}
		return ids, err
	}
}

// sameKey sends 10 requests with one key, which both apis claim before either commits.
func sameKey(ctx context.Context, s *stage) ([]string, error) {
	return s.rivals(ctx, "idempotency_keys", 10, 0, func(try string) (*request, error) {
		key := "lab-same-key-" + try
		return &request{path: chargesPath, key: key, body: sceneCharge(key, "")}, nil
	})
}

// rivalKeys asks for one order under several keys, of a merchant who wants one charge.
func rivalKeys(ctx context.Context, s *stage) (ids []string, err error) {
	const set = `update merchants set one_charge_per_order = $1`
	if _, err := s.db.Exec(ctx, set, true); err != nil {
		return nil, err
	}
	ids, err = s.rivals(ctx, "ledger_events", 8, keyPause, func(try string) (*request, error) {
		order := "lab-order-" + try
		return &request{path: chargesPath, key: order + "-$n", body: sceneCharge(order, "")}, nil
	})
	_, undone := s.db.Exec(ctx, set, false)
	return ids[:min(1, len(ids))], errors.Join(err, undone)
}

// rivalRefunds asks for refunds of 70 % of a charge, of which one is possible. The workers go on when
// all are stored, so that they read them at once.
func rivalRefunds(ctx context.Context, s *stage) (ids []string, err error) {
	_, err = s.rivals(ctx, "ledger_events", 8, keyPause, func(try string) (*request, error) {
		if err := s.workers((*harness.Process).Resume); err != nil {
			return nil, err
		}
		if ids, err = s.endedCharge(ctx, "lab-refunds-"+try, ""); err != nil {
			return nil, err
		}
		r := &request{path: chargesPath + "/" + ids[0] + "/refunds", key: "lab-refund-" + try + "-$n", body: []byte(`{"amount": 700}`)}
		return r, s.workers((*harness.Process).Pause)
	})
	return ids, errors.Join(err, s.workers((*harness.Process).Resume))
}

// keyPause is how long an api may wait for the use of a key.
const keyPause = 300 * time.Millisecond

// rivals sends n requests at once, which meet while a table is locked, and returns what they made. A key
// with $n is of one request alone. They try again until several made something: on a busy machine
// the apis decide one after another, and an api waits for a lock for milliseconds at a time.
func (s *stage) rivals(
	ctx context.Context, table string, n int, pause time.Duration, next func(try string) (*request, error),
) (ids []string, err error) {
	const tries = 5
	for try := 0; try < tries && len(ids) < 2 && err == nil; try++ {
		r, failed := next(strconv.Itoa(try))
		if failed != nil {
			return nil, failed
		}
		var mu sync.Mutex
		ids = nil
		err = s.hold(ctx, table, n, pause, func(i int) {
			for _, answer := range s.PostAll(ctx, 1, r.path, strings.ReplaceAll(r.key, "$n", strconv.Itoa(i)), r.body) {
				mu.Lock()
				defer mu.Unlock()
				if id := answer.Member("id"); id != "" && !slices.Contains(ids, id) {
					ids = append(ids, id)
				}
			}
		})
	}
	return ids, err
}

// lastPiece accepts 10 charges of one piece while the workers are paused, and lets them go on when
// the stock is locked, so that all have read it before one writes.
func lastPiece(ctx context.Context, s *stage) (ids []string, err error) {
	if err := s.workers((*harness.Process).Pause); err != nil {
		return nil, err
	}
	for n := range 10 {
		key := fmt.Sprintf("lab-last-%d", n)
		for _, answer := range s.PostAll(ctx, 1, chargesPath, key, sceneCharge(key, "last")) {
			ids = append(ids, answer.Member("id"))
		}
	}
	var resumed error
	err = s.hold(ctx, "stock", 1, keyPause, func(int) { resumed = s.workers((*harness.Process).Resume) })
	return ids[:min(1, len(ids))], errors.Join(err, resumed)
}

// sceneCharge is a request for a charge of 10.00 of a SKU, or of none.
func sceneCharge(order, sku string) []byte {
	body := map[string]any{"order_id": order, "amount": 1000, "currency": "EUR", "payment_method": visa}
	if sku != "" {
		body["items"] = []item{{sku, 1}}
	}
	return encode(body)
}

// endedCharge is a charge that has succeeded and has no work left.
func (s *stage) endedCharge(ctx context.Context, key, sku string) ([]string, error) {
	answers := s.PostAll(ctx, 1, chargesPath, key, sceneCharge(key, sku))
	if len(answers) == 0 {
		return nil, context.Cause(ctx)
	}
	if id := answers[0].Member("id"); id != "" {
		return []string{id}, s.quiet(ctx, false)
	}
	return nil, fmt.Errorf("charge %s: answered %+v", key, answers[0])
}

// selectWaiting returns whether so many sessions wait for the table that hold has locked.
const selectWaiting = `
select count(*) >= $1
  from pg_locks waits
  join pg_locks held using (database, relation)
 where held.mode = 'ExclusiveLock'
   and held.granted
   and not waits.granted`

// hold locks a table against writers, begins n calls at once, and unlocks the table a pause after
// both programs of a kind wait for it. It returns when the calls have. The lock has no transaction
// id, so it does not hold back the followers of the ledger.
func (s *stage) hold(ctx context.Context, table string, n int, pause time.Duration, call func(int)) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "lock table "+table+" in exclusive mode"); err != nil {
			return err
		}
		for i := range n {
			calls.Go(func() { call(i) })
		}
		return errors.Join(await(ctx, tx, selectWaiting, min(n, programsOfKind)), harness.Wait(ctx, pause))
	})
}

// workers does something to each worker.
func (s *stage) workers(do func(*harness.Process) error) (err error) {
	for _, p := range s.world.Workers {
		err = errors.Join(err, do(p))
	}
	return err
}
