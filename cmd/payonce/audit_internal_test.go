package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
)

// Row security would hide all rows from a user who may read the tables and does not own
// them, and an audit would find every promise kept. So the commands end with an error.
func TestAudit_refusesAUserWhomPoliciesHideRowsFrom(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.Open(t)
	put(t, db, "ch_1", "dead", "{}")
	name := "payonce_test_" + strings.ToLower(rand.Text())
	exec := func(ctx context.Context, sql string) {
		t.Helper()
		if _, err := db.Pool().Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(t.Context(), fmt.Sprintf(`create role %[1]s login password 'p'; grant select on all tables in schema public to %[1]s`, name))
	t.Cleanup(func() {
		exec(context.WithoutCancel(t.Context()), fmt.Sprintf(`drop owned by %[1]s; drop role %[1]s`, name))
	})
	for user, sees := range map[*url.Userinfo]bool{url.UserPassword(name, "p"): false, nil: true} {
		address := db.Pool().Config().ConnString()
		if user != nil {
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			u.User = user
			address = u.String()
		}
		opened, err := environment{DatabaseURL: program.Secret(address), AllowPlaintext: true}.open(t.Context(), postgres.Options{AllowUnsafeDurability: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(opened.Close)
		for command, run := range map[string]func() error{
			"audit":      func() error { _, err := audit.Run(t.Context(), opened); return err },
			"inbox list": func() error { _, err := inboxListCmd{Status: "dead"}.list(t.Context(), io.Discard, opened); return err },
		} {
			if err := run(); (err == nil) != sees || err != nil && !strings.Contains(err.Error(), "row-level security") {
				t.Errorf("%s as %v: %v", command, user, err)
			}
		}
	}
}
