package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Role is a role of the database that a program acts as, whatever its user is.
// What the roles may do is written in the migrations.
type Role string

// The roles, made by migrations/service.sql.
const (
	RoleAPI     Role = "payonce_api"
	RoleWorker  Role = "payonce_worker"
	RoleConsole Role = "payonce_console"
)

// refusal is a sentence where the error of a first connection is about the role, or a pooler's
// about the settings, nil elsewhere. No waiting helps then.
func (r Role) refusal(err error, user string) error {
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case !answered:
	case strings.HasPrefix(pg.Message, "unsupported startup parameter"): // as PgBouncer says it
		return fmt.Errorf("a pooler before the database refuses the settings of the sessions (%s): let DATABASE_URL name the server itself", pg.Message)
	case r != "" && pg.Code == "22023": // "role" has no such value
		return fmt.Errorf("the database has no role %s: run payonce migrate", r)
	case r != "" && pg.Code == "42501":
		user = pgx.Identifier{user}.Sanitize()
		return fmt.Errorf("the database's user %s may not act as %s: as a superuser run: grant %s to %s", user, r, r, user)
	}
	return nil
}

// selectPrivilege reads what the user may do beyond its role. A session may set any role that
// its user is a member of. A superuser is a member of all.
const selectPrivilege = `
-- postgres.selectPrivilege
select session_user::text,
       case when r.rolname = session_user then '' else 'may act as ' || quote_ident(r.rolname) || ', which ' end || p.privilege
  from pg_roles r
 cross join lateral (
       select case
                when r.rolsuper      then 'is a superuser'
                when r.rolbypassrls  then 'has BYPASSRLS'
                when r.rolcreaterole then 'has CREATEROLE'
                when r.rolname in ('payonce_api', 'payonce_worker', 'payonce_console') and r.rolname <> $1
                then 'is another program''s'
                when exists (select from pg_database d where d.datdba = r.oid and d.datname = current_database())
                then 'owns the database'
                when exists (select from pg_class c where c.relowner = r.oid and c.relnamespace::regnamespace::name = any (current_schemas(false)))
                then 'owns tables'
              end) as p (privilege)
 where pg_has_role(session_user, r.oid, 'member')
   and p.privilege is not null
 order by r.rolname <> session_user, r.rolname
 limit 1`

// checkUser returns an error if the sessions' user may do more than a role may.
func checkUser(ctx context.Context, q Querier, r Role) error {
	var user, privilege string
	switch err := q.QueryRow(ctx, selectPrivilege, string(r)).Scan(&user, &privilege); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	name := pgx.Identifier{user}.Sanitize()
	return fmt.Errorf("the database's user %s %s: give the program a user that is a member of %s and of nothing else, or set ALLOW_PRIVILEGED_DATABASE_USER=1 where the server is your own", name, privilege, r)
}
