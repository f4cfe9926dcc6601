package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/common/model"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// put puts a message with a status into the inbox and returns its number.
func put(t *testing.T, db *postgres.DB, charge, status, payload string) int64 {
	t.Helper()
	return testdb.One[int64](t, db, `
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, done_fence, holder,
        attempts, last_error, decided_by, decided_at)
values ('fulfillment', gen_random_uuid()::text, $1, 'charge.requested.v1', $3, '{"correlation_id":"req-1"}', '\x00', $2, 12,
        case when $2 = 'done' then 12 end, 'host:1/ABCDEFGH', 12, E'no way\n\x1b[2J',
        case when $2 = 'discarded' then 'cli:ada' end, case when $2 = 'discarded' then now() end)
returning id`, charge, status, []byte(payload))
}

// listed are the numbers of a list of messages.
func listed(t *testing.T, db *postgres.DB, c inboxListCmd) (numbers []int64, more bool) {
	t.Helper()
	c.JSON = true
	out, said, err := execute(t, db, c)
	testdb.Must(t, err)
	for _, m := range dataOf[map[string]any](t, out) {
		number, _ := m["id"].(float64)
		numbers = append(numbers, int64(number))
		if _, shown := m["payload"]; shown {
			t.Error("a list shows the payload")
		}
	}
	return numbers, strings.HasPrefix(said, "there are more than ")
}

func TestInboxList(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	if numbers, more := listed(t, db, inboxListCmd{Status: "dead"}); len(numbers) > 0 || more {
		t.Errorf("an empty inbox has %v, more %t", numbers, more)
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
		{"dead letters, in their order", inboxListCmd{Status: "dead", Limit: new(10)}, []int64{first, second, third}, false},
		{"those of one charge", inboxListCmd{inboxFilter: inboxFilter{Charge: "ch_1"}, Status: "dead", Limit: new(10)}, []int64{first, third}, false},
		{"so many, and whether there are more", inboxListCmd{Status: "dead", Limit: new(2)}, []int64{first, second}, true},
		{"all there are is not too many", inboxListCmd{Status: "dead", Limit: new(3)}, []int64{first, second, third}, false},
		{"discarded ones", inboxListCmd{Status: "discarded", Limit: new(10)}, []int64{gone}, false},
	} {
		got, more := listed(t, db, test.cmd)
		if diff := cmp.Diff(test.want, got); diff != "" || more != test.more {
			t.Errorf("%s: more %t (-want +got):\n%s", test.name, more, diff)
		}
	}

	lines := strings.Split(strings.TrimSuffix(mustExecute(t, db, inboxListCmd{Status: "discarded"}), "\n"), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "ID ") {
		t.Fatalf("a message that would break its line is printed as %q", lines)
	}
	for _, want := range []string{strconv.FormatInt(gone, 10), "ch_2", "charge.requested.v1", "12", "discarded by cli:ada: no way��[2J"} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("%q lacks %q", lines[1], want)
		}
	}
}

// A list for programs holds all; one for people has a limit.
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
	testdb.Must(t, db.Commit(t.Context(), b))
	for charge, want := range map[string]int{"": n, "ch_1": inboxPage + 1} {
		if got, more := listed(t, db, inboxListCmd{inboxFilter: inboxFilter{Charge: charge}, Status: "dead"}); len(got) != want || more {
			t.Errorf("%d messages of %q, more %t, want %d", len(got), charge, more, want)
		}
	}
	out, said, err := execute(t, db, inboxListCmd{Status: "dead"})
	if lines := strings.Count(out, "\n"); lines != inboxLines+1 || said != "there are more than 1000: raise --limit\n" || err != nil {
		t.Errorf("%d lines for people, and %q, %v", lines, said, err)
	}
}

func TestInboxShow(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	document, text := put(t, db, "ch_1", "dead", `{"version":1}`), put(t, db, "ch_2", "done", "no JSON")
	for number, payload := range map[int64]any{document: map[string]any{"version": 1.0}, text: "bm8gSlNPTg=="} {
		whole := decoded[map[string]any](t, mustExecute(t, db, inboxShowCmd{ID: number, JSON: true}))
		testrun.Same(t, "payload and metadata", []any{payload, map[string]any{"correlation_id": "req-1"}}, []any{whole["payload"], whole["metadata"]})
	}
	shown := mustExecute(t, db, inboxShowCmd{ID: document})
	for _, want := range []string{"status      dead\n", "charge      ch_1\n", "holder      host:1\n", "reason      no way��[2J\n", "\"version\": 1"} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not in\n%s", want, shown)
		}
	}
	if _, _, err := execute(t, db, inboxShowCmd{ID: 999}); !errors.Is(err, inbox.ErrNoMessage) {
		t.Errorf("the error is %v", err)
	}
}

func TestInboxDecisions(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for name, test := range map[string]struct {
		decide func(inboxRetryCmd) databaseCommand
		status string
	}{
		"retry":   {func(c inboxRetryCmd) databaseCommand { return c }, "pending"},
		"discard": {func(c inboxRetryCmd) databaseCommand { return inboxDiscardCmd{c} }, "discarded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, done, last := put(t, db, name, "dead", "{}"), put(t, db, name, "done", "{}"), put(t, db, name, "dead", "{}")
			out, _, err := execute(t, db, test.decide(inboxRetryCmd{IDs: []int64{first, done, 999, last}, JSON: true}))
			if !errors.Is(err, inbox.ErrNotDeadLetter) || !errors.Is(err, inbox.ErrNoMessage) || strings.Count(err.Error(), "\n") != 1 {
				t.Errorf("the error is %v", err)
			}
			for i, m := range dataOf[map[string]any](t, out) {
				by, _ := m["decided_by"].(string)
				if m["status"] != test.status || by != operator() || m["id"] != float64([]int64{first, last}[i]) {
					t.Errorf("printed %v", m)
				}
			}
			number := put(t, db, "ch of "+name, "dead", "{}")
			want := fmt.Sprintf("%d %s: charge.requested.v1 of ch of %s for fulfillment\n", number, test.status, name)
			if out := mustExecute(t, db, test.decide(inboxRetryCmd{IDs: []int64{number}})); out != want {
				t.Errorf("printed %q, want %q", out, want)
			}
		})
	}
}

// interrupted cancels a command when it has printed so many lines.
type interrupted struct {
	lines  int
	cancel context.CancelFunc
}

func (w *interrupted) Write(text []byte) (int, error) {
	if w.lines--; w.lines == 0 {
		w.cancel()
	}
	return len(text), nil
}

// TestInboxDecisions_ofManyMessages: flags select dead letters. Each decision is recorded as a
// single one's is, or not made.
func TestInboxDecisions_ofManyMessages(t *testing.T) {
	t.Parallel()
	var all []int64
	command := inboxRetryCmd{reasonFlag: reasonFlag{"the shop is back"}, JSON: true}
	db := opened(t, testdb.URL(t), command.options())
	for _, receiver := range []string{"notification", "notification", "fulfillment", "notification"} {
		all = append(all, put(t, db, "ch_1", "dead", "{}"))
		testdb.All[int64](t, db, `update inbox set receiver = $2, received_at = now() - interval '2h' where id = $1 returning id`, all[len(all)-1], receiver)
	}
	young := put(t, db, "ch_2", "dead", "{}")
	put(t, db, "ch_2", "done", "{}")
	numbers := func(c databaseCommand) (numbers []int64) {
		for _, m := range dataOf[struct{ inbox.Entry }](t, mustExecute(t, db, c)) {
			numbers = append(numbers, m.Number)
		}
		return numbers
	}
	for name, test := range map[string]struct {
		filter inboxFilter
		want   []int64
	}{
		"a charge's":      {inboxFilter{Charge: "ch_2"}, []int64{young}},
		"a receiver's":    {inboxFilter{Receiver: "notification"}, []int64{all[0], all[1], all[3]}},
		"of a type":       {inboxFilter{Type: "charge.requested.v1", Charge: "ch_2"}, []int64{young}},
		"of another type": {inboxFilter{Type: "refund.failed.v1"}, nil},
		"old ones":        {inboxFilter{Older: model.Duration(time.Hour)}, all},
		"all":             {inboxFilter{}, append(slices.Clone(all), young)},
	} {
		testrun.Same(t, name, test.want, numbers(inboxListCmd{inboxFilter: test.filter, Status: "dead", JSON: true}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := inboxRetryCmd{inboxFilter: inboxFilter{Receiver: "notification"}}
	if err := stopped.run(ctx, newConsole(&interrupted{2, cancel}, io.Discard), db); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	command.inboxFilter = stopped.inboxFilter
	testrun.Same(t, "left after the interruption", all[3:], numbers(command))
	testrun.Same(t, "discarded", []int64{young}, numbers(inboxDiscardCmd{inboxRetryCmd{inboxFilter: inboxFilter{Charge: "ch_2"}, JSON: true}}))
	testrun.Same(t, "left", []int64{all[2]}, numbers(inboxListCmd{Status: "dead", JSON: true}))
	var want []string
	for i, number := range []int64{all[0], all[1], all[3], young} {
		want = append(want, fmt.Sprintf("inbox %s %d %s the shop is back", []string{"retry", "retry", "retry", "discard"}[i], number, operator()))
	}
	testrun.Same(t, "recorded", want, testdb.All[string](t, db, `select concat_ws(' ', action, subject, actor, after ->> 'reason') from operator_actions where action like 'inbox%' order by action_id`))
}
