package postgres_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

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
	testrun.Long(t, "it needs a database")
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

// effects is a database with one table: an id once, and a twin that is checked
// as late as the commit.
func effects(t *testing.T, o postgres.Options) (db *postgres.DB, address string) {
	t.Helper()
	testrun.Long(t, "it needs a database")
	address = testdb.URL(t)
	db = testdb.OpenAt(t, address, o)
	testdb.Exec(t, db.Pool(), `
create table effects (
  id   int primary key,
  twin int,
  constraint effects_twin_once unique (twin) deferrable initially deferred
)`)
	return db, address
}

func effect(id int) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(`insert into effects (id) values ($1)`, id)
	return b
}

func want[T any](t *testing.T, db *postgres.DB, sql string, want ...T) {
	t.Helper()
	testrun.Same(t, sql, want, testdb.All[T](t, db, sql))
}

func TestMain(m *testing.M) { testrun.Main(m) }

// A program whose sessions lack their role, or what bounds them, does not start: so a session looks behind
// a pooler that drops settings which it does not know.
func TestOpen_refusesAPoolerThatDropsSettings(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	const noRole = `
create function claimed.current_setting(name text) returns text language sql as $$
select case name when 'role' then 'none' else pg_catalog.current_setting(name) end $$`
	const lost = `
create view claimed.pg_settings as
select name,
       case when name = '%[1]s' then '1' else setting end as setting,
       case when name = '%[1]s' then 'default' else source end as source
  from pg_catalog.pg_settings;
grant select on claimed.pg_settings to public`
	for missed, hides := range map[string]string{
		"statement_timeout": fmt.Sprintf(lost, "statement_timeout"), "TimeZone": fmt.Sprintf(lost, "TimeZone"), "role": noRole, "": "",
	} {
		t.Run(missed, func(t *testing.T) {
			t.Parallel()
			address, want := testdb.URL(t), ""
			testdb.Exec(t, testdb.Connect(t, address).Pool(), `create schema claimed; grant usage on schema claimed to public; `+hides)
			if missed != "" {
				want = "the session setting " + strings.ToLower(missed) + " was not applied: a pooler dropped it, so let DATABASE_URL name the server itself"
			}
			o := postgres.Options{Role: postgres.RoleAPI, AllowPlaintext: true, AllowUnsafeDurability: true}
			wantOpened(t, t.Context(), with(address, "search_path=claimed,pg_catalog,public"), o, want)
		})
	}
}

// PgBouncer says so in each of its modes, unless its settings ignore the parameters.
func TestOpen_refusesAPoolerThatRefusesSettings(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	testdb.Must(t, err)
	defer func() { _ = listener.Close() }()
	go func() {
		for client, err := listener.Accept(); err == nil; client, err = listener.Accept() {
			session := pgproto3.NewBackend(client, client)
			if _, err := session.ReceiveStartupMessage(); err == nil {
				session.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: jit"})
				_ = session.Flush()
			}
			_ = client.Close()
		}
	}()
	_, err = postgres.Open(t.Context(), "postgres://payonce@"+listener.Addr().String()+"/payonce?sslmode=disable", postgres.Options{})
	const want = "a pooler before the database refuses the settings of the sessions (unsupported startup parameter: jit): let DATABASE_URL name the server itself"
	if err == nil || err.Error() != want || errors.Is(err, postgres.ErrUnreachable) {
		t.Errorf("opened with %v, want %s", err, want)
	}
}

// TestPool_readsCertificatesAnew: the certificate of the server's authority is renewed while a program
// runs, and half of it is in the file for a moment.
func TestPool_readsCertificatesAnew(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "roots.pem")
	renew := func(serial int64) *x509.CertPool {
		public, private, err := ed25519.GenerateKey(nil)
		testdb.Must(t, err)
		template := &x509.Certificate{SerialNumber: big.NewInt(serial), IsCA: true, BasicConstraintsValid: true}
		der, err := x509.CreateCertificate(nil, template, template, public, private)
		testdb.Must(t, err)
		authority, roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), x509.NewCertPool()
		testdb.Must(t, os.WriteFile(file, authority, 0o600))
		roots.AppendCertsFromPEM(authority)
		return roots
	}
	first := renew(1)
	config, err := postgres.PoolConfig("postgres://payonce@one.example.com,two.example.com/payonce?sslmode=verify-full&sslrootcert=" + file)
	testdb.Must(t, err)
	wantRoots := func(want *x509.CertPool) {
		t.Helper()
		next := config.ConnConfig.Copy()
		testdb.Must(t, config.BeforeConnect(t.Context(), next))
		if !next.TLSConfig.RootCAs.Equal(want) || !next.Fallbacks[0].TLSConfig.RootCAs.Equal(want) {
			t.Error("the next connection trusts other authorities than the file")
		}
	}
	wantRoots(first)
	wantRoots(renew(2))
	testdb.Must(t, os.WriteFile(file, []byte("-----BEGIN"), 0o600))
	wantRoots(first)
}

// TestPool_keepsTheVerification: what a service file says later makes no connection weaker.
func TestPool_keepsTheVerification(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "service.conf")
	testdb.Must(t, os.WriteFile(file, []byte("[p]\nhost=db.example.com\nsslmode=verify-full\n"), 0o600))
	config, err := postgres.PoolConfig("service=p servicefile=" + file)
	testdb.Must(t, err)
	for _, later := range []string{"[p]\n", "[p]\nhost=db.example.com\n", "[p]\nhost=10.0.0.9\nsslmode=disable\n"} {
		testdb.Must(t, os.WriteFile(file, []byte(later), 0o600))
		next := config.ConnConfig.Copy()
		testdb.Must(t, config.BeforeConnect(t.Context(), next))
		if next.Host != "db.example.com" || next.TLSConfig == nil || next.TLSConfig.InsecureSkipVerify || len(next.Fallbacks) > 0 {
			t.Errorf("with %q it connects to %s with %+v, then to %v", later, next.Host, next.TLSConfig, next.Fallbacks)
		}
	}
}

func TestCommit_closesASessionThatRefusesWrites(t *testing.T) {
	testrun.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{MaxConns: 1})
	testdb.Exec(t, db.Pool(), `set default_transaction_read_only = on`)
	insert := func() error {
		b := &pgx.Batch{}
		b.Queue(`insert into merchants (merchant_id) values ('acme')`)
		return db.Commit(t.Context(), b)
	}
	if err := insert(); err == nil {
		t.Fatal("the session takes writes: this shows nothing")
	}
	if err := insert(); err != nil {
		t.Errorf("the pool's only session still refuses writes: %v", err)
	}
}

// slowlyClosed calls closing in Close.
type slowlyClosed struct {
	net.Conn

	closing func()
}

func (c slowlyClosed) Close() error {
	c.closing()
	return c.Conn.Close()
}

// With TLS, to close a session of a server that hangs may wait.
func TestServers_takeANewPrimaryWhileSessionsOfTheOldOneAreClosed(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{})
	config, closing, end := db.Probe(), make(chan struct{}, 9), make(chan struct{})
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return slowlyClosed{conn, func() { closing <- struct{}{}; <-end }}, err
	}
	old, err := pgxpool.NewWithConfig(t.Context(), config)
	testdb.Must(t, err)
	defer old.Close()
	defer close(end)
	testdb.Must(t, old.Ping(t.Context()))
	db.ForgetServer()
	db.Pool().Reset()
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	testdb.Must(t, db.Pool().Ping(soon))
	testrun.True(t, "the session of the old primary is closed", func() bool { return len(closing) > 0 && db.Timeline() > 0 })
}
