package failpoint_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// scene is a database with a table, and a proxy before it.
type scene struct {
	*testing.T

	address string
	direct  *pgx.Conn
	proxy   *failpoint.Proxy
	hook    *aim
	ctx     context.Context //nolint:containedctx // the test's own
}

// aim is a hook that returns a fault once, at the first round trip of a statement.
type aim struct {
	sql   string // how the statement begins
	side  failpoint.Side
	fault failpoint.Fault
	fired atomic.Bool
}

func (a *aim) strike(t *failpoint.Trip) failpoint.Fault {
	if t.Side != a.side || len(t.Executed) == 0 || !strings.HasPrefix(t.Executed[0], a.sql) || a.fired.Swap(true) {
		return failpoint.None
	}
	return a.fault
}

func newScene(t *testing.T, hook *aim) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testrun.Stall)
	t.Cleanup(cancel)
	s := &scene{T: t, address: testdb.Empty(t), hook: hook, ctx: ctx}
	s.direct = testdb.Session(t, s.address)
	s.exec(s.direct, `create table effects (id int primary key)`)
	var err error
	s.proxy, err = failpoint.NewProxy(ctx, s.address, func() failpoint.Hook { return s.hook.strike })
	testdb.Must(t, err)
	t.Cleanup(s.proxy.Close)
	return s
}

// through connects through the proxy.
func (s *scene) through() *pgx.Conn {
	s.Helper()
	return testdb.Session(s.T, s.proxy.URL())
}

func (s *scene) exec(conn *pgx.Conn, sql string, args ...any) {
	s.Helper()
	testdb.Exec(s.T, conn, sql, args...)
}

func (s *scene) wantStored(want ...int) {
	s.Helper()
	testrun.Same(s.T, "stored", want, testdb.All[int](s.T, s.direct, `select id from effects order by id`), cmpopts.EquateEmpty())
}

const insert = `insert into effects (id) values ($1)`

func effects(ids ...int) *pgx.Batch {
	b := &pgx.Batch{}
	for _, id := range ids {
		b.Queue(insert, id)
	}
	return b
}

func TestFaults(t *testing.T) {
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
	cutOff := func(s *scene, conn *pgx.Conn) error {
		s.exec(conn, "begin")
		s.exec(conn, insert, 1)
		s.proxy.CutAll()
		s.exec(s.direct, insert, 1) // waits for the other's lock, were it held
		return insertOne(s, conn)
	}
	for name, test := range map[string]struct {
		hook     *aim
		do       func(*scene, *pgx.Conn) error
		severity string // "" where the connection is cut
		stored   []int
	}{
		"a cut before the server has the work leaves none of it":    {&aim{sql: "insert", side: failpoint.Before, fault: failpoint.Cut}, batch, "", nil},
		"a cut after the server has answered leaves all of it":      {&aim{sql: "insert", side: failpoint.After, fault: failpoint.Cut}, batch, "", []int{1, 2}},
		"in place of a statement it leaves the transaction aborted": {&aim{sql: "insert", side: failpoint.Before, fault: "40P01"}, inTransaction, "ERROR", nil},
		"in place of a batch it leaves nothing of it":               {&aim{sql: "insert", side: failpoint.Before, fault: "40001"}, batch, "ERROR", nil},
		"in place of a commit it rolls back":                        {&aim{sql: "commit", side: failpoint.Before, fault: "40001"}, inTransaction, "ERROR", nil},
		"a connection that is cut in a transaction keeps no lock":   {&aim{}, cutOff, "", []int{1}},
		"the end of the session before the work is fatal": {&aim{
			sql:  "insert",
			side: failpoint.Before, fault: failpoint.Shutdown,
		}, insertOne, "FATAL", nil},
		"the end of the session after the work is fatal": {&aim{
			sql:  "insert",
			side: failpoint.After, fault: failpoint.Shutdown,
		}, insertOne, "FATAL", []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, test.hook)
			conn := s.through()
			err := test.do(s, conn)
			if test.severity != "" {
				wantCode(t, err, string(test.hook.fault), test.severity)
			} else if refusal := new(pgconn.PgError); err == nil || errors.As(err, &refusal) || !conn.IsClosed() {
				t.Errorf("the commit ended with %v", err)
			}
			s.wantStored(test.stored...)
			if test.severity != "ERROR" {
				conn = s.through()
			} else if status := conn.PgConn().TxStatus(); status != 'I' {
				t.Errorf("the transaction's status is %c", status)
			}
			s.exec(conn, insert, 3) // after an error the same connection still commits
			s.wantStored(append(test.stored, 3)...)
		})
	}
}

func TestNotification_isForwarded(t *testing.T) {
	t.Parallel()
	s := newScene(t, &aim{})
	conn := s.through()
	s.exec(conn, `listen news`)
	s.exec(s.direct, `notify news, 'good'`)
	news, err := conn.WaitForNotification(s.ctx)
	if err != nil || news.Payload != "good" {
		t.Errorf("heard %+v, %v", news, err)
	}
}

func wantCode(t *testing.T, err error, code, severity string) {
	t.Helper()
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || refusal.Code != code || refusal.SeverityUnlocalized != severity {
		t.Errorf("the error is %v, want %s %s", err, severity, code)
	}
}

func TestMain(m *testing.M) { testrun.Main(m) }
