package audit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/payonce/payonce/domain"
)

// TestRun_goesOnPastWhatItCannotRead: events of every type that hold nothing, or values of
// wrong types, and rows that are too long, are violations and do not end the audit. It still finds a forged outcome.
func TestRun_goesOnPastWhatItCannotRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(breakable)
	f.exec(appendEvent("paying", "charge.succeeded.v1", `{}`))
	for i, kind := range append(domain.EventTypes(), domain.EventType{Name: "charge.exploded.v1"}) {
		for j, data := range []string{`{}`, `{"amount":"much","refund_id":7,"items":"none","provider":[],"event_id":{},"steps":9,"notify":"no"}`} {
			f.exec(fmt.Sprintf(`
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_%d_%d', 1, '%s', 1, 'acme', '%s', '{}', now())`, i, j, kind.Name, data))
		}
	}
	f.exec(`
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_', v, 'charge.cancel_requested.v1', 1, 'acme', jsonb_build_object('x', repeat('x', 1048000)), '{}', now()
  from generate_series(1, 17) v;
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, headers, body, expires_at)
values ('acme', 'POST /v1/charges', 'long', '', 202, jsonb_build_object('Location', jsonb_build_array(repeat('x', 9999))), convert_to(repeat('x', 1000000), 'UTF8'), now())`)
	report := f.audit()
	for _, name := range []string{legal, outcome, answers} {
		c := named(t, report, name)
		if c.Violated == 0 {
			t.Errorf("%s: %+v", name, c)
		}
		for _, complaint := range c.Examples {
			if len(complaint) > 500 {
				t.Errorf("%s: a complaint of %d bytes", name, len(complaint))
			}
		}
	}
	if first := named(t, report, legal).Examples[0]; !strings.HasPrefix(first, "ch_: the events have more than") {
		t.Errorf("of a charge that is too long it says %s", first)
	}
}
