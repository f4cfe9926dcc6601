package inbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

func TestProcessor_countsNoAttemptWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	const waited, counted = "pending 0 1", "pending 1 0" // status, attempts, waits
	unsendable := func(ctx context.Context, db *postgres.DB) error {
		b := &pgx.Batch{}
		b.Queue(`select $1::int`, "no number")
		return db.Commit(ctx, b)
	}
	type failing func(ctx context.Context, db *postgres.DB) error
	returning := func(err error) failing { return func(context.Context, *postgres.DB) error { return err } }
	type test struct {
		fail failing
		want string
	}
	cases := map[string]test{
		"a commit whose outcome is unknown": {returning(fmt.Errorf("save: %w", groupcommit.ErrUnknown)), waited},
		"a commit that could not begin":     {returning(groupcommit.ErrNotCommitted), waited},
		"a connection that was cut":         {func(ctx context.Context, _ *postgres.DB) error { return readOverACutConnection(ctx, t) }, waited},
		"a server out of reach":             {func(ctx context.Context, _ *postgres.DB) error { return connectToNobody(ctx) }, waited},
		"a pool whose connections hang":     {returning(postgres.ErrNoConnection), waited},
		"an argument that does not fit":     {unsendable, counted},
		"a text that was cut":               {returning(json.NewDecoder(strings.NewReader(`{"a":`)).Decode(new(any))), counted},
		"a connection to another":           {returning(&net.OpError{Op: "dial", Err: io.ErrClosedPipe}), counted},
		"another host's outage":             {returning(&url.Error{Op: "Get", Err: io.ErrUnexpectedEOF}), counted},
	}
	for want, codes := range map[string]string{
		// The server stops, has crashed, starts, lacks connections or space, is a standby; a lock, a deadlock, a lost race.
		waited:  "57P01 57P02 57P03 53300 53100 25006 55P03 40P01 40001",
		counted: "23505 57014 42601", // a guard, a statement that took too long or is wrong
	} {
		for code := range strings.FieldsSeq(codes) {
			cases[code] = test{returning(fmt.Errorf("load: %w", &pgconn.PgError{Code: code})), want}
		}
	}
	db := testdb.Reused(t)
	for name := range cases {
		put(t, db, name, name)
	}
	p := processor(db, func(ctx context.Context, d *inbox.Delivery) error {
		return cases[d.ID].fail(ctx, db)
	})
	p.Policy.BackoffBase, p.Policy.BackoffCap = 1000*time.Hour, 1000*time.Hour
	start(t, p)
	await.Row(t, db, `select bool_and(status = 'pending' and last_error is not null) from inbox`)
	for name, test := range cases {
		if r := stored(t, db, name); fmt.Sprint(r.Status, " ", r.Attempts, " ", r.Waits) != test.want {
			t.Errorf("%s: the message is %+v, want %s", name, r, test.want)
		}
	}
}

// readOverACutConnection reads, and loses the connection while the server works.
func readOverACutConnection(ctx context.Context, t *testing.T) error {
	t.Helper()
	proxy := failpoint.StartCutter(t, testdb.Empty(t))
	db := testdb.OpenAt(t, proxy.URL(), postgres.Options{})
	proxy.Arm(failpoint.Before, 1)
	var one int
	return db.QueryRow(ctx, `select 1`).Scan(&one)
}

func connectToNobody(ctx context.Context) error {
	_, err := pgx.Connect(ctx, "postgres://nobody@127.0.0.1:1/nothing?sslmode=disable")
	return err
}

// The database restarts while handlers work: none of them comes through, and none
// can say so before it is back.
func TestProcessor_countsNoAttemptAndNoDeathForARestartOfTheDatabase(t *testing.T) {
	testdb.Long(t, "it stops a database server")
	t.Parallel()
	address := testdb.URL(t)
	db := testdb.OpenAt(t, address, postgres.Options{})
	clock, err := pgx.Connect(t.Context(), address) // it outlives the others
	testdb.Must(t, err)
	t.Cleanup(func() { _ = clock.Close(context.WithoutCancel(t.Context())) })
	putMany(t, db, `'m' || n`, `'k' || n`, 4)
	begun, failed, restart := make(chan struct{}, 8), make(chan struct{}, 8), make(chan struct{})
	p := processor(db, func(ctx context.Context, d *inbox.Delivery) error {
		if d.Waits > 0 {
			return nil
		}
		begun <- struct{}{}
		<-restart
		defer func() { failed <- struct{}{} }()
		var one int
		return db.QueryRow(ctx, `select 1`).Scan(&one)
	})
	p.Policy.Lease, p.Policy.BackoffBase = renewedLease, time.Millisecond
	unrenewed := &diary{}
	p.Log = slog.New(slog.NewTextHandler(unrenewed, nil))
	start(t, p)
	for range 4 {
		await.Receive(t, "a handler", begun)
	}

	admin := adminOf(t, address)
	name := db.Pool().Config().ConnConfig.Database
	testdb.Exec(t, admin, `alter database `+name+` allow_connections false`)
	testdb.Exec(t, admin, fmt.Sprintf(`select pg_terminate_backend(pid) from pg_stat_activity where datname = '%s' and pid <> %d`, name, clock.PgConn().PID()))
	close(restart)
	for range 4 {
		await.Receive(t, "the failure of a handler", failed)
	}
	unrenewed.await(t, "leases not renewed")
	testdb.Exec(t, clock, `update inbox set due_at = clock_timestamp() - interval '1 minute'`) // every lease has ended
	testdb.Exec(t, admin, `alter database `+name+` allow_connections true`)

	again := testdb.OpenAt(t, address, postgres.Options{})
	await.Row(t, again, `select bool_and(status = 'done' and attempts = 1 and waits = 1 and deaths = 0 and fence = 2) from inbox`)
}

// adminOf connects to another database of the same server.
func adminOf(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	testdb.Must(t, err)
	config.Database = "postgres"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	testdb.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}
