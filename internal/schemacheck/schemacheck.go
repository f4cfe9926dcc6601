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
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	//go:embed describe.sql
	describe string
	//go:embed elsewhere.sql
	elsewhere string
)

// Check returns one error that names every object of want which the search_path of the pool
// does not find, or finds in another form. It accepts further columns, constraints and
// tables. want is what Describe returned for a database with the schema. An error of the
// database is returned wrapped.
func Check(ctx context.Context, pool *pgxpool.Pool, want string) error {
	if pool == nil {
		return errors.New("the pool is nil")
	}
	lines := strings.Split(strings.TrimSpace(want), "\n")
	names := relations(lines)
	found, err := Describe(ctx, pool, names)
	if err != nil {
		return err
	}
	present := relations(found)
	wrong := differences(lines, found, present)
	if len(wrong) == 0 {
		return nil
	}
	absent := slices.DeleteFunc(names, func(name string) bool { return slices.Contains(present, name) })
	others, err := query(ctx, pool, elsewhere, absent)
	if err != nil {
		return err
	}
	return errors.New("the schema does not fit: " + strings.Join(append(wrong, others...), "; "))
}

// Describe returns a line for each of the named tables and views that the search_path of the
// pool finds, and for each of their columns, constraints and unique indexes. The lines are
// sorted, and neither the settings nor the major of a server change them.
func Describe(ctx context.Context, pool *pgxpool.Pool, names []string) ([]string, error) {
	return query(ctx, pool, describe, names)
}

func query(ctx context.Context, pool *pgxpool.Pool, sql string, names []string) ([]string, error) {
	rows, _ := pool.Query(ctx, sql, names) // CollectRows returns the error
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	return lines, nil
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
