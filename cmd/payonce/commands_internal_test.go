package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/common/model"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/migrations/version"
)

// opened is a database as the command line opens it.
func opened(t *testing.T, address string, o postgres.Options) *postgres.DB {
	t.Helper()
	o.AllowUnsafeDurability = true
	db, err := environment{DatabaseURL: program.Secret(address), AllowPlaintext: true}.open(t.Context(), o)
	testdb.Must(t, err)
	t.Cleanup(db.Close)
	return db
}

// execute checks and runs a command on a database.
func execute(t *testing.T, db *postgres.DB, command databaseCommand) (stdout, stderr string, err error) {
	t.Helper()
	if c, ok := command.(checkedCommand); ok {
		if err := c.check(); err != nil {
			return "", "", err
		}
	}
	var out, errs bytes.Buffer
	c := newConsole(&out, &errs)
	err = runOn(t.Context(), c, db, command)
	if c.stdout.err != nil {
		t.Error(c.stdout.err)
	}
	return out.String(), errs.String(), err
}

// mustExecute returns what a command prints on stdout.
func mustExecute(t *testing.T, db *postgres.DB, command databaseCommand) string {
	t.Helper()
	stdout, _, err := execute(t, db, command)
	testdb.Must(t, err)
	return stdout
}

func wantRefused(t *testing.T, db *postgres.DB, command databaseCommand, says string) {
	t.Helper()
	if stdout, _, err := execute(t, db, command); err == nil || stdout != "" || !strings.Contains(err.Error(), says) {
		t.Errorf("the error is %v, want %q; it prints %q", err, says, stdout)
	}
}

func decoded[T any](t *testing.T, text string) (v T) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}

// dataOf decodes a list that a command printed as JSON.
func dataOf[T any](t *testing.T, text string) []T {
	t.Helper()
	list := decoded[struct{ Data []T }](t, text)
	if list.Data == nil {
		t.Fatalf("no list: %q", text)
	}
	return list.Data
}

// record appends events to a stream.
func record(t *testing.T, db *postgres.DB, s ledger.Stream, events ...domain.Event) ledger.Stream {
	t.Helper()
	b := &pgx.Batch{}
	s, err := ledger.Append(b, s, ledger.Cause{Actor: "test"}, events...)
	if err == nil {
		err = db.Commit(t.Context(), b)
	}
	testdb.Must(t, err)
	return s
}

func requested(order string) domain.ChargeRequested {
	return domain.ChargeRequested{MerchantID: "acme", OrderID: order, Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa", Steps: []string{domain.Payment}}
}

// parse reads a command line into the commands.
func parse(t *testing.T, line string) (commands, error) {
	t.Helper()
	var cli commands
	_, err := commandLine(&cli, strings.Fields(line), kong.Writers(io.Discard, io.Discard))
	return cli, err
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	since, until := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC), time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	for line, set := range map[string]func(*commands){
		"timeline ch_1 --merchant acme --json": func(c *commands) { c.Timeline = timelineCmd{Name: "ch_1", Merchant: "acme", JSON: true} },
		"inbox list":                           func(*commands) {},
		"inbox list --status discarded --charge ch_1 --limit 2 --json": func(c *commands) {
			c.Inbox.List = inboxListCmd{inboxFilter: inboxFilter{Charge: "ch_1"}, Status: "discarded", Limit: new(2), JSON: true}
		},
		"inbox retry 7 8 --json": func(c *commands) { c.Inbox.Retry = inboxRetryCmd{IDs: []int64{7, 8}, JSON: true} },
		"inbox discard --type t --receiver r --older 1d --reason why": func(c *commands) {
			c.Inbox.Discard.inboxFilter = inboxFilter{Type: "t", Receiver: "r", Older: model.Duration(24 * time.Hour)}
			c.Inbox.Discard.Reason = "why"
		},
		"stock add --merchant acme --sku mug --quantity=-3 --reason broken --id 4711": func(c *commands) {
			c.Stock.Add = stockAddCmd{Merchant: "acme", SKU: "mug", Quantity: -3, Reason: "broken", ID: "4711"}
		},
		"webhooks rotate --merchant acme --overlap 1m --json": func(c *commands) {
			c.Webhooks.Rotate = webhooksRotateCmd{Merchant: "acme", Overlap: time.Minute, JSON: true}
		},
		"webhooks resend --merchant acme --since 2026-11-21T08:00:00Z --until 2026-11-21T09:00:00Z": func(c *commands) {
			c.Webhooks.Resend = webhooksResendCmd{Merchant: "acme", Since: since, Until: until}
		},
	} {
		// Defaults are set for every command.
		var want commands
		want.Demo.Charges, want.Seed.FeeBasisPoints = 200, 300
		want.Inbox.List.Status, want.Webhooks.Rotate.Overlap = "dead", 24*time.Hour
		want.Actions.Limit = 100
		set(&want)
		got, err := parse(t, line)
		if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", line, err, diff)
		}
	}
	for _, line := range []string{
		"audit --quiet --json", "timeline", "inbox", "inbox list --status done", "inbox list --limit=0", "inbox list --limit=-1",
		"inbox show", "inbox show x", "inbox retry", "inbox discard",
		"inbox retry 7 --all", "inbox retry 7 --charge ch_1", "inbox retry --all --charge ch_1",
		"inbox retry --older=-1h", "inbox retry --all --reason " + strings.Repeat("r", longestReason+1),
		"webhooks rotate", "webhooks resend", "demo --break=list --keep", "webhooks rotate --merchant acme --overlap long", "webhooks resend --since yesterday",
		"stock add --merchant acme --sku mug --quantity 1", "stock add --merchant acme --sku mug --reason r",
		"stock add --merchant acme --sku mug --quantity 0 --reason r", "stock add --merchant acme --sku mug --quantity 1 --reason=",
		"stock add --merchant acme --sku mug --quantity=-1000000000001 --reason r", "stock add --merchant acme --sku mug --quantity 1.5 --reason r",
		"stock add --merchant acme --sku mug --quantity 1000000000001 --reason r",
		"stock add --merchant acme --sku mug --quantity 1 --reason " + strings.Repeat("r", longestReason+1),
		"stock add --merchant acme --sku mug --quantity 1 --reason r --id " + strings.Repeat("i", longestID+1),
	} {
		if _, err := parse(t, line); err == nil {
			t.Errorf("%s is accepted", line)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]checkedCommand{
		"a secret that is no base64":    webhooksRotateCmd{WebhookSecret: "whsec_hush!"},
		"one with a line break":         webhooksRotateCmd{WebhookSecret: firstSecret + "\n"},
		"an overlap below nothing":      webhooksRotateCmd{Overlap: -time.Second},
		"an overlap of years":           webhooksRotateCmd{Overlap: 100_000 * time.Hour},
		"a resend of nothing":           webhooksResendCmd{},
		"a merchant's, ever":            webhooksResendCmd{Merchant: "acme"},
		"ids and a merchant's":          webhooksResendCmd{Names: []string{"ch_1"}, Merchant: "acme", Since: now},
		"ids within a time":             webhooksResendCmd{Names: []string{"ch_1"}, Since: now},
		"a time that ends at its begin": webhooksResendCmd{Merchant: "acme", Since: now, Until: now},
		"a fee without a currency":      seedCmd{Merchant: "acme", FeeFixed: map[string]int64{"": 5}},
		"a fee below nothing":           seedCmd{Merchant: "acme", FeeFixed: map[string]int64{"EUR": -5}},
		"a fee beyond any amount":       seedCmd{Merchant: "acme", FeeFixed: map[string]int64{"EUR": domain.MaxAmount + 1}},
		"an article without a name":     seedCmd{Merchant: "acme", SKU: map[string]int64{"": 5}},
		"articles beyond any number":    seedCmd{Merchant: "acme", SKU: map[string]int64{"mug": mostUnits + 1}},
		"a seed with a secret alone":    seedCmd{Merchant: "acme", WebhookSecret: firstSecret},
		"a seed with a short secret":    seedCmd{Merchant: "acme", WebhookURL: "https://shop.example", WebhookSecret: "whsec_aHVzaA=="},
		"a live key that was chosen":    seedCmd{Merchant: "acme", APIKey: "sk_live_hush0123456789abcdef"},
		"a short key":                   seedCmd{Merchant: "acme", APIKey: "sk_test_hus"},
		"a live key of an operator":     createKeyCmd{Merchant: "acme", Scopes: []string{"refunds:write"}, APIKey: "sk_live_hush0123456789abcdef"},
		"an end of a key in months":     revokeKeyCmd{In: model.Duration(longestOverlap + time.Hour)},
		"a key without a scope":         createKeyCmd{Merchant: "acme", Expires: new(model.Duration(time.Hour))},
		"a key with hardly a life":      createKeyCmd{Merchant: "acme", Scopes: []string{"refunds:write"}, Expires: new(model.Duration(time.Millisecond))},
	} {
		if err := c.check(); err == nil || strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), firstSecret[6:]) {
			t.Errorf("%s: %v, want it refused without the secret in the text", name, err)
		}
	}
	for name, c := range map[string]checkedCommand{
		"fees and stock":     seedCmd{Merchant: "acme", FeeFixed: map[string]int64{"EUR": 0, "XCG": domain.MaxAmount}, SKU: map[string]int64{"mug": 0}},
		"no secret":          webhooksRotateCmd{Overlap: 24 * time.Hour},
		"a generated secret": webhooksRotateCmd{WebhookSecret: merchants.NewWebhookSecret(), Overlap: 24 * time.Hour},
	} {
		if err := c.check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Row security would hide all rows from a user who may read the tables and does not own
// them, and an audit would find every promise kept. So the commands end with an error.
func TestAudit_refusesAUserWhomPoliciesHideRowsFrom(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.Open(t)
	put(t, db, "ch_1", "dead", "{}")
	name := "payonce_test_" + strings.ToLower(rand.Text())
	testdb.Exec(t, db.Pool(), fmt.Sprintf(`create role %[1]s login password 'p'; grant select on all tables in schema public to %[1]s`, name))
	t.Cleanup(func() {
		_, err := db.Pool().Exec(context.WithoutCancel(t.Context()), fmt.Sprintf(`drop owned by %[1]s; drop role %[1]s`, name))
		testdb.Must(t, err)
	})
	owner := db.Pool().Config().ConnString()
	other, err := url.Parse(owner)
	testdb.Must(t, err)
	other.User = url.UserPassword(name, "p")
	for address, sees := range map[string]bool{owner: true, other.String(): false} {
		database := opened(t, address, postgres.Options{})
		for _, command := range []databaseCommand{auditCmd{NoProvider: true, Quiet: true}, inboxListCmd{Status: "dead"}} {
			_, _, err := execute(t, database, command)
			if hidden := err != nil && strings.Contains(err.Error(), "row-level security"); hidden == sees {
				t.Errorf("%T where it sees rows is %t: %v", command, sees, err)
			}
		}
	}
}

func TestMigrate(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.Connect(t, testdb.Empty(t))
	wantRefused(t, db, pauseCmd{}, "the database lacks a migration: run payonce migrate")
	out, said, err := execute(t, db, migrateCmd{})
	if want := fmt.Sprintf("the schema was migrated from version 0 to %d: idempotency, inbox, ", version.Latest); out != "" || !strings.HasPrefix(said, want) || err != nil {
		t.Errorf("printed %q, %q, want %q, %v", out, said, want, err)
	}
	want := migrated{From: version.Latest, Version: version.Latest, Applied: []string{}}
	testrun.Same(t, "the second time", want, decoded[migrated](t, mustExecute(t, db, migrateCmd{JSON: true})))
}
