package postgres_test

import (
	"errors"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// A program whose sessions lack their role, or what bounds them, does not start.
func TestOpen_refusesAPoolerThatDropsSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		passes []string // of what a session is opened with
		missed string
	}{
		{"all it does not know", []string{"application_name", "timezone"}, "client_connection_check_interval"},
		{"the role alone", append(sessionSettings(), "application_name"), "role"},
		{"one of them", append(slices.DeleteFunc(sessionSettings(), func(s string) bool { return s == "statement_timeout" }), "role"), "statement_timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := postgres.Open(t.Context(), pooler(t, testdb.URL(t), c.passes), postgres.Options{
				Application: "api", Role: postgres.RoleAPI, AllowUnsafeDurability: true,
			})
			want := "the session setting " + c.missed + " was not applied: a pooler dropped it, so let DATABASE_URL name the server itself"
			if err == nil || err.Error() != want {
				t.Errorf("opened with %v, want %s", err, want)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		testdb.OpenAt(t, pooler(t, testdb.URL(t), append(sessionSettings(), "role")), postgres.Options{Role: postgres.RoleAPI})
	})
}

// PgBouncer says so in each of its modes, unless its settings ignore the parameters.
func TestOpen_refusesAPoolerThatRefusesSettings(t *testing.T) {
	t.Parallel()
	at := listen(t, func(client net.Conn, _ *sync.WaitGroup) {
		session := pgproto3.NewBackend(client, client)
		if _, err := session.ReceiveStartupMessage(); err == nil {
			session.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: jit"})
			_ = session.Flush()
		}
		_ = client.Close()
	})
	_, err := postgres.Open(t.Context(), "postgres://payonce@"+at+"/payonce?sslmode=disable", postgres.Options{})
	const want = "a pooler before the database refuses the settings of the sessions (unsupported startup parameter: jit): let DATABASE_URL name the server itself"
	if err == nil || err.Error() != want || errors.Is(err, postgres.ErrUnreachable) {
		t.Errorf("opened with %v, want %s", err, want)
	}
}

// sessionSettings are those that each session is opened with.
func sessionSettings() []string {
	return []string{
		"application_name", "client_connection_check_interval", "default_transaction_isolation",
		"enable_bitmapscan", "enable_hashjoin", "enable_incremental_sort", "enable_mergejoin", "enable_seqscan", "enable_sort",
		"idle_in_transaction_session_timeout", "jit", "max_parallel_workers_per_gather", "lock_timeout", "plan_cache_mode", "statement_timeout",
		"tcp_keepalives_count", "tcp_keepalives_idle", "tcp_keepalives_interval", "timezone",
	}
}

// pooler stands before a server and opens sessions with the user, the database and
// what it passes, and nothing else, as PgBouncer does with what its settings ignore.
func pooler(t *testing.T, server string, passes []string) (address string) {
	t.Helper()
	config, err := pgconn.ParseConfig(server)
	testdb.Must(t, err)
	at := listen(t, func(client net.Conn, serving *sync.WaitGroup) {
		var dialer net.Dialer
		network, at := pgconn.NetworkAddress(config.Host, config.Port)
		behind, err := dialer.DialContext(t.Context(), network, at)
		if err != nil {
			t.Error(err)
			_ = client.Close()
			return
		}
		serving.Go(func() {
			defer func() { _ = behind.Close() }()
			if startWith(client, behind, append([]string{"user", "database"}, passes...)) == nil {
				_, _ = io.Copy(behind, client)
			}
		})
		serving.Go(func() {
			defer func() { _ = client.Close() }()
			_, _ = io.Copy(client, behind)
		})
	})
	through := url.URL{
		Scheme: "postgres", User: url.UserPassword(config.User, config.Password),
		Host: at, Path: "/" + config.Database, RawQuery: "sslmode=disable",
	}
	return through.String()
}

// startWith forwards a session's first message with those of its parameters.
func startWith(client io.Reader, server io.Writer, passes []string) error {
	first, err := pgproto3.NewBackend(client, server).ReceiveStartupMessage()
	if err != nil {
		return err
	}
	if session, ok := first.(*pgproto3.StartupMessage); ok {
		maps.DeleteFunc(session.Parameters, func(name, _ string) bool { return !slices.Contains(passes, name) })
	}
	message, err := first.Encode(nil)
	if err == nil {
		_, err = server.Write(message)
	}
	return err
}

// listen serves each connection until the test ends, and returns its address.
func listen(t *testing.T, serve func(client net.Conn, serving *sync.WaitGroup)) (address string) {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	testdb.Must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			serve(client, &serving)
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return listener.Addr().String()
}
