package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// wantOpened compares the beginning of Open's error; "" for none. It is ErrUnreachable if it says so.
func wantOpened(t *testing.T, ctx context.Context, address string, o postgres.Options, want string) { //nolint:revive // t comes first in these tests
	t.Helper()
	db, err := postgres.Open(ctx, address, o)
	if err == nil {
		db.Close()
	}
	says := strings.HasPrefix(fmt.Sprint(err), want)
	if (err == nil) != (want == "") || err != nil && !says || errors.Is(err, postgres.ErrUnreachable) != (want == postgres.ErrUnreachable.Error()) {
		t.Errorf("the error is %v, want %q", err, want)
	}
}

func TestOpen_refusesAnUnsafeServer(t *testing.T) {
	testrun.Long(t, "it opens a pool for each setting")
	t.Parallel()
	plain, unsafe := postgres.Options{AllowPlaintext: true}, postgres.Options{AllowPlaintext: true, AllowUnsafeDurability: true}
	expecting := postgres.Options{AllowPlaintext: true, ExpectReplication: true}
	for _, test := range []struct {
		setting, value string
		options        postgres.Options
		want           string
	}{
		{"fsync", "off", plain, "fsync is off"},
		{"full_page_writes", "off", plain, "full_page_writes is off"},
		{"synchronous_commit", "off", plain, "synchronous_commit is off"},
		{"server_version_num", "140022", plain, "the server is PostgreSQL 14: payonce needs 15 or newer"},
		{"server_version_num", "140022", unsafe, "the server is PostgreSQL 14: payonce needs 15 or newer"},
		{"fsync", "off", unsafe, ""},
		{"synchronous_commit", "on", plain, ""},
		{"synchronous_commit", "local", plain, "synchronous_commit is local"},
		{"synchronous_commit", "remote_write", plain, ""},
		{"synchronous_commit", "remote_apply", plain, ""},
		{"synchronous_standby_names", "", plain, ""},
		{"synchronous_standby_names", "", expecting, "synchronous_standby_names is empty"},
		{"synchronous_standby_names", "ANY 1 (a, b)", expecting, ""},
	} {
		t.Run(test.setting+" "+test.value, func(t *testing.T) {
			t.Parallel()
			wantOpened(t, t.Context(), pretend(t, test.setting, test.value), test.options, test.want)
		})
	}
}

// pretend is a database whose server claims to be safe and new but for one
// setting: a function of the same name is found before the server's own.
func pretend(t *testing.T, setting, value string) (address string) {
	t.Helper()
	address = testdb.Empty(t)
	claims := map[string]string{
		"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "synchronous_standby_names": "", "server_version_num": "150000",
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
	testdb.Exec(t, testdb.Session(t, address), sql.String())
	return with(address, "search_path=claimed,pg_catalog")
}

// with adds a parameter to a connection string.
func with(address, parameter string) string {
	if strings.Contains(address, "?") {
		return address + "&" + parameter
	}
	return address + "?" + parameter
}

func TestOpen_refusesPlaintextOverANetwork(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context()) // so that nothing is dialed
	cancel()
	const refused, reached = "DATABASE_URL reaches ", "the database cannot be reached"
	for address, want := range map[string]string{
		"postgres://payonce@192.0.2.1/payonce?sslmode=disable":             refused,
		"postgres://payonce@db.example.com/payonce?sslmode=disable":        refused,
		"postgres://payonce@[2001:db8::1]/payonce?sslmode=disable":         refused,
		"postgres://payonce@0.0.0.0/payonce?sslmode=disable":               refused,
		"postgres://payonce@localhost.example.com/payonce?sslmode=disable": refused,
		"host=192.0.2.1 user=payonce sslmode=disable":                      refused,
		"postgres://payonce@192.0.2.1/payonce?sslmode=allow":               refused,
		"postgres://payonce@192.0.2.1/payonce?sslmode=prefer":              refused,
		"postgres://payonce@192.0.2.1/payonce":                             refused, // which is prefer
		"postgres://payonce@127.0.0.1,192.0.2.1/payonce?sslmode=disable":   refused,
		"postgres://payonce@127.0.0.2/payonce?sslmode=disable":             reached,
		"postgres://payonce@localhost/payonce?sslmode=disable":             reached,
		"postgres://payonce@[::1]/payonce?sslmode=disable":                 reached,
		"postgres://payonce@/payonce?host=/run/postgresql":                 reached,
		"postgres://payonce@192.0.2.1/payonce?sslmode=require":             refused,
		"postgres://payonce@192.0.2.1/payonce?sslmode=verify-ca":           refused,
		"postgres://payonce@192.0.2.1/payonce?sslmode=verify-full":         reached,
	} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			wantOpened(t, canceled, address, postgres.Options{}, want)
			wantOpened(t, canceled, address, postgres.Options{AllowPlaintext: true}, reached)
		})
	}
}

func TestOpen_hidesThePasswordOfAnAddressThatItCannotRead(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"postgres://payonce:pw/hunter2@localhost/payonce",
		"postgres://payonce:1/hunter2@127.0.0.1/payonce",
		"postgres://payonce:%zzhunter2@localhost/payonce",
		"postgres://payonce:pw hunter2@localhost/payonce",
		"postgres//payonce:hunter2@localhost/payonce",
		"host=payonce:hunter2@localhost user=payonce",
		"host=localhost,payonce:hunter2@localhost user=payonce",
		"postgres:///payonce?host=payonce:hunter2@localhost",
		"host=localhost password=a hunter2 user=payonce",
		"postgres://payonce:hunter2@localhost:port/payonce",
		"postgres://payonce:hunter2@localhost/payonce?sslmode=maybe",
		"password=hunter2 port=none",
	} {
		_, err := postgres.Open(t.Context(), address, postgres.Options{})
		if err == nil || !strings.HasPrefix(err.Error(), "DATABASE_URL cannot be read: ") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: it says %v", address, err)
		}
	}
	const missing = "postgres://payonce@db.example.com/payonce?sslmode=verify-full&sslrootcert=/nowhere/roots.pem"
	wantOpened(t, t.Context(), missing, postgres.Options{}, "a file that DATABASE_URL names cannot be read")
}

// The address and the database say something else.
func TestSessions_haveTheirSettings(t *testing.T) {
	t.Parallel()
	address := testdb.Empty(t)
	owner := testdb.Connect(t, address).Pool()
	database := pgx.Identifier{owner.Config().ConnConfig.Database}.Sanitize()
	for _, setting := range []string{"idle_session_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"} {
		_, err := owner.Exec(t.Context(), "alter database "+database+" set "+setting+" = 500") // ms
		if err != nil && setting != "transaction_timeout" {                                    // which PostgreSQL 17 has
			t.Fatal(err)
		}
	}
	if got := testdb.One[string](t, testdb.Session(t, address), `show idle_session_timeout`); got != "500ms" {
		t.Errorf("a session without our settings may rest for %s: this shows nothing", got)
	}
	for range 8 { // the order in which the server reads them is chance
		db := testdb.OpenAt(t, with(with(address, "TimeZone=Asia/Tokyo"), "Statement_Timeout=0"), postgres.Options{})
		want(t, db, `
select string_agg(name || '=' || setting, ' ' order by name collate "C")
  from pg_settings
 where name in ('TimeZone', 'statement_timeout', 'lock_timeout', 'client_connection_check_interval', 'default_transaction_isolation',
                'jit', 'plan_cache_mode', 'enable_seqscan', 'idle_session_timeout')
    or name in ('idle_in_transaction_session_timeout', 'transaction_timeout') and setting = '500'`,
			"TimeZone=UTC client_connection_check_interval=2000 default_transaction_isolation=read committed "+
				"enable_seqscan=off idle_session_timeout=0 jit=off lock_timeout=5000 plan_cache_mode=force_generic_plan statement_timeout=10000")
	}
}
