package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/robustness/harness"
)

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

// sameKey sends 10 requests with one key, which both apis claim before either commits. An api
// waits for a lock for milliseconds at a time, so several keys may be needed.
func sameKey(ctx context.Context, s *stage) (ids []string, err error) {
	for n := 0; n < 5 && len(ids) < 2 && err == nil; n++ {
		key := fmt.Sprintf("lab-same-key-%d", n)
		ids, err = s.race(ctx, "idempotency_keys", 0, 10, chargesPath, sceneCharge(key, ""), func(int) string { return key })
	}
	return ids, err
}

// rivalTries bounds how often rivals are sent: on a busy machine the apis may decide one after another.
const rivalTries = 4

// rivalRefunds asks for refunds of 70 % of a charge, of which one is possible, until several are
// accepted. The workers go on when all are stored, so that they read them at once.
func rivalRefunds(ctx context.Context, s *stage) (ids []string, err error) {
	for try, made := 0, 0; try < rivalTries && made < 2 && err == nil; try++ {
		ids, err = s.endedCharge(ctx, fmt.Sprintf("lab-refunds-%d", try), "")
		if err == nil {
			err = s.workers((*harness.Process).Pause)
		}
		if err == nil {
			var refunds []string
			refunds, err = s.rivals(ctx, chargesPath+"/"+ids[0]+"/refunds", fmt.Sprintf("lab-refund-%d", try), []byte(`{"amount": 700}`))
			made = len(refunds)
		}
		err = errors.Join(err, s.workers((*harness.Process).Resume))
	}
	return ids, err
}

// rivalKeys asks for one order under several keys, of a merchant who wants one charge, until several
// are accepted.
func rivalKeys(ctx context.Context, s *stage) (ids []string, err error) {
	if _, err := s.db.Exec(ctx, `update merchants set one_charge_per_order = true`); err != nil {
		return nil, err
	}
	for try := 0; try < rivalTries && len(ids) < 2 && err == nil; try++ {
		order := fmt.Sprintf("lab-order-%d", try)
		ids, err = s.rivals(ctx, chargesPath, order, sceneCharge(order, ""))
	}
	_, undone := s.db.Exec(ctx, `update merchants set one_charge_per_order = false`)
	return ids[:min(1, len(ids))], errors.Join(err, undone)
}

// rivals sends 8 requests with keys of their own while both apis decide on the same events.
func (s *stage) rivals(ctx context.Context, path, key string, body []byte) ([]string, error) {
	const pause = 300 * time.Millisecond // an api may wait for the use of its key
	return s.race(ctx, "ledger_events", pause, 8, path, body, func(n int) string { return fmt.Sprintf("%s-%d", key, n) })
}

// race sends n requests at once, which meet while a table is locked, and returns what they made.
func (s *stage) race(ctx context.Context, table string, pause time.Duration, n int, path string, body []byte, key func(int) string) (ids []string, err error) {
	var mu sync.Mutex
	err = s.hold(ctx, table, n, pause, func(i int) {
		for _, answer := range s.PostAll(ctx, 1, path, key(i), body) {
			mu.Lock()
			defer mu.Unlock()
			if id := answer.Member("id"); id != "" && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	})
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
	err = s.hold(ctx, "stock", 1, 300*time.Millisecond, func(int) { resumed = s.workers((*harness.Process).Resume) })
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
