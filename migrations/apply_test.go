package migrations_test

import (
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// TestSchema_isAppliedInTheSchemaOfTheSearchPath applies the packages' files as another
// application does, in a schema of its own.
func TestSchema_isAppliedInTheSchemaOfTheSearchPath(t *testing.T) {
	t.Parallel()
	schemas := map[string]string{"idempotency": idempotency.Schema(), "inbox": inbox.Schema(), "outbox": outbox.Schema()}
	for name, apply := range map[string]func(t *testing.T, url, name string){
		"by goose": func(t *testing.T, url, name string) {
			t.Helper()
			db := stdlib.OpenDB(*connect(t, url).Config())
			t.Cleanup(func() { _ = db.Close() })
			files := fstest.MapFS{"00001_" + name + ".sql": {Data: []byte(schemas[name])}}
			provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName("shop_versions_"+name))
			testdb.Must(t, err)
			_, err = provider.Up(t.Context())
			testdb.Must(t, err)
		},
		"by psql": func(t *testing.T, url, name string) {
			t.Helper()
			if _, err := exec.LookPath("psql"); err != nil {
				t.Skip("not run: there is no psql")
			}
			url = strings.Replace(url, "&search_path=", "&options=-csearch_path%3D", 1)
			out, err := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", "../"+name+"/schema.sql", url).CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Fatalf("psql: %v\n%s", err, out)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.Empty(t)
			conn := connect(t, url)
			testdb.Exec(t, conn, `create schema app`)
			for of := range schemas {
				apply(t, url+"&search_path=app", of)
			}
			const strays = `select relname::text from pg_class where relnamespace = 'public'::regnamespace`
			if stray := testdb.All[string](t, conn, strays); len(stray) > 0 {
				t.Errorf("outside the schema: %v", stray)
			}
			testdb.Exec(t, conn, `select from app.idempotency_keys, app.inbox, app.outbox`)
		})
	}
}
