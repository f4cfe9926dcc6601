package failpoint_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// scene is a database with a table, and a proxy before it.
type scene struct {
	*testing.T

	address string
	direct  *pgx.Conn
	proxy   *failpoint.Proxy
	watch   *failpoint.Watch
	ctx     context.Context //nolint:containedctx // the test's own
}

func newScene(t *testing.T) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Stall)
	t.Cleanup(cancel)
	s := &scene{T: t, address: testdb.Empty(t), watch: failpoint.NewWatch(), ctx: ctx}
	s.direct = s.connect(s.address)
	s.exec(s.direct, `create table effects (id int primary key)`)
	var err error
	if s.proxy, err = failpoint.NewProxy(ctx, s.address, s.watch); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.proxy.Close)
	return s
}

func (s *scene) connect(address string) *pgx.Conn {
	s.Helper()
	conn, err := pgx.Connect(s.ctx, address)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close(context.WithoutCancel(s.ctx)) })
	return conn
}

// through puts a plan in place and connects through the proxy.
func (s *scene) through(aim failpoint.Aim, inject func(failpoint.Fault), polls ...string) (*pgx.Conn, *failpoint.Plan) {
	s.Helper()
	known := failpoint.Known{Polls: map[string]bool{}}
	for _, name := range polls {
		known.Polls[name] = true
	}
	plan := failpoint.NewPlan(aim, known, inject)
	s.watch.Set(plan)
	return s.connect(s.proxy.URL()), plan
}

func (s *scene) exec(conn *pgx.Conn, sql string, args ...any) {
	s.Helper()
	if _, err := conn.Exec(s.ctx, sql, args...); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) wantStored(want ...int) {
	s.Helper()
	rows, err := s.direct.Query(s.ctx, `select id from effects order by id`)
	if err != nil {
		s.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		s.Fatal(err)
	}
	if diff := cmp.Diff(append([]int{}, want...), got); diff != "" {
		s.Errorf("stored (-want +got):\n%s", diff)
	}
}

func (s *scene) wantPoints(plan *failpoint.Plan, want ...string) {
	s.Helper()
	got := []string{}
	for _, seen := range plan.Points() {
		got = append(got, seen.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("points (-want +got):\n%s", diff)
	}
}

const (
	insert = `insert into effects (id) values ($1)`
	poll   = `select id from effects where id = $1`
)

func effects(ids ...int) *pgx.Batch {
	b := &pgx.Batch{}
	for _, id := range ids {
		b.Queue(insert, id)
	}
	return b
}

func TestPoints(t *testing.T) {
	t.Parallel()

	t.Run("a round trip is named by its statements and counted by its name", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		conn, plan := s.through(failpoint.Aim{}, nil)
		for i := range 2 {
			testdb.Must(t, conn.SendBatch(s.ctx, effects(3*i, 3*i+1, 3*i+2)).Close())
		}
		tx, err := conn.Begin(s.ctx)
		testdb.Must(t, err)
		if _, err := tx.Exec(s.ctx, insert, 6); err != nil {
			t.Fatal(err)
		}
		testdb.Must(t, tx.Commit(s.ctx))
		s.wantPoints(plan, "connect", "prepare insert effects", "insert effects ×3", "insert effects ×3#2",
			"insert effects", "begin", "commit")
	})

	t.Run("a repeated round trip of another connection is no crash point", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		conn, plan := s.through(failpoint.Aim{}, nil)
		s.exec(conn, insert, 1)
		s.exec(s.connect(s.proxy.URL()), insert, 2)
		s.exec(s.connect(s.proxy.URL()+"&application_name=other"), insert, 3)
		s.wantPoints(plan, "connect", "prepare insert effects", "insert effects", "insert effects#2",
			"connect (session 2)", "insert effects#3")
	})

	t.Run("a poll is a point when it finds something, and so is its transaction", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		name := "select id from effects"
		conn, plan := s.through(failpoint.Aim{}, nil, name)
		for _, found := range []bool{false, true, false} {
			if found {
				s.exec(s.direct, insert, 1)
			}
			tx, err := conn.Begin(s.ctx)
			testdb.Must(t, err)
			if _, err := tx.Exec(s.ctx, poll, 1); err != nil {
				t.Fatal(err)
			}
			testdb.Must(t, tx.Rollback(s.ctx))
			s.exec(s.direct, `delete from effects`)
		}
		s.wantPoints(plan, "connect", "prepare select id from effects", "begin", name, "rollback")
	})
}

func TestStrike(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		name   string
		side   failpoint.Side
		stored []int
	}{
		{"a cut before the server has the work leaves none of it", failpoint.Before, nil},
		{"a cut after the server has answered leaves all of it", failpoint.After, []int{1, 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			var faults atomic.Int32
			aim := at("insert effects ×2", test.side, failpoint.Cut)
			conn, plan := s.through(aim, func(failpoint.Fault) { faults.Add(1) })
			err := conn.SendBatch(s.ctx, effects(1, 2)).Close()
			if refusal := new(pgconn.PgError); err == nil || errors.As(err, &refusal) {
				t.Errorf("the commit ended with %v", err)
			}
			if !plan.Fired() || faults.Load() != 1 || !conn.IsClosed() {
				t.Errorf("fired %v, %d faults, closed %v", plan.Fired(), faults.Load(), conn.IsClosed())
			}
			s.wantStored(test.stored...)
			s.exec(s.connect(s.proxy.URL()), insert, 3)
		})
	}

	t.Run("the k-th of a name is hit and no other", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		conn, plan := s.through(failpoint.Aim{Point: failpoint.Point{Name: "insert effects", Occurrence: 2}, Side: failpoint.Before, Fault: failpoint.Cut}, nil)
		s.exec(conn, insert, 1)
		if plan.Fired() {
			t.Error("the first was hit")
		}
		if _, err := conn.Exec(s.ctx, insert, 2); err == nil {
			t.Error("the second was not")
		}
		s.wantStored(1)
	})

	t.Run("a plan by number fires after that many points", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		conn, _ := s.through(failpoint.Aim{Nth: 4, Fault: failpoint.Kill}, nil)
		s.exec(conn, insert, 1)
		if _, err := conn.Exec(s.ctx, insert, 2); err == nil {
			t.Error("connect, prepare, insert and insert were not hit")
		}
		s.wantStored(1, 2)
	})

	t.Run("a paused round trip continues where it was", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		for _, side := range []failpoint.Side{failpoint.Before, failpoint.After} {
			stored := -1
			aim := at("insert effects", side, failpoint.Pause)
			conn, _ := s.through(aim, func(failpoint.Fault) {
				if err := s.direct.QueryRow(s.ctx, `select count(*) from effects`).Scan(&stored); err != nil {
					t.Error(err)
				}
			})
			s.exec(conn, insert, map[failpoint.Side]int{failpoint.Before: 1, failpoint.After: 2}[side])
			if want := map[failpoint.Side]int{failpoint.Before: 0, failpoint.After: 2}[side]; stored != want {
				t.Errorf("%s: %d rows while it stood, want %d", side, stored, want)
			}
		}
		s.wantStored(1, 2)
	})

	t.Run("a poll is hit when what it would find is there", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		name := "select id from effects"
		aim := failpoint.Aim{
			Point: failpoint.Point{Name: name, Occurrence: 1}, Side: failpoint.Before, Fault: failpoint.Cut,
			Behind: failpoint.Point{Name: "insert effects", Occurrence: 1},
		}
		conn, plan := s.through(aim, nil, name)
		s.exec(conn, poll, 1)
		s.exec(conn, insert, 1)
		if plan.Fired() {
			t.Error("it fired before")
		}
		if _, err := conn.Exec(s.ctx, poll, 1); err == nil {
			t.Error("it did not fire")
		}
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	insertOne := func(s *scene, conn *pgx.Conn) error { _, err := conn.Exec(s.ctx, insert, 1); return err }
	batch := func(s *scene, conn *pgx.Conn) error { return conn.SendBatch(s.ctx, effects(1, 2)).Close() }
	inTransaction := func(s *scene, conn *pgx.Conn) error {
		s.exec(conn, "begin")
		err := insertOne(s, conn)
		if err != nil {
			wantCode(s.T, insertOne(s, conn), "25P02", "ERROR")
			s.exec(conn, "rollback")
			return err
		}
		_, err = conn.Exec(s.ctx, "commit")
		return err
	}
	for name, test := range map[string]struct {
		aim      failpoint.Aim
		do       func(*scene, *pgx.Conn) error
		severity string
		stored   []int
	}{
		"in place of a statement it leaves the transaction aborted": {at("insert effects", failpoint.Before, failpoint.Deadlock), inTransaction, "ERROR", nil},
		"in place of a batch it leaves nothing of it":               {at("insert effects ×2", failpoint.Before, failpoint.Serialization), batch, "ERROR", nil},
		"in place of a commit it rolls back":                        {at("commit", failpoint.Before, failpoint.Serialization), inTransaction, "ERROR", nil},
		"the end of the session before the work is fatal":           {at("insert effects", failpoint.Before, failpoint.Shutdown), insertOne, "FATAL", nil},
		"the end of the session after the work is fatal":            {at("insert effects", failpoint.After, failpoint.Shutdown), insertOne, "FATAL", []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			conn, plan := s.through(test.aim, nil)
			wantCode(t, test.do(s, conn), string(test.aim.Fault), test.severity)
			s.wantStored(test.stored...)
			if !plan.Fired() {
				t.Error("the plan has not fired")
			}
			if test.severity == "ERROR" {
				if status := conn.PgConn().TxStatus(); status != 'I' {
					t.Errorf("the transaction's status is %c", status)
				}
				s.exec(conn, insert, 3) // the same connection still commits
				s.wantStored(3)
			}
		})
	}
}

func TestCutter_cutsOnceAtTheFirstBatchThatFits(t *testing.T) {
	t.Parallel()
	for side, stored := range map[failpoint.Side][]int{failpoint.Before: nil, failpoint.After: {1, 2}} {
		t.Run(string(side), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			cutter := failpoint.StartCutter(t, s.address)
			conn := s.connect(cutter.URL())
			cutter.Arm(side, 2)
			s.exec(conn, insert, 9)
			if err := conn.SendBatch(s.ctx, effects(1, 2)).Close(); err == nil || cutter.Cuts() != 1 {
				t.Errorf("the batch ended with %v after %d cuts", err, cutter.Cuts())
			}
			s.wantStored(append(stored, 9)...)
			conn = s.connect(cutter.URL())
			if err := conn.SendBatch(s.ctx, effects(3, 4)).Close(); err != nil {
				t.Errorf("another batch was cut too: %v", err)
			}
		})
	}
}

// at aims at the first round trip of a name.
func at(name string, side failpoint.Side, fault failpoint.Fault) failpoint.Aim {
	return failpoint.Aim{Point: failpoint.Point{Name: name, Occurrence: 1}, Side: side, Fault: fault}
}

func wantCode(t *testing.T, err error, code, severity string) {
	t.Helper()
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || refusal.Code != code || refusal.SeverityUnlocalized != severity {
		t.Errorf("the error is %v, want %s %s", err, severity, code)
	}
}
