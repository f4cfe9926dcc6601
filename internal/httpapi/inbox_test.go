package httpapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// setAside puts messages with these statuses into the inbox and returns their
// numbers. All are of one charge of acme's.
func (w *world) setAside(t *testing.T, charge string, statuses ...string) []int64 {
	t.Helper()
	return w.setAsideOf(t, "acme", charge, statuses...)
}

func (w *world) setAsideOf(t *testing.T, merchant, charge string, statuses ...string) []int64 {
	t.Helper()
	exec(t, w.db, `
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), $1, 1, 'charge.requested.v1', 1, $2, '{}', '{}', now())
on conflict do nothing`, charge, merchant)
	numbers := make([]int64, len(statuses))
	for i, status := range statuses {
		numbers[i] = testdb.One[int64](t, w.db, `
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, done_fence,
        attempts, waits, last_error, decided_by, decided_at)
values ('fulfillment', $1, $2, 'charge.requested.v1', '{"secret":"of the sender"}', '{}', '\x00', $3, 7,
        case when $3 = 'done' then 7 end, 12, 3, 'waiting: the provider is away',
        case when $3 = 'discarded' then 'cli:ada' end, case when $3 = 'discarded' then now() end)
returning id`, fmt.Sprint(charge, " ", i), charge, status)
	}
	return numbers
}

// decision asks for a retry or a discard.
func decision(verb string, number any) call {
	c := get(fmt.Sprintf("/v1/inbox/%v/%s", number, verb))
	c.method = http.MethodPost
	return c
}

// listed are the numbers of a page of messages.
func listed(t *testing.T, a answer) (numbers []int64, more bool) {
	t.Helper()
	for _, m := range data(t, a) {
		id, _ := m["id"].(float64)
		numbers = append(numbers, int64(id))
	}
	return numbers, members(t, a.body)["has_more"] == true
}

func TestInbox(t *testing.T) {
	t.Parallel()
	w := serve(t)
	empty := w.send(t, get("/v1/inbox"))
	n := w.setAside(t, "ch_1", "dead", "pending", "done", "discarded", "dead")
	other := w.setAside(t, "ch_2", "dead")

	t.Run("no dead letter is an empty list", func(t *testing.T) {
		if empty.body != `{"data":[],"has_more":false}`+"\n" {
			t.Errorf("status %d: %s", empty.status, empty.body)
		}
	})

	t.Run("discarded ones on request", func(t *testing.T) {
		got, _ := listed(t, w.send(t, get("/v1/inbox?status=discarded")))
		testrun.Same(t, "discarded", n[3:4], got)
	})

	t.Run("dead letters are listed page by page, in the order in which they were received", func(t *testing.T) {
		first, more := listed(t, w.send(t, get("/v1/inbox?limit=2")))
		rest, last := listed(t, w.send(t, get(fmt.Sprintf("/v1/inbox?status=dead&limit=2&starting_after=%d", first[1]))))
		if diff := cmp.Diff([]int64{n[0], n[4], other[0]}, slices.Concat(first, rest)); diff != "" || !more || last {
			t.Errorf("more %t, then %t (-want +got):\n%s", more, last, diff)
		}
	})
}

func TestInboxDecisions(t *testing.T) {
	t.Parallel()
	w := serve(t)
	by := "api:" + merchants.Prefix(apiKey)

	for _, test := range []struct{ verb, status string }{{"retry", "pending"}, {"discard", "discarded"}} {
		t.Run(test.verb+" decides about a dead letter once, and names the API key", func(t *testing.T) {
			number := w.setAside(t, "ch_"+test.verb, "dead")[0]
			a := w.send(t, decision(test.verb, number))
			got := members(t, a.body)
			if a.status != http.StatusOK || got["status"] != test.status || got["decided_by"] != by || got["decided_at"] == nil {
				t.Errorf("status %d: %s", a.status, a.body)
			}
			await.Row(t, w.db, `
select count(*) = 1
  from operator_actions
 where actor = $1
   and action = $2
   and subject = $3::bigint::text
   and before ->> 'status' = 'dead'
   and after ->> 'status' = $4`, by, "inbox "+test.verb, number, test.status)
			for _, verb := range []string{test.verb, "discard"} { // it is no dead letter any more
				p := wantProblem(t, w.send(t, decision(verb, number)), "/problems/conflict")
				if p.Title != "The message is not a dead letter" {
					t.Errorf("title is %q", p.Title)
				}
			}
		})

		t.Run(test.verb+" of a message that is not there is not found", func(t *testing.T) {
			for _, number := range []any{0, 999999, -1, "x", "1x", "%00", "99999999999999999999"} {
				wantProblem(t, w.send(t, decision(test.verb, number)), "/problems/not-found")
			}
		})

		t.Run(test.verb+" takes no body but an empty object, and no key", func(t *testing.T) {
			number := w.setAside(t, "ch_body "+test.verb, "dead")[0]
			c := decision(test.verb, number).with("Content-Type", "application/json")
			c.body = `{"why":"because"}`
			wantProblem(t, w.send(t, c), "/problems/malformed")
			c.body = "{}"
			a := w.send(t, c.with("Idempotency-Key", "key-1"))
			if a.status != http.StatusOK || a.header.Get("Idempotency-Key") != "" {
				t.Errorf("status %d, Idempotency-Key %q: %s", a.status, a.header.Get("Idempotency-Key"), a.body)
			}
		})
	}

	t.Run("of ten decisions at once one succeeds", func(t *testing.T) {
		number := w.setAside(t, "ch_race", "dead")[0]
		answers := w.sendAll(t, slices.Repeat([]call{decision("retry", number), decision("discard", number)}, 5)...)
		statuses := map[int]int{}
		for range cap(answers) {
			statuses[(<-answers).status]++
		}
		testrun.Same(t, "answers", map[int]int{http.StatusOK: 1, http.StatusConflict: 9}, statuses)
	})
}
