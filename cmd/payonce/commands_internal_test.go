package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

// parse reads a command line into the commands.
func parse(t *testing.T, line ...string) (commands, error) {
	t.Helper()
	var cli commands
	parser, err := kong.New(&cli, kong.Writers(io.Discard, io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(line)
	return cli, err
}

// capture returns what a command prints.
func capture(run func(stdout, stderr io.Writer) error) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	err = run(&out, &errs)
	return out.String(), errs.String(), err
}

// output is what a command prints on stdout.
func output(t *testing.T, run func(stdout io.Writer) error) string {
	t.Helper()
	stdout, _, err := capture(func(stdout, _ io.Writer) error { return run(stdout) })
	if err != nil {
		t.Fatal(err)
	}
	return stdout
}

// dataOf decodes a list that a command printed as JSON.
func dataOf[T any](t *testing.T, text string) []T {
	t.Helper()
	var list struct{ Data []T }
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&list); err != nil || list.Data == nil {
		t.Fatalf("%q: %v", text, err)
	}
	return list.Data
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	since, until := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC), time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	for line, set := range map[string]func(*commands){
		"audit --quiet --no-provider":          func(c *commands) { c.Audit = auditCmd{Quiet: true, NoProvider: true} },
		"timeline ch_1 --merchant acme --json": func(c *commands) { c.Timeline = timelineCmd{Name: "ch_1", Merchant: "acme", JSON: true} },
		"inbox list":                           func(*commands) {},
		"inbox list --status discarded --charge ch_1 --limit 2 --json": func(c *commands) {
			c.Inbox.List = inboxListCmd{Status: "discarded", Charge: "ch_1", Limit: new(2), JSON: true}
		},
		"inbox show 7 --json":          func(c *commands) { c.Inbox.Show = inboxShowCmd{ID: 7, JSON: true} },
		"inbox retry 7 8 --json":       func(c *commands) { c.Inbox.Retry = inboxRetryCmd{IDs: []int64{7, 8}, JSON: true} },
		"inbox discard 7":              func(c *commands) { c.Inbox.Discard = inboxDiscardCmd{IDs: []int64{7}} },
		"outbox repair --force --json": func(c *commands) { c.Outbox.Repair = outboxRepairCmd{Force: true, JSON: true} },
		"webhooks list --merchant acme --json": func(c *commands) {
			c.Webhooks.List = webhooksListCmd{Merchant: "acme", JSON: true}
		},
		"webhooks rotate --merchant acme": func(c *commands) { c.Webhooks.Rotate.Merchant = "acme" },
		"webhooks rotate --merchant acme --webhook-secret whsec_x --overlap 1m --json": func(c *commands) {
			c.Webhooks.Rotate = webhooksRotateCmd{Merchant: "acme", WebhookSecret: "whsec_x", Overlap: time.Minute, JSON: true}
		},
		"webhooks resend ch_1 ch_2 --json": func(c *commands) {
			c.Webhooks.Resend = webhooksResendCmd{Names: []string{"ch_1", "ch_2"}, JSON: true}
		},
		"webhooks resend --merchant acme --since 2026-11-21T08:00:00Z --until 2026-11-21T09:00:00Z": func(c *commands) {
			c.Webhooks.Resend = webhooksResendCmd{Merchant: "acme", Since: since, Until: until}
		},
	} {
		// Defaults are set for every command.
		var want commands
		want.Demo.Charges, want.Seed.FeeBasisPoints = 200, 300
		want.Inbox.List.Status, want.Webhooks.Rotate.Overlap = "dead", 24*time.Hour
		set(&want)
		got, err := parse(t, strings.Fields(line)...)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", line, err, diff)
		}
	}
	for _, line := range []string{
		"audit --quiet --json", "timeline", "inbox", "inbox list --status done", "inbox list --limit=0", "inbox list --limit=-1",
		"inbox show", "inbox show x", "inbox retry", "inbox discard",
		"webhooks rotate", "webhooks rotate --merchant acme --overlap long", "webhooks resend --since yesterday",
	} {
		if _, err := parse(t, strings.Fields(line)...); err == nil {
			t.Errorf("%s is accepted", line)
		}
	}
}
