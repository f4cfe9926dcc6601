package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Role is a role of the database that a program acts as, whatever its user is.
// What the roles may do is written in the migrations.
type Role string

// The roles, made by migrations/service.sql.
const (
	RoleAPI    Role = "payonce_api"
	RoleWorker Role = "payonce_worker"
)

// refusal is a sentence where the error of a first connection is about the role,
// nil elsewhere. No waiting helps then.
func (r Role) refusal(err error, user string) error {
	var pg *pgconn.PgError
	if r == "" || !errors.As(err, &pg) {
		return nil
	}
	switch pg.Code {
	case "22023": // "role" has no such value
		return fmt.Errorf("the database has no role %s: run payonce migrate", r)
	case "42501":
		user := pgx.Identifier{user}.Sanitize()
		return fmt.Errorf("the database's user %s may not act as %s: as a superuser run: grant %s to %s", user, r, r, user)
	}
	return nil
}
