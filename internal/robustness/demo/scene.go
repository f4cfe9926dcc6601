package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// scene is one payonce of the guard lab.
type scene struct {
	*own

	client *harness.Client
}

// sceneStock is the supply of its articles.
var sceneStock = map[string]int{"mug": 10, "last": 1, "gone": 1}

// fault is a fault of the guard lab, which leaves payonce sound as long as all guards are there. It
// returns what `payonce timeline` shows of it: a charge or a key.
type fault func(context.Context, *scene) (string, error)

// allFaults inflicts the faults of all guards in turn.
func allFaults(ctx context.Context, s *scene) (shown string, err error) {
	for _, g := range Guards() {
		if g.Kind == "several" {
			continue
		}
		if shown, err = g.inflict(ctx, s); err != nil {
			return "", fmt.Errorf("%s: %w", g.Fault, err)
		}
	}
	return shown, nil
}

// byHand runs a statement that a guard may refuse, after a charge of a SKU or of none.
func byHand(key, sku, sql string) fault {
	return func(ctx context.Context, s *scene) (string, error) {
		id, err := s.endedCharge(ctx, key, sku)
		if err == nil {
			err = execute(ctx, s.Service, strings.ReplaceAll(sql, "$charge", id))
		}
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(refused.Code, "23") {
			err = nil
		}
		return id, err
	}
}

// sameKey sends 10 requests with one key, which both apis claim before either commits. An api
// waits for a lock for milliseconds at a time, so several keys may be needed.
func sameKey(ctx context.Context, s *scene) (key string, err error) {
	for n := range 5 {
		key = fmt.Sprintf("lab-same-key-%d", n)
		err = s.hold(ctx, "idempotency_keys", 10, 0, func(int) { s.client.PostAll(ctx, 1, "/v1/charges", key, chargeBody(key, "")) })
		stored, found := s.texts(ctx, `select key from idempotency_keys where key = $1`, key)
		if err = errors.Join(err, found); err != nil || len(stored) > 1 {
			break
		}
	}
	return key, err
}

// rivals sends 8 requests with keys of their own while both apis decide on the same events.
func (s *scene) rivals(ctx context.Context, path, key, body string) error {
	return s.hold(ctx, "ledger_events", 8, 300*time.Millisecond, func(n int) { // an api may wait for the use of its key
		s.client.PostAll(ctx, 1, path, fmt.Sprintf("%s-%d", key, n), []byte(body))
	})
}

// rivalRefunds lets the workers go on when all refunds are stored, so that they read them at once.
func rivalRefunds(ctx context.Context, s *scene) (string, error) {
	id, err := s.endedCharge(ctx, "lab-refunds", "")
	if err == nil {
		err = s.workers((*harness.Process).Pause)
	}
	if err != nil {
		return "", err
	}
	err = s.rivals(ctx, "/v1/charges/"+id+"/refunds", "lab-refund", `{"amount": 700}`)
	return id, errors.Join(err, s.workers((*harness.Process).Resume))
}

// rivalKeys asks for one order under several keys, of a merchant who wants one charge.
func rivalKeys(ctx context.Context, s *scene) (string, error) {
	if err := execute(ctx, s.Service, `update merchants set one_charge_per_order = true`); err != nil {
		return "", err
	}
	err := s.rivals(ctx, "/v1/charges", "lab-order", string(chargeBody("lab-order", "")))
	ids, found := s.texts(ctx, `select stream_id from ledger_events where version = 1 and data ->> 'order_id' = 'lab-order' order by position`)
	return strings.Join(ids[:min(1, len(ids))], ""), errors.Join(err, found, execute(ctx, s.Service, `update merchants set one_charge_per_order = false`))
}

// lastPiece accepts 10 charges of one piece while the workers are paused, and lets them go on when
// the stock is locked, so that all have read it before one writes.
func lastPiece(ctx context.Context, s *scene) (string, error) {
	if err := s.workers((*harness.Process).Pause); err != nil {
		return "", err
	}
	for n := range 10 {
		key := fmt.Sprintf("lab-last-%d", n)
		s.client.PostAll(ctx, 1, "/v1/charges", key, chargeBody(key, "last"))
	}
	var resumed error
	err := s.hold(ctx, "stock", 1, 300*time.Millisecond, func(int) { resumed = s.workers((*harness.Process).Resume) })
	return "lab-last-0", errors.Join(err, resumed)
}

// chargeBody is a request for a charge of 10.00 of a SKU, or of none.
func chargeBody(order, sku string) []byte {
	var items []item
	if sku != "" {
		items = []item{{sku, 1}}
	}
	return charge{order: order, currency: "EUR"}.bodyOf(cardVisa, items, 1000)
}

// endedCharge is a charge that has succeeded and has no work left.
func (s *scene) endedCharge(ctx context.Context, key, sku string) (string, error) {
	answers := s.client.PostAll(ctx, 1, "/v1/charges", key, chargeBody(key, sku))
	if len(answers) == 0 {
		return "", context.Cause(ctx)
	}
	if id := answers[0].Member("id"); id != "" {
		return id, s.quiet(ctx)
	}
	return "", fmt.Errorf("charge %s: answered %+v", key, answers[0])
}

// quiet waits until nothing is left to do but what waits for something that will not come.
func (s *scene) quiet(ctx context.Context) error {
	return connected(ctx, s.Service, func(conn *pgx.Conn) error {
		return await(ctx, conn, `
select not exists (select from inbox where status in ('pending', 'running') and waits = 0)
   and not exists (select from outbox)
   and not exists (
         select
           from ledger_events e
           join followers f
             on f.name = 'balances'
          where (e.txid, e.position) > (f.txid, f.position))`)
	})
}

// texts returns the rows of a query.
func (s *scene) texts(ctx context.Context, sql string, args ...any) (texts []string, err error) {
	return texts, connected(ctx, s.Service, func(conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, sql, args...) // CollectRows returns its error
		texts, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
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
func (s *scene) hold(ctx context.Context, table string, n int, pause time.Duration, call func(int)) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	return connected(ctx, s.Service, func(conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "lock table "+table+" in exclusive mode"); err != nil {
				return err
			}
			for i := range n {
				calls.Go(func() { call(i) })
			}
			return errors.Join(await(ctx, conn, selectWaiting, min(n, programsOfKind)), harness.Wait(ctx, pause))
		})
	})
}

// workers does something to each worker.
func (s *scene) workers(do func(*harness.Process) error) (err error) {
	for _, p := range s.Workers {
		err = errors.Join(err, do(p))
	}
	return err
}
