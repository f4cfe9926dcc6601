package e2e_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

const (
	nothingKept = `
select not exists (select from outbox)
   and not exists (select from inbox where type not like 'stripe.%')
   and not exists (select from idempotency_keys where body is not null)`

	// How many events of each type there are.
	ledger = `select json_object_agg(type, n order by type)::text from (select type, count(*) as n from ledger_events group by type) as counted`
)

// TestRetention_redeliveryAfterExpiry_changesNothing removes what has expired while charges flow, and
// then delivers all of it again. The invariants are checked at the end: the merchant was notified once.
func TestRetention_redeliveryAfterExpiry_changesNothing(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{
		apis: 2, workers: 2, providerEvents: true,
		apiEnv:    map[string]string{"IDEMPOTENCY_RETENTION": "2s"},
		workerEnv: map[string]string{"INBOX_RETENTION": "2s"},
	})
	// What leaves the outbox is copied here, as a backup would have it.
	d.exec(t, `
create table backup as select topic, message_id, payload, metadata from outbox;
create function copy() returns trigger language plpgsql security definer as $$
begin
  insert into backup values (old.topic, old.message_id, old.payload, old.metadata);
  return null;
end $$;
create trigger copy after delete on outbox for each row execute function copy()`)

	n := 32
	f := d.flowing(t, n, 4, visa, cardDeclined)
	f.awaitAnswered(t, n/2)
	kill(t, d.Workers[0])
	restart(t, d.Workers[0])
	f.all.Wait()
	d.drain(t)
	testrun.Row(t, d.tables, nothingKept)
	const copied = `select count(*) from backup`
	if got := row[int](t, d, copied); got < 2*n {
		t.Errorf("%d messages have gone through the outbox, want at least %d", got, 2*n)
	}

	if got := d.do(t, f.requests[0]); got.Status != http.StatusGone || !strings.Contains(string(got.Body), "/problems/idempotency-key-expired") {
		t.Errorf("a key that has expired is answered %d %s", got.Status, got.Body)
	}

	before := row[string](t, d, ledger)
	d.exec(t, `insert into outbox (topic, message_id, payload, metadata) select topic, message_id, payload, metadata from backup`)
	testrun.True(t, "all messages were received again and are gone", func() bool {
		return row[int](t, d, copied) >= 4*n && row[bool](t, d, nothingKept)
	})
	mustRead(t, d, before, ledger)

	// The provider's events too, long after the inbox has forgotten them.
	const forgotten = `select not exists (select from inbox)`
	testrun.Row(t, d.tables, forgotten)
	const received = `select last_value from inbox_id_seq`
	from := row[int64](t, d, received)
	_, err := d.sandbox().RepeatWebhooks(bounded(t), 2)
	must(t, err)
	testrun.True(t, "the provider's events were redelivered and are done", func() bool {
		return row[int64](t, d, received) >= from+int64(n) && row[bool](t, d, forgotten)
	})
	mustRead(t, d, before, ledger)
}
