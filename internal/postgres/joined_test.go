package postgres_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// How a statement is committed.
const (
	joins   = "in company, in its unit's order"
	ordered = "in company, in the order of the row that it locks"
	several = "in the place of several neighbours in that order"
	alone   = "by itself"
)

// manners are how the statements are committed that may be in company, or whose
// settings or locks are why they may not. Before a line is added here: a statement
// that joins sees what others of its transaction have written, keeps their rows
// locked, and is rolled back with them.
func manners() map[string]string {
	return map[string]string{
		"fulfillment.endReservations":       ordered,
		"fulfillment.insertResend":          joins,
		"fulfillment.insertReservation":     joins,
		"fulfillment.returnStock":           ordered,
		"fulfillment.sellStock":             ordered,
		"fulfillment.takeStock":             ordered,
		"idempotency.insertAnswer":          joins,
		"idempotency.setTimeouts":           alone,
		"inbox.claim":                       alone,
		"inbox.correctDueTimes":             alone,
		"inbox.discardParked":               ordered,
		"inbox.done":                        ordered,
		"inbox.doneTogether":                several,
		"inbox.fail":                        ordered,
		"inbox.park":                        ordered,
		"inbox.release":                     ordered,
		"inbox.renew":                       alone,
		"inbox.retryParked":                 ordered,
		"inbox.wait":                        ordered,
		"inbox.wake":                        ordered,
		"inbox.wakeKeys":                    alone,
		"inbox.walk":                        alone,
		"inbox.walkIndexes":                 alone,
		"internal/app/worker.releaseLease":  ordered,
		"internal/audit.planForWholeTables": alone,
		"internal/crash.setting":            alone,
		"internal/merchants.insertSecret":   joins,
		"internal/merchants.selectByKey":    alone, // read, never committed
		"internal/merchants.useSecret":      ordered,
		"internal/postgres.beginJoined":     alone,
		"internal/postgres.setLocally":      alone,
		"internal/postgres.setMerchant":     alone,
		"ledger.insertBuilding":             joins,
		"ledger.insertEvent":                joins,
		"ledger.insertPosting":              joins,
		"ledger.moveCheckpoint":             ordered,
		"outbox.insertMessage":              joins,
		"outbox.numberReceived":             alone,
		"outbox.settleIn":                   alone,
		"outbox.walk":                       alone,
	}
}

// TestStatementsThatJoin fails for a statement that the committer does not know, or
// takes for what it is not: one that was written anew, or in other words.
func TestStatementsThatJoin(t *testing.T) {
	t.Parallel()
	touches := regexp.MustCompile(`set_config|update (stock|inbox|reservations)\b`)
	got := map[string]string{}
	for name, sql := range statements(t) {
		manner := alone
		for _, args := range [][]any{{"acme", "mug"}, {int64(1), int64(1)}} {
			q := &pgx.QueuedQuery{SQL: sql, Arguments: args}
			switch {
			case postgres.IsOrdered(q):
				manner = ordered
			case postgres.Joins(q):
				manner = joins
			case postgres.IsForSeveral(q):
				manner = several
			}
		}
		if manner != alone || touches.MatchString(sql) {
			got[name] = manner
		}
	}
	if diff := cmp.Diff(manners(), got); diff != "" {
		t.Errorf("statements (-known +in the tree):\n%s", diff)
	}
}

// TestWhatMakesAStatementGoAlone: a key that is no plain value could be any row.
func TestWhatMakesAStatementGoAlone(t *testing.T) {
	t.Parallel()
	called := &pgx.QueuedQuery{SQL: insert, Arguments: []any{1, 1}}
	called.Exec(nil)
	for name, q := range map[string]*pgx.QueuedQuery{
		"a callback":                    called,
		"rows that are read":            {SQL: `insert into effects (id) select id from effects`},
		"rows that are locked":          {SQL: `insert into effects (id) values (1) on conflict (id) do update set twin = 1`},
		"a setting among values":        {SQL: `insert into effects (id) values (set_config('a.b', '1', true)::int)`},
		"a setting":                     {SQL: `set local lock_timeout = 1`},
		"a transaction of its own":      {SQL: `commit`},
		"a lock":                        {SQL: `lock table effects`},
		"another row of stock":          {SQL: "update stock\n   set sold = 1\n where sku = $2\n   and merchant_id = $1", Arguments: []any{"acme", "mug"}},
		"rows of stock":                 {SQL: "update stock\n   set sold = 1", Arguments: []any{"acme", "mug"}},
		"an article that is no text":    {SQL: takeStock, Arguments: []any{"acme", 7}},
		"an article that is not given":  {SQL: takeStock, Arguments: []any{pgx.NamedArgs{}}},
		"rows of the inbox":             {SQL: "update inbox\n   set waits = 1\n where ordering_key = $1", Arguments: []any{int64(1)}},
		"a message that is no number":   {SQL: endMessage, Arguments: []any{"1", int64(1)}},
		"a message that is not given":   {SQL: endMessage},
		"reservations of many charges":  {SQL: "update reservations\n   set status = $1"},
		"rows of two conditions":        {SQL: "update effects\n   set twin = 1\n where id = $1\n   and twin = $1", Arguments: []any{int64(1)}},
		"rows of either condition":      {SQL: "update effects\n   set twin = 1\n where twin = 1 or id = $1", Arguments: []any{int64(1)}},
		"rows of another table's":       {SQL: "update effects e\n   set twin = 1\n  from effects f\n where f.id = $1", Arguments: []any{int64(1)}},
		"rows of a key of another kind": {SQL: "update effects\n   set twin = 1\n where id = $1", Arguments: []any{1.5}},
		"what nobody has thought about": {SQL: `select 1`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if postgres.Joins(q) {
				t.Error("it joins others")
			}
		})
	}
}

// statements are the texts of the programs' constants that may be SQL, by package
// and name. What has a database of its own is left out.
func statements(t *testing.T) map[string]string {
	t.Helper()
	root, found := filepath.Join("..", ".."), map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		within, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch within {
			case "bench", "e2e", "internal/sandbox", ".git":
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, value := range spec.Values {
				if text := textOf(value); text != "" && i < len(spec.Names) {
					found[filepath.ToSlash(filepath.Dir(within))+"."+spec.Names[i].Name] = text
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// textOf is what is literally in an expression.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		return textOf(e.X) + textOf(e.Y)
	}
	return ""
}
