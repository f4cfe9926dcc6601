package telemetry_test

import (
	"testing"

	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestFigures_countWhatEachConsumerGroupHasNotReadAndAlwaysTheInboxs(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	m, _, _ := figures(db)
	write(t, db, `insert into outbox (topic, message_id, payload, metadata) select 'charges', 'm' || n, '', '{}' from generate_series(1, 4) as n`)
	write(t, db, `
insert into outbox_offsets (topic, consumer_group, transaction_id, "offset")
select topic, 'analytics', max(transaction_id), max("offset") from outbox group by topic`)
	got := scrape(t, m.Handler())
	name := func(group string) string {
		return `payonce_outbox_unread_messages{consumer_group="` + group + `",topic="charges"}`
	}
	if _, there := got[name("inbox")]; !there {
		t.Error("the group that feeds the inbox has never read, and its backlog is not shown")
	}
	want(t, got, map[string]float64{name("inbox"): 4, name("analytics"): 0})
}
