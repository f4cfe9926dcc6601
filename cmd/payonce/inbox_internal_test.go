package main

import (
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// put puts a message with a status into the inbox and returns its number.
func put(t *testing.T, db *postgres.DB, charge, status, payload string) int64 {
	t.Helper()
	var number int64
	err := db.QueryRow(t.Context(), `
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, done_fence,
        attempts, last_error, decided_by, decided_at)
values ('fulfillment', gen_random_uuid()::text, $1, 'charge.requested.v1', $3, '{"correlation_id":"req-1"}', '\x00', $2, 12,
        case when $2 = 'done' then 12 end, 12, E'no way\n\x1b[2J',
        case when $2 = 'discarded' then 'cli:ada' end, case when $2 = 'discarded' then now() end)
returning id`, charge, status, []byte(payload)).Scan(&number)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

func TestInboxList(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	list := func(c inboxListCmd) (out string, more bool) {
		out = output(t, func(w io.Writer) (err error) { more, err = c.list(t.Context(), w, db); return err })
		return out, more
	}
	if out, _ := list(inboxListCmd{Status: "dead", Limit: new(10), JSON: true}); strings.TrimSpace(out) != "{\n  \"data\": []\n}" {
		t.Errorf("an empty inbox is %s", out)
	}
	first := put(t, db, "ch_1", "dead", "{}")
	put(t, db, "ch_1", "pending", "{}")
	second := put(t, db, "ch_2", "dead", "{}")
	third := put(t, db, "ch_1", "dead", "{}")
	gone := put(t, db, "ch_2", "discarded", "{}")

	for _, test := range []struct {
		name string
		cmd  inboxListCmd
		want []int64
		more bool
	}{
		{"parked ones, in their order", inboxListCmd{Status: "dead", Limit: new(10)}, []int64{first, second, third}, false},
		{"those of one charge", inboxListCmd{Status: "dead", Charge: "ch_1", Limit: new(10)}, []int64{first, third}, false},
		{"so many, and whether there are more", inboxListCmd{Status: "dead", Limit: new(2)}, []int64{first, second}, true},
		{"all there are is not too many", inboxListCmd{Status: "dead", Limit: new(3)}, []int64{first, second, third}, false},
		{"discarded ones", inboxListCmd{Status: "discarded", Limit: new(10)}, []int64{gone}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := test.cmd
			c.JSON = true
			var more bool
			out := output(t, func(w io.Writer) (err error) { more, err = c.list(t.Context(), w, db); return err })
			var got []int64
			for _, m := range dataOf[map[string]any](t, out) {
				number, _ := m["id"].(float64)
				got = append(got, int64(number))
				if _, shown := m["payload"]; shown {
					t.Error("a list shows the payload")
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" || more != test.more {
				t.Errorf("more %t (-want +got):\n%s", more, diff)
			}
		})
	}

	t.Run("prints a line for each message, which no message breaks", func(t *testing.T) {
		t.Parallel()
		c := inboxListCmd{Status: "discarded", Limit: new(10)}
		lines := strings.Split(strings.TrimSuffix(output(t, func(w io.Writer) error { _, err := c.list(t.Context(), w, db); return err }), "\n"), "\n")
		if len(lines) != 2 || !strings.HasPrefix(lines[0], "ID ") {
			t.Fatalf("printed %q", lines)
		}
		for _, want := range []string{strconv.FormatInt(gone, 10), "ch_2", "charge.requested.v1", "12", "discarded by cli:ada: no way��[2J"} {
			if !strings.Contains(lines[1], want) {
				t.Errorf("%q lacks %q", lines[1], want)
			}
		}
	})
}

// TestInboxList_readsEveryPage lists more than a page.
func TestInboxList_readsEveryPage(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.Open(t)
	const n = 2*inboxPage + 1
	b := &pgx.Batch{}
	b.Queue(`
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status)
select 'r', i::text, 'ch_' || i % 2, 't', '', '{}', '', 'dead'
  from generate_series(1, $1::int) i`, n)
	if err := db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for charge, want := range map[string]int{"": n, "ch_1": inboxPage + 1} {
		c := inboxListCmd{Status: "dead", Charge: charge, Limit: new(n), JSON: true}
		got := dataOf[map[string]any](t, output(t, func(w io.Writer) error { _, err := c.list(t.Context(), w, db); return err }))
		if len(got) != want {
			t.Errorf("%d messages of %q, want %d", len(got), charge, want)
		}
	}

	// The runbook retries what a list for programs holds, so it holds all.
	for line, want := range map[string]struct {
		listed int
		more   bool
	}{"inbox list": {n - 1, true}, "inbox list --json": {n, false}} {
		cli, err := parse(t, strings.Fields(line)...)
		if err != nil {
			t.Fatal(err)
		}
		c := cli.Inbox.List
		var more bool
		out := output(t, func(w io.Writer) (err error) { more, err = c.list(t.Context(), w, db); return err })
		listed := strings.Count(out, "\n") - 1
		if c.JSON {
			listed = len(dataOf[map[string]any](t, out))
		}
		if listed != want.listed || more != want.more {
			t.Errorf("%s: %d messages, and more: %t; want %d, %t", line, listed, more, want.listed, want.more)
		}
	}
}

func TestInboxShow(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	document, text := put(t, db, "ch_1", "dead", `{"version":1}`), put(t, db, "ch_2", "done", "no JSON")
	show := func(number int64, asJSON bool) string {
		return output(t, func(w io.Writer) error { return inboxShowCmd{ID: number, JSON: asJSON}.show(t.Context(), w, db) })
	}
	var whole struct {
		Status   string            `json:"status"`
		Metadata map[string]string `json:"metadata"`
		Payload  any               `json:"payload"`
	}
	for _, test := range []struct {
		number  int64
		payload any
	}{{document, map[string]any{"version": 1.0}}, {text, "bm8gSlNPTg=="}} {
		if err := json.Unmarshal([]byte(show(test.number, true)), &whole); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.payload, whole.Payload); diff != "" || whole.Metadata["correlation_id"] != "req-1" {
			t.Errorf("metadata %v, payload (-want +got):\n%s", whole.Metadata, diff)
		}
	}
	for _, want := range []string{"status      dead\n", "charge      ch_1\n", "reason      no way��[2J\n", "\"version\": 1"} {
		if got := show(document, false); !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if err := (inboxShowCmd{ID: 999}).show(t.Context(), io.Discard, db); !errors.Is(err, inbox.ErrNoMessage) {
		t.Errorf("the error is %v", err)
	}
}

func TestInboxDecisions(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for _, test := range []struct {
		name   string
		decide decision
		status string
	}{{"retry", inbox.Retry, "pending"}, {"discard", inbox.Discard, "discarded"}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			first, done, last := put(t, db, test.name, "dead", "{}"), put(t, db, test.name, "done", "{}"), put(t, db, test.name, "dead", "{}")
			var out strings.Builder
			err := decideAll(t.Context(), &out, db, test.decide, []int64{first, done, 999, last}, true)
			if !errors.Is(err, inbox.ErrNotParked) || !errors.Is(err, inbox.ErrNoMessage) || strings.Count(err.Error(), "\n") != 1 {
				t.Errorf("the error is %v", err)
			}
			for i, m := range dataOf[map[string]any](t, out.String()) {
				by, _ := m["decided_by"].(string)
				if m["status"] != test.status || by != operator() || m["id"] != float64([]int64{first, last}[i]) {
					t.Errorf("printed %v", m)
				}
			}
		})

		t.Run(test.name+", for people", func(t *testing.T) {
			t.Parallel()
			number := put(t, db, "ch of "+test.name, "dead", "{}")
			out := output(t, func(w io.Writer) error { return decideAll(t.Context(), w, db, test.decide, []int64{number}, false) })
			if want := strconv.FormatInt(number, 10) + " " + test.status + ": charge.requested.v1 of ch of " + test.name + " for fulfillment\n"; out != want {
				t.Errorf("printed %q, want %q", out, want)
			}
		})
	}
}

func TestOperator_hasAName(t *testing.T) {
	t.Parallel()
	if name, ok := strings.CutPrefix(operator(), "cli:"); !ok || name == "" {
		t.Errorf("the operator is %q", operator())
	}
}
