package audit_test

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A consumer group beside the one that feeds the inbox reads the same outbox. How
// far it is says nothing about the inbox.
func TestRun_goesByTheConsumerGroupThatFeedsTheInbox(t *testing.T) {
	t.Parallel()
	const (
		hasReadAll = `
insert into outbox_offsets (topic, consumer_group, transaction_id, "offset")
select topic, 'analytics', transaction_id, "offset"
  from outbox
 order by transaction_id desc, "offset" desc
 limit 1;`
		hasReadNothing = `insert into outbox_offsets (topic, consumer_group, transaction_id, "offset") values ('charges', 'analytics', '0', 0);`
		old            = `update outbox set created_at = now() - interval '1 hour';`
		passed         = `
update outbox_offsets
   set (transaction_id, "offset") = (select transaction_id, "offset" from outbox order by transaction_id desc, "offset" desc limit 1)
 where consumer_group = 'inbox';`
	)
	for _, test := range []struct {
		name, with string
		want       []string
	}{
		{"another group is ahead of the inbox", hasReadAll, nil},
		{"another group is behind the inbox", hasReadNothing, nil},
		{"another group has read what the inbox has not received for an hour", hasReadAll + old, []string{"no message is stuck"}},
		{"another group is behind, and the inbox's has passed what it did not receive", hasReadNothing + passed, []string{
			"every message that was passed was received", "no accepted charge is lost",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t) // its charge "fresh" waits in the outbox
			w.exec(test.with)
			want := map[string]bool{}
			for _, name := range test.want {
				want[name] = true
			}
			report := w.audit()
			if diff := cmp.Diff(want, violated(report.Checks)); diff != "" {
				t.Errorf("violated (-want +got):\n%s", diff)
				for name := range maps.Keys(violated(report.Checks)) {
					t.Logf("%s: %v", name, named(t, report, name).Examples)
				}
			}
		})
	}
}
