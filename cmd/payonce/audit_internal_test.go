package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/config"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestAuditCommandLine(t *testing.T) {
	t.Parallel()
	cli, err := parse(t, "audit", "--quiet", "--no-provider")
	if diff := cmp.Diff(auditCmd{Quiet: true, NoProvider: true}, cli.Audit); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := parse(t, "audit", "--quiet", "--json"); err == nil {
		t.Error("it is to print JSON and nothing")
	}
}

func TestAuditIsQuiet(t *testing.T) {
	t.Parallel()
	quiet := func(checks ...audit.Check) string {
		var report audit.Report
		report.Add(checks...)
		return output(t, func(w io.Writer) error { return auditCmd{Quiet: true}.print(w, report) })
	}
	if got := quiet(audit.Check{Name: "streams are legal", Checked: 7}); got != "" {
		t.Errorf("it prints %q of what is in order", got)
	}
	got := quiet(
		audit.Check{Name: "streams are legal", Checked: 7},
		audit.Check{Name: "no message is stuck", Checked: 9, Violated: 3, Examples: []string{"message 1: parked", "message 2:\nparked"}},
		audit.Check{Name: "one capture per charge", Checked: 7, Violated: 1, Examples: []string{"ch_1: captured 2 times"}},
	)
	want := `no message is stuck: message 1: parked
no message is stuck: message 2:�parked
no message is stuck: and 1 more of 9
one capture per charge: ch_1: captured 2 times
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAuditSaysWhenItCouldNotPrint(t *testing.T) {
	t.Parallel()
	var report audit.Report
	report.Add(audit.Check{Name: "no message is stuck", Checked: 1, Violated: 1, Examples: []string{"message 1"}})
	for _, c := range []auditCmd{{}, {JSON: true}, {Quiet: true}} {
		if err := c.print(fullDisk{}, report); !errors.Is(err, errFull) {
			t.Errorf("%+v: the error is %v", c, err)
		}
	}
}

// TestStrangersSeeAnError: whoever may read the tables and does not own them would
// be shown none of their rows, and an audit would find every promise kept.
func TestStrangersSeeAnError(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := pgtest.Open(t)
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
		opened, err := environment{DatabaseURL: config.Secret(address), AllowPlaintext: true}.open(t.Context(), postgres.Options{AllowUnsafeDurability: true})
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

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }
