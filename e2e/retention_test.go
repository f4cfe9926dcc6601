package e2e_test

import (
	"maps"
	"net/http"
	"testing"
)

// Windows of seconds, so that everything goes while charges are carried.
func shortRetention() setup {
	return setup{
		apis: 2, workers: 2, told: true,
		apiEnv:    map[string]string{"IDEMPOTENCY_RETENTION": "2s"},
		workerEnv: map[string]string{"OUTBOX_RETENTION": "1s", "INBOX_RETENTION": "2s"},
	}
}

const nothingKept = `
select not exists (select from outbox)
   and not exists (select from inbox where type not like 'stripe.%')
   and not exists (select from idempotency_keys where body is not null)`

// TestRetention removes what has expired while charges flow, and then delivers
// all of it again. Every world is judged at its end, as all are: books, ledger
// and audit agree, and the merchant was told once.
func TestRetention(t *testing.T) {
	t.Parallel()
	long(t)
	w := newWorld(t, shortRetention())
	// What leaves the outbox is copied here, as a backup would have it.
	if _, err := w.tables.Exec(t.Context(), `
create table backup as select topic, message_id, payload, metadata from outbox;
create function copy() returns trigger language plpgsql security definer as $$
begin
  insert into backup values (old.topic, old.message_id, old.payload, old.metadata);
  return null;
end $$;
create trigger copy after delete on outbox for each row execute function copy()`); err != nil {
		t.Fatal(err)
	}

	n := 80
	f := w.flowing(t, n, 4, visa, cardDeclined)
	f.awaitAnswered(t, n/4)
	w.killJanitor(t)
	f.awaitAnswered(t, n/2)
	w.killJanitor(t)
	f.all.Wait()
	w.calm(t)
	eventually(t, "the tables are empty", func() bool { return row[bool](t, w, nothingKept) })
	const copied = `
select count(*)
  from backup`
	if got := row[int](t, w, copied); got < 2*n {
		t.Errorf("%d messages have gone through the outbox, want at least %d", got, 2*n)
	}

	key := f.requests[0]
	got, err := w.client.do(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	mustBeProblem(t, got, http.StatusGone, "idempotency-key-expired")

	before := w.ledger(t)
	const restore = `
insert into outbox (topic, message_id, payload, metadata)
select topic, message_id, payload, metadata
  from backup`
	if _, err := w.tables.Exec(t.Context(), restore); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all messages were received again and are gone", func() bool {
		return row[int](t, w, copied) >= 4*n && row[bool](t, w, nothingKept)
	})
	w.wantLedger(t, before)

	// The provider's events too, long after the inbox has forgotten them.
	const forgotten = `
select not exists (select from inbox)`
	eventually(t, "the provider's events are forgotten", func() bool { return row[bool](t, w, forgotten) })
	const received = `
select last_value
  from inbox_id_seq`
	from := row[int64](t, w, received)
	w.control(t, http.MethodPost, "/duplicate-webhooks", map[string]int{"times": 2}, nil)
	eventually(t, "the provider's events came again and are done", func() bool {
		return row[int64](t, w, received) >= from+int64(n) && row[bool](t, w, forgotten)
	})
	w.wantLedger(t, before)
}

// killJanitor kills the worker that has the janitor's lease, and starts it anew.
func (w *world) killJanitor(t *testing.T) {
	t.Helper()
	const holder = `
select coalesce((select substring(holder from ':(\d+)/')::int
                   from janitor_lease
                  where until > clock_timestamp()), 0)`
	eventually(t, "a worker is the janitor", func() bool {
		pid := row[int](t, w, holder)
		for _, p := range w.workers {
			if p.PID() != pid {
				continue
			}
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			restart(t, p)
			return true
		}
		return false
	})
}

// ledger is how many events of each type there are.
func (w *world) ledger(t *testing.T) map[string]int {
	t.Helper()
	const types = `
select type
  from ledger_events`
	events := map[string]int{}
	for _, kind := range rows[string](t, w, types) {
		events[kind]++
	}
	return events
}

func (w *world) wantLedger(t *testing.T, before map[string]int) {
	t.Helper()
	if after := w.ledger(t); !maps.Equal(before, after) {
		t.Errorf("the ledger had %v, and has %v", before, after)
	}
}
