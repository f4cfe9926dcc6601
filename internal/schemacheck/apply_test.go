package schemacheck_test

import (
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/payonce/payonce/internal/testdb"
)

// TestSchema_isAppliedInTheSchemaOfTheSearchPath applies each file as another application
// does, in a schema and with a table of versions that the application names.
func TestSchema_isAppliedInTheSchemaOfTheSearchPath(t *testing.T) {
	t.Parallel()
	for name, apply := range map[string]func(*testing.T, string, pattern){
		"by goose": gooseUp,
		"by psql":  psql,
		"by the simple protocol": func(t *testing.T, url string, p pattern) {
			t.Helper()
			testdb.Exec(t, open(t, url), p.schema)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.Empty(t)
			testdb.Exec(t, open(t, url), `create schema app; create table schema_migrations (version bigint, dirty boolean)`)
			for _, p := range patterns {
				apply(t, url+"&search_path=app", p)
				wantError(t, p.check(t.Context(), open(t, url+"&search_path=app")), "")
				if err := p.check(t.Context(), open(t, url)); err == nil || !strings.Contains(err.Error(), `the tables are in another schema than the search_path "$user", public: app has `) {
					t.Errorf("%s with the wrong search_path: %v", p.name, err)
				}
			}
		})
	}
}

// gooseUp applies a schema twice, of which goose does the second as nothing.
func gooseUp(t *testing.T, url string, p pattern) {
	t.Helper()
	db := stdlib.OpenDBFromPool(open(t, url))
	t.Cleanup(func() { _ = db.Close() })
	files := fstest.MapFS{"00001_" + p.name + ".sql": {Data: []byte(p.schema)}}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName("shop_versions_"+p.name))
	testdb.Must(t, err)
	for want := 1; want >= 0; want-- {
		applied, err := provider.Up(t.Context())
		if err != nil || len(applied) != want {
			t.Fatalf("goose applies %v, %v, want %d", applied, err, want)
		}
	}
}

func psql(t *testing.T, url string, p pattern) {
	t.Helper()
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip("not run: there is no psql")
	}
	path, rest := "../../"+p.name+"/schema.sql", strings.Replace(url, "&search_path=", "&options=-csearch_path%3D", 1)
	out, err := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", path, rest).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Fatalf("psql: %v\n%s", err, out)
	}
}
