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

	"github.com/payonce/payonce/internal/robustness/fleet"
	"github.com/payonce/payonce/internal/robustness/traffic"
)

// The faults of the guard lab. Each leaves payonce sound as long as all guards are there.
// It returns what `payonce timeline` shows of it: a charge or a key.

// sameKey sends 10 requests with one key, which both apis claim before either commits. An api
// waits for a lock for milliseconds at a time, so several keys may be needed.
func sameKey(ctx context.Context, s *scene) (key string, err error) {
	for n := range 5 {
		key = fmt.Sprintf("lab-same-key-%d", n)
		var sent sync.WaitGroup
		err = s.hold(ctx, "idempotency_keys", nil, nil, func(pgx.Tx) error {
			sent.Go(func() { s.traffic.PostAll(ctx, 10, "/v1/charges", key, chargeBody(key, "")) })
			return s.wait(ctx, selectWaiting, 2)
		})
		sent.Wait()
		stored, found := s.texts(ctx, `select key from idempotency_keys where key = $1`, key)
		if err = errors.Join(err, found); err != nil || len(stored) > 1 {
			break
		}
	}
	return key, err
}

// newCollation plays an update of the server's image: ICU sorts otherwise, and the indexes
// are those from before.
func newCollation(ctx context.Context, s *scene) (string, error) {
	const requests = 40
	send := func() error {
		for n := range requests {
			if _, err := s.charge(ctx, fmt.Sprintf("lab-%d", n), ""); err != nil {
				return err
			}
		}
		return nil
	}
	if err := send(); err != nil {
		return "", err
	}
	err := s.exec(ctx, `
do $$
begin
  execute format('update pg_database set %I = ''und-u-kn'' where datname = current_database()',
    (select attname from pg_attribute where attrelid = 'pg_database'::regclass and attname in ('daticulocale', 'datlocale')));
end
$$`)
	if err == nil {
		err = s.restartDatabase(ctx)
	}
	if err == nil {
		err = send()
	}
	if err != nil {
		return "", err
	}
	keys, err := s.texts(ctx, `
select key
  from idempotency_keys
 where key like 'lab-%'
 group by scope, operation, key
 order by count(*) desc, key
 limit 1`)
	return strings.Join(keys, ""), err
}

// rivals sends 8 requests with keys of their own while both apis decide on the same events: they
// wait for one lock before either commits.
func (s *scene) rivals(ctx context.Context, path, key, body string) error {
	var sent sync.WaitGroup
	defer sent.Wait()
	return s.hold(ctx, "ledger_events", nil, nil, func(pgx.Tx) error {
		for n := range 8 {
			sent.Go(func() { s.traffic.PostAll(ctx, 1, path, fmt.Sprintf("%s-%d", key, n), []byte(body)) })
		}
		return errors.Join(s.wait(ctx, selectWaiting, 2), traffic.Wait(ctx, 300*time.Millisecond)) // an api may wait for the use of its key
	})
}

// rivalRefunds lets the workers go on when all refunds are stored, so that they read them at once.
func rivalRefunds(ctx context.Context, s *scene) (string, error) {
	id, err := s.endedCharge(ctx, "lab-refunds")
	if err == nil {
		err = each(s.Workers, (*fleet.Process).Pause)
	}
	if err != nil {
		return "", err
	}
	err = s.rivals(ctx, "/v1/charges/"+id+"/refunds", "lab-refund", `{"amount": 700}`)
	return id, errors.Join(err, each(s.Workers, (*fleet.Process).Resume))
}

// rivalKeys asks for one order under several keys, of a merchant who wants one charge.
func rivalKeys(ctx context.Context, s *scene) (string, error) {
	if err := s.exec(ctx, `update merchants set one_charge_per_order = true`); err != nil {
		return "", err
	}
	err := s.rivals(ctx, "/v1/charges", "lab-order", `{"order_id": "lab-order", "amount": 1000, "currency": "EUR", "payment_method": "pm_card_visa"}`)
	ids, found := s.texts(ctx, `select stream_id from ledger_events where version = 1 and data ->> 'order_id' = 'lab-order' order by position`)
	if err = errors.Join(err, found, s.exec(ctx, `update merchants set one_charge_per_order = false`)); err != nil || len(ids) == 0 {
		return "", err
	}
	return ids[0], s.ended(ctx, ids[0])
}

// lostCommit plays a failover to a standby that does not have the latest commit, while a worker
// waits for the provider's answer to a confirmation. Where it comes too late, another charge is sent.
func lostCommit(ctx context.Context, s *scene) (string, error) {
	if err := s.sandbox.SetFaults(ctx, traffic.Faults{Slow: traffic.Slow{P: 1, Milliseconds: 1000}}); err != nil {
		return "", err
	}
	for n := 0; ; n++ {
		id, err := s.charge(ctx, fmt.Sprintf("lab-lost-commit-%d", n), "")
		if err == nil {
			err = s.wait(ctx, `select exists (select from ledger_events where stream_id = $1 and type like 'payment.started.v%')`, id)
		}
		if err != nil {
			return "", err
		}
		if lost, err := s.lose(ctx, id); lost > 0 || err != nil {
			return id, errors.Join(err, s.sandbox.SetFaults(ctx, traffic.Faults{}), s.ended(ctx, id))
		}
	}
}

const deleteStarted = `
delete from ledger_events
 where stream_id = $1
   and type like 'payment.started.v%'
   and not exists (select from ledger_events where stream_id = $1 and type like 'payment.captured.v%')`

// lose deletes the newest event of a charge as no program can: without triggers.
func (s *scene) lose(ctx context.Context, id string) (events int64, err error) {
	return events, s.on(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, `set session_replication_role = replica`); err != nil {
			return err
		}
		tag, err := conn.Exec(ctx, deleteStarted, id)
		events = tag.RowsAffected()
		return err
	})
}

var (
	updateByHand  = byHand("lab-by-hand", `update ledger_events set data = jsonb_set(data, '{amount}', '2000') where stream_id = '$charge' and version = 1`)
	restockByHand = byHand("lab-restock", `update stock set available = available + 5 where sku = 'mug'`)
)

// byHand runs a statement that a guard may refuse, after a charge.
func byHand(key, sql string) func(context.Context, *scene) (string, error) {
	return func(ctx context.Context, s *scene) (string, error) {
		id, err := s.endedCharge(ctx, key)
		if err == nil {
			err = s.exec(ctx, strings.ReplaceAll(sql, "$charge", id))
		}
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(refused.Code, "23") {
			err = nil
		}
		return id, err
	}
}

// pausedHolder pauses a worker whose last commit of a charge is at the database, and lets another
// one take the message over and die. If that took so long that the commit has stopped waiting for
// its lock, or the other worker has finished the message before it died, it is another charge's turn.
func pausedHolder(ctx context.Context, s *scene) (id string, err error) {
	const turns = 10
	victim, rival := s.Workers[0], s.Workers[1]
	for n, met := 0, false; !met && err == nil && n < turns; n++ {
		waits := false
		if err := rival.Pause(); err != nil {
			return "", err
		}
		err = s.hold(ctx, "ledger_postings", s.Workers[:1], func() error {
			id, err = s.charge(ctx, fmt.Sprintf("lab-paused-%d", n), "")
			return err
		}, func(tx pgx.Tx) error {
			if err := s.wait(ctx, selectWaiting, 1); err != nil {
				return err
			}
			var session int
			err := tx.QueryRow(ctx, `select pid from pg_locks where relation = 'ledger_postings'::regclass and not granted`).Scan(&session)
			if err = errors.Join(err, victim.Pause(), rival.Resume()); err != nil {
				return err
			}
			err = s.wait(ctx, `select exists (select from inbox where ordering_key = $1 and fence = 2)`, id)
			return errors.Join(err, rival.Kill(), tx.QueryRow(ctx, `select exists (select from pg_locks where pid = $1 and not granted)`, session).Scan(&waits))
		})
		err = errors.Join(err, victim.Resume(), rival.Restart(ctx), s.ended(ctx, id))
		if err == nil && waits {
			err = s.on(ctx, func(conn *pgx.Conn) error {
				return conn.QueryRow(ctx, `select exists (select from inbox where ordering_key = $1 and done_fence <> fence)`, id).Scan(&met)
			})
		}
	}
	return id, err
}

func lastPiece(ctx context.Context, s *scene) (id string, err error) {
	err = s.hold(ctx, "stock", s.Workers, func() error {
		for n := range 10 {
			if id, err = s.charge(ctx, fmt.Sprintf("lab-last-%d", n), "last"); err != nil {
				return err
			}
		}
		return nil
	}, func(pgx.Tx) error {
		return errors.Join(s.wait(ctx, selectWaiting, 1), traffic.Wait(ctx, 300*time.Millisecond)) // the others have read the stock
	})
	return id, errors.Join(err, s.ended(ctx, id))
}

func deletedArticle(ctx context.Context, s *scene) (id string, err error) {
	err = s.hold(ctx, "stock", s.Workers, func() error {
		id, err = s.charge(ctx, "lab-gone", "gone")
		return err
	}, func(tx pgx.Tx) error {
		err := s.wait(ctx, selectWaiting, 1)
		if err == nil {
			_, err = tx.Exec(ctx, `delete from stock where sku = 'gone'`)
		}
		return err
	})
	return id, errors.Join(err, s.ended(ctx, id))
}

// charge sends the request for a charge of 10.00, and returns the charge of the answer.
func (s *scene) charge(ctx context.Context, key, sku string) (string, error) {
	answers := s.traffic.PostAll(ctx, 1, "/v1/charges", key, chargeBody(key, sku))
	if len(answers) == 0 {
		return "", context.Cause(ctx)
	}
	id, ok := strings.CutPrefix(answers[0].Location, "/v1/charges/")
	if !ok {
		return "", fmt.Errorf("charge %s: answered %+v", key, answers[0])
	}
	return id, nil
}

func chargeBody(order, sku string) []byte {
	items := ""
	if sku != "" {
		items = fmt.Sprintf(`, "items": [{"sku": %q, "quantity": 1}]`, sku)
	}
	return fmt.Appendf(nil, `{"order_id": %q, "amount": 1000, "currency": "EUR", "payment_method": "pm_card_visa"%s}`, order, items)
}

// endedCharge is a charge that has succeeded and has no work left.
func (s *scene) endedCharge(ctx context.Context, key string) (string, error) {
	id, err := s.charge(ctx, key, "")
	if err == nil {
		err = s.ended(ctx, id)
	}
	if err == nil {
		err = s.quiet(ctx)
	}
	return id, err
}

func (s *scene) ended(ctx context.Context, id string) error {
	return s.wait(ctx, `select exists (select from ledger_events where stream_id = $1 and (type like 'charge.succeeded.v%' or type like 'charge.failed.v%'))`, id)
}

// quiet waits until nothing is left to do but what waits for something that will not come.
func (s *scene) quiet(ctx context.Context) error {
	return s.wait(ctx, `
select not exists (select from inbox where status in ('pending', 'running') and waits = 0)
   and not exists (select from outbox)
   and not exists (
         select
           from ledger_events e
           join followers f
             on f.name = 'balances'
          where (e.txid, e.position) > (f.txid, f.position))`)
}

// on runs with a connection as the owner of the service's tables.
func (s *scene) on(ctx context.Context, do func(*pgx.Conn) error) error {
	return onDatabase(ctx, s.Service, do)
}

// exec runs statements.
func (s *scene) exec(ctx context.Context, sql string) error {
	return s.on(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

// texts returns the rows of a query.
func (s *scene) texts(ctx context.Context, sql string, args ...any) (texts []string, err error) {
	return texts, s.on(ctx, func(conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, sql, args...) // CollectRows returns its error
		texts, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
}

// wait waits until a query returns true.
func (s *scene) wait(ctx context.Context, sql string, args ...any) error {
	return s.on(ctx, func(conn *pgx.Conn) error {
		for {
			var yes bool
			if err := conn.QueryRow(ctx, sql, args...).Scan(&yes); err != nil || yes {
				return err
			}
			if err := traffic.Wait(ctx, 5*time.Millisecond); err != nil {
				return fmt.Errorf("wait for %s %v: %w", sql, args, err)
			}
		}
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

// hold sends requests, unless send is nil, while programs are paused, then locks a table against writers, lets the
// programs go on, and unlocks the table when locked has returned. The lock has no transaction id,
// so it does not hold back the followers of the ledger.
func (s *scene) hold(ctx context.Context, table string, paused []*fleet.Process, send func() error, locked func(pgx.Tx) error) error {
	err := each(paused, (*fleet.Process).Pause)
	if err == nil && send != nil {
		err = send()
	}
	if err != nil {
		return errors.Join(err, each(paused, (*fleet.Process).Resume))
	}
	return s.on(ctx, func(conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "lock table "+table+" in exclusive mode")
			if err = errors.Join(err, each(paused, (*fleet.Process).Resume)); err != nil {
				return err
			}
			return locked(tx)
		})
	})
}

func each(programs []*fleet.Process, do func(*fleet.Process) error) (err error) {
	for _, p := range programs {
		err = errors.Join(err, do(p))
	}
	return err
}
