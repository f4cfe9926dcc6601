package pgtest

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/payonce/payonce/internal/postgres"
)

// Example returns a pool on a fresh database with every migration, for a package
// example, which is given no testing.TB; end closes the pool and drops the
// database. Both panic where there is no server.
func Example() (db *postgres.DB, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := shared()
	must(err)
	template, err := template()
	must(err)
	name := "payonce_example_" + strings.ToLower(rand.Text())
	must(s.clone(ctx, name, template))
	db, err = postgres.Open(ctx, s.url(name), postgres.Options{
		Application: "example", AllowPlaintext: true, AllowUnsafeDurability: true,
	})
	must(err)
	return db, func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		db.Close()
		must(s.drop(ctx, name))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
