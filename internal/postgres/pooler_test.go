package postgres_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// A program whose sessions lack their role, or what bounds them, does not start: so a session looks behind
// a pooler that drops settings which it does not know.
func TestOpen_refusesAPoolerThatDropsSettings(t *testing.T) {
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
