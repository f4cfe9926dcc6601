package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

func TestOpenRefusesAnUnsafeServer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, setting, value, want string
	}{
		{"that may lose pages", "fsync", "off", "fsync is off"},
		{"that may tear pages", "full_page_writes", "off", "full_page_writes is off"},
		{"that may lose the latest commits", "synchronous_commit", "off", "synchronous_commit is off"},
		{"that is older than what is supported", "server_version_num", "140022", "the server is PostgreSQL 14: payonce needs 15 or newer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			address := pretend(t, test.setting, test.value)
			db, err := postgres.Open(t.Context(), address, postgres.Options{AllowPlaintext: true})
			if err == nil {
				db.Close()
				t.Fatal("it was opened")
			}
			if !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("the refusal says %q, want %q", err, test.want)
			}
		})
	}

	t.Run("unless it was told to", func(t *testing.T) {
		t.Parallel()
		db, err := postgres.Open(t.Context(), pretend(t, "fsync", "off"),
			postgres.Options{AllowPlaintext: true, AllowUnsafeDurability: true})
		if err != nil {
			t.Fatal(err)
		}
		db.Close()
	})

	t.Run("while one that waits for the disk is opened", func(t *testing.T) {
		t.Parallel()
		for _, value := range []string{"on", "local", "remote_write", "remote_apply"} {
			db, err := postgres.Open(t.Context(), pretend(t, "synchronous_commit", value), postgres.Options{AllowPlaintext: true})
			if err != nil {
				t.Fatalf("synchronous_commit %s: %v", value, err)
			}
			db.Close()
		}
	})
}

// pretend is a database whose server claims to be safe and new but for one
// setting: a function of the same name is found before the server's own.
func pretend(t *testing.T, setting, value string) (address string) {
	t.Helper()
	address = testdb.Empty(t)
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	claims := map[string]string{
		"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "server_version_num": "150000",
	}
	claims[setting] = value
	var sql strings.Builder
	sql.WriteString(`
create schema claimed;
create function claimed.current_setting(name text) returns text language sql as $$ select case name`)
	for name, claim := range claims {
		fmt.Fprintf(&sql, " when '%s' then '%s'", name, claim)
	}
	sql.WriteString(` end $$`)
	if _, err := conn.Exec(t.Context(), sql.String()); err != nil {
		t.Fatal(err)
	}
	return with(address, "search_path=claimed,pg_catalog")
}

// with adds a parameter to a connection string.
func with(address, parameter string) string {
	if strings.Contains(address, "?") {
		return address + "&" + parameter
	}
	return address + "?" + parameter
}

func TestOpenRefusesPlaintextOverANetwork(t *testing.T) {
	t.Parallel()
	const refusal = " without TLS: add sslmode=verify-full, or set ALLOW_PLAINTEXT=1 where the network is your own"
	hungUp, cancel := context.WithCancel(t.Context()) // so that nothing is dialed
	cancel()

	for name, address := range map[string]string{
		"without TLS":                                   "postgres://payonce@192.0.2.1/payonce?sslmode=disable",
		"by name":                                       "postgres://payonce@db.example.com/payonce?sslmode=disable",
		"over IPv6":                                     "postgres://payonce@[2001:db8::1]/payonce?sslmode=disable",
		"on all interfaces":                             "postgres://payonce@0.0.0.0/payonce?sslmode=disable",
		"by a name that begins like a safe one":         "postgres://payonce@localhost.example.com/payonce?sslmode=disable",
		"in the other form":                             "host=192.0.2.1 user=payonce sslmode=disable",
		"with TLS only if the server wants it":          "postgres://payonce@192.0.2.1/payonce?sslmode=allow",
		"with TLS only if the server can":               "postgres://payonce@192.0.2.1/payonce?sslmode=prefer",
		"with nothing said, which is if the server can": "postgres://payonce@192.0.2.1/payonce",
		"at a second host":                              "postgres://payonce@127.0.0.1,192.0.2.1/payonce?sslmode=disable",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := postgres.Open(hungUp, address, postgres.Options{})
			if err == nil {
				db.Close()
				t.Fatal("it was opened")
			}
			if !strings.HasPrefix(err.Error(), "DATABASE_URL reaches ") || !strings.HasSuffix(err.Error(), refusal) {
				t.Errorf("the refusal says %q", err)
			}
		})
	}

	for name, address := range map[string]string{
		"but takes this machine by number":      "postgres://payonce@127.0.0.2/payonce?sslmode=disable",
		"but takes this machine by name":        "postgres://payonce@localhost/payonce?sslmode=disable",
		"but takes this machine over IPv6":      "postgres://payonce@[::1]/payonce?sslmode=disable",
		"but takes a socket":                    "postgres://payonce@/payonce?host=/run/postgresql",
		"but takes a network with TLS":          "postgres://payonce@192.0.2.1/payonce?sslmode=require",
		"but takes a network with verified TLS": "postgres://payonce@192.0.2.1/payonce?sslmode=verify-full",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := postgres.Open(hungUp, address, postgres.Options{})
			if err == nil || strings.Contains(err.Error(), refusal) {
				t.Errorf("it says %v, want only that nothing was reached", err)
			}
		})
	}

	t.Run("unless it was told to", func(t *testing.T) {
		t.Parallel()
		_, err := postgres.Open(hungUp, "postgres://payonce@192.0.2.1/payonce?sslmode=disable", postgres.Options{AllowPlaintext: true})
		if err == nil || strings.Contains(err.Error(), refusal) {
			t.Errorf("it says %v, want only that nothing was reached", err)
		}
	})
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()

	t.Run("with an address, and hides the password", func(t *testing.T) {
		t.Parallel()
		for _, address := range []string{
			"postgres://payonce:hunter2@localhost:port/payonce",
			"postgres://payonce:hunter2@localhost/payonce?sslmode=maybe",
			"password=hunter2 port=none",
		} {
			_, err := postgres.Open(t.Context(), address, postgres.Options{})
			if err == nil || !strings.HasPrefix(err.Error(), "DATABASE_URL cannot be read: ") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: it says %v", address, err)
			}
		}
	})

	t.Run("when nobody listens", func(t *testing.T) {
		t.Parallel()
		proxy := failpoint.StartCutter(t, testdb.Empty(t))
		proxy.Close()
		_, err := postgres.Open(t.Context(), proxy.URL(), postgres.Options{})
		if err == nil || !strings.HasPrefix(err.Error(), "the database cannot be reached: ") {
			t.Errorf("it says %v", err)
		}
	})
}

func TestSessions(t *testing.T) {
	t.Parallel()
	settingsAt := func(t *testing.T, address string, o postgres.Options) map[string]string {
		t.Helper()
		db := open(t, address, o)
		rows, err := db.Query(t.Context(), `
select name,
       setting
  from pg_settings
 where source = 'client'
   and name <> 'client_encoding'
   and name <> 'search_path'
   and name not like 'tcp_%'`)
		if err != nil {
			t.Fatal(err)
		}
		set := map[string]string{}
		var name, value string
		if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error { set[name] = value; return nil }); err != nil {
			t.Fatal(err)
		}
		return set
	}
	settings := func(t *testing.T, o postgres.Options) map[string]string {
		t.Helper()
		return settingsAt(t, testdb.Empty(t), o)
	}

	t.Run("have them whatever the address says, in whatever letters", func(t *testing.T) {
		t.Parallel()
		address := with(with(testdb.Empty(t), "TimeZone=Asia/Tokyo"), "Statement_Timeout=0")
		for range 8 { // the order in which the server hears them is chance
			if got := settingsAt(t, address, postgres.Options{}); got["TimeZone"] != "UTC" || got["statement_timeout"] != "10000" {
				t.Errorf("settings: %v", got)
			}
		}
	})

	t.Run("have bounds where none are asked for", func(t *testing.T) {
		t.Parallel()
		want := map[string]string{
			"application_name": "api", "TimeZone": "UTC",
			"default_transaction_isolation": "read committed",
			"lock_timeout":                  "5000", "statement_timeout": "10000",
			"idle_in_transaction_session_timeout": "10000",
			"client_connection_check_interval":    "2000",
			"enable_seqscan":                      "off", "jit": "off",
			"plan_cache_mode": "force_generic_plan",
		}
		if diff := cmp.Diff(want, settings(t, postgres.Options{Application: "api"})); diff != "" {
			t.Errorf("settings (-want +got):\n%s", diff)
		}
	})

	t.Run("plan a statement once, however long its arrays are", func(t *testing.T) {
		t.Parallel()
		db := open(t, testdb.URL(t), postgres.Options{MaxConns: 1})
		const lookup = `select stream_id from ledger_events where event_id = any ($1::uuid[])`
		for n := range 20 {
			rows, err := db.Query(t.Context(), lookup, make([][16]byte, n))
			if err != nil {
				t.Fatal(err)
			}
			rows.Close()
		}
		var once, anew int
		if err := db.QueryRow(t.Context(), `select generic_plans, custom_plans from pg_prepared_statements where statement = $1`, lookup).
			Scan(&once, &anew); err != nil || once != 20 || anew != 0 {
			t.Errorf("of 20 executions %d had the plan that is kept, %d one of their own: %v", once, anew, err)
		}
	})

	t.Run("have the bounds that are asked for", func(t *testing.T) {
		t.Parallel()
		got := settings(t, postgres.Options{LockTimeout: 250 * time.Millisecond, StatementTimeout: time.Minute})
		if got["lock_timeout"] != "250" || got["statement_timeout"] != "60000" {
			t.Errorf("settings: %v", got)
		}
	})

	t.Run("may wait for a lock without bound", func(t *testing.T) {
		t.Parallel()
		if got := settings(t, postgres.Options{LockTimeout: -1}); got["lock_timeout"] != "0" {
			t.Errorf("settings: %v", got)
		}
	})

	t.Run("are as many as asked for", func(t *testing.T) {
		t.Parallel()
		if got := open(t, testdb.Empty(t), postgres.Options{}).Pool().Config().MaxConns; got != 20 {
			t.Errorf("at most %d, want 20", got)
		}
		if got := open(t, testdb.Empty(t), postgres.Options{MaxConns: 3}).Pool().Config().MaxConns; got != 3 {
			t.Errorf("at most %d, want 3", got)
		}
	})
}
