// Package schemacheck compares the tables of a database with a list of those that a program
// needs. It reads catalogs alone, so every role may check, on a standby too.
package schemacheck

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	//go:embed describe.sql
	describe string
	//go:embed elsewhere.sql
	elsewhere string
)

// ErrMisfit is in the chain of an error that names what is missing or different.
var ErrMisfit = errors.New("does not fit")

// Querier reads, such as a pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Explain returns the error of a statement of a package. Where the server refused it because
// the schema of the package is not applied, the error says so, as Check does.
func Explain(ctx context.Context, q Querier, name, want string, err error) error {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !strings.HasPrefix(refused.Code, "42") { // missing objects, wrong types, missing rights
		return err
	}
	if misfit := Check(ctx, q, name, want); errors.Is(misfit, ErrMisfit) {
		return fmt.Errorf("apply %s.Schema: %w: %w", name, misfit, err)
	}
	return err
}

// Check returns one error that names every object of want which the search_path of the pool
// does not find, or finds in another form. It accepts further columns, constraints and
// tables. want has the lines of Describe for a database with the schema of the package.
func Check(ctx context.Context, q Querier, name, want string) error {
	if pool, ok := q.(*pgxpool.Pool); ok && pool == nil {
		return fmt.Errorf("check the schema of %s: the pool is nil", name)
	}
	lines := strings.Split(strings.TrimSpace(want), "\n")
	wanted := relations(lines)
	found, err := Describe(ctx, q, wanted)
	if err != nil {
		return fmt.Errorf("check the schema of %s: %w", name, err)
	}
	present := relations(found)
	wrong := differences(lines, found, present)
	if len(wrong) == 0 {
		return nil
	}
	absent := slices.DeleteFunc(wanted, func(relation string) bool { return slices.Contains(present, relation) })
	others, err := query(ctx, q, elsewhere, absent)
	if err != nil {
		return fmt.Errorf("check the schema of %s: %w", name, err)
	}
	return fmt.Errorf("the schema of %s %w: %s", name, ErrMisfit, strings.Join(append(wrong, others...), "; "))
}

// Describe returns a line for each of the named tables and views that the search_path of the
// pool finds, and for each of their columns, constraints and unique indexes. The lines are
// sorted, and the same on every supported major of PostgreSQL.
func Describe(ctx context.Context, q Querier, names []string) ([]string, error) {
	return query(ctx, q, describe, names)
}

func query(ctx context.Context, q Querier, sql string, names []string) ([]string, error) {
	rows, _ := q.Query(ctx, sql, names) // CollectRows returns the error
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// differences returns a sentence for each wanted line that is not among the lines found. Of a
// relation that is not present it names the relation alone.
func differences(want, found, present []string) (sentences []string) {
	got := make(map[string]string, len(found))
	for _, line := range found {
		object, definition, _ := strings.Cut(line, ": ")
		got[object] = definition
	}
	for _, line := range want {
		object, definition, _ := strings.Cut(line, ": ")
		is, ok := got[object]
		switch {
		case ok && is == definition:
		case ok:
			sentences = append(sentences, fmt.Sprintf("%s is %s, want %s", object, is, definition))
		case definition == "permanent":
			sentences = append(sentences, object+" is missing")
		case slices.Contains(present, relation(line)):
			sentences = append(sentences, fmt.Sprintf("%s is missing, want %s", object, definition))
		}
	}
	return sentences
}

// relations returns the tables and views of some lines, each once.
func relations(lines []string) (names []string) {
	for _, line := range lines {
		names = append(names, relation(line))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// relation returns the table or view of a line: "inbox" of "column inbox.status: text".
func relation(line string) string {
	object, _, _ := strings.Cut(line, ": ")
	name, _, _ := strings.Cut(object[strings.LastIndex(object, " ")+1:], ".")
	return name
}
