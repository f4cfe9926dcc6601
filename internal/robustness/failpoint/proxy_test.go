package failpoint_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
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
	testrun.Long(t, "it needs a database")
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

func TestGate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		side   failpoint.Side
		fault  failpoint.Fault
		status int // 0 where the connection ends
		calls  int64
	}{
		"nothing":           {"", failpoint.None, http.StatusCreated, 1},
		"cut before":        {failpoint.Before, failpoint.Cut, 0, 0},
		"cut after":         {failpoint.After, failpoint.Cut, 0, 1},
		"broken before":     {failpoint.Before, failpoint.Broken, http.StatusInternalServerError, 0},
		"broken after":      {failpoint.After, failpoint.Broken, http.StatusInternalServerError, 1},
		"unavailable after": {failpoint.After, "503", http.StatusServiceUnavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				w.Header().Set("X-Outside", r.Header.Get("Idempotency-Key"))
				w.WriteHeader(http.StatusCreated)
				_, _ = io.Copy(w, r.Body)
			}))
			defer outside.Close()
			gate, err := failpoint.NewGate(outside.URL, func() failpoint.CallHook {
				return func(c *failpoint.Call) failpoint.Fault {
					if c.Side != test.side {
						return failpoint.None
					}
					return test.fault
				}
			})
			testrun.Must(t, err)
			defer gate.Close()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gate.URL+"/v1/refunds/re_1", strings.NewReader("money"))
			testrun.Must(t, err)
			request.Header.Set("Idempotency-Key", "k1")
			status := 0
			if response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request); err == nil {
				defer func() { _ = response.Body.Close() }()
				status = response.StatusCode
				body, _ := io.ReadAll(response.Body)
				if status == http.StatusCreated && (string(body) != "money" || response.Header.Get("X-Outside") != "k1") {
					t.Errorf("forwarded %q and %q", body, response.Header)
				}
			}
			if status != test.status || calls.Load() != test.calls {
				t.Errorf("answered %d after %d calls", status, calls.Load())
			}
		})
	}
}
